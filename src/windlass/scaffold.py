"""A first job file around a script that somebody already has.

The script is read as text and never run: what it imports tells which shape fits. The result is a
job file with comments, meant to be edited; a wrong guess costs one word.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass

from windlass.errors import WindlassError
from windlass.shapes import SHAPES

_LARGEST = 1 << 20

_SIGNS: tuple[tuple[str, str, str], ...] = (
    (r"\bParameterServerStrategy\b", "ps", "it uses TensorFlow's parameter servers"),
    (r"^\s*(?:from|import)\s+(?:mpi4py|horovod)\b", "mpi", "it imports mpi4py or Horovod, which mpirun starts"),
    (r"\btorch\.distributed\b|\bDistributedDataParallel\b", "allreduce", "it uses torch.distributed"),
    (r"\bjax\.distributed\b|\bkeras\.distribution\b", "allreduce", "it uses jax.distributed"),
    (r"\b(?:tf|tensorflow)\.distribute\b|\bMultiWorkerMirroredStrategy\b", "allreduce", "it uses tf.distribute"),
    (r"environ(?:\.get\(|\[)\s*[\"'](?:RANK|WORLD_SIZE)[\"']", "allreduce", "it reads RANK or WORLD_SIZE"),
    (r"\bWINDLASS_RANK\b.*\bWINDLASS_WORLD_SIZE\b", "average", "it takes its shard from WINDLASS_RANK"),
)
"""Pattern in the source, the shape it speaks for, and why. The first that is found counts."""


@dataclass(frozen=True)
class Script:
    """What can be told about a script by looking at it."""

    path: str
    python: bool
    shape: str
    reason: str
    options: tuple[tuple[str, str], ...] = ()
    """Options of its argparse parser that have a plain default: `--steps`, `1000`."""


def read(path: str) -> Script:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            source = file.read(_LARGEST)
    except FileNotFoundError:
        raise WindlassError(f"there is no script {path}", "windlass init --from PATH/TO/train.py") from None
    except OSError as error:
        raise WindlassError(f"{path} cannot be read: {error.strerror}") from error
    python = path.endswith(".py") or bool(re.match(r"#!.*python", source))
    for pattern, shape, reason in _SIGNS:
        if python and re.search(pattern, source, re.MULTILINE | re.DOTALL):
            return Script(path, python, shape, reason, _options(source))
    reason = "no framework for several processes was found in it"
    return Script(path, python, "single", reason, _options(source) if python else ())


def job_file(script: Script, directory: str) -> str:
    """The text of a job file that will stand in the directory."""
    name = re.sub(r"[^a-z0-9]+", "-", os.path.splitext(os.path.basename(script.path))[0].lower())[:40].strip("-")
    code = os.path.relpath(os.path.dirname(os.path.abspath(script.path)), os.path.abspath(directory))
    params = [(_param(option), option, value) for option, value in script.options]
    lines = [
        f"# Written by `windlass init --from {os.path.basename(script.path)}`. Edit it; `windlass plan` checks it.",
        "windlass: 1",
        f"name: {name or 'job'}",
        "",
        "# Every knob, used below as ${NAME}. To change one for a single run: --set NAME=VALUE.",
        *_params(script, params),
        "",
        "# The tree that every rank runs in.",
        f"code: {_scalar(code)}",
        "",
        "stages:",
        "  train:",
        f"    run: {_scalar(_command(script, params))}",
        f"    # {script.shape}: {SHAPES[script.shape].help}.",
        f"    # The other shapes: {', '.join(sorted(set(SHAPES) - {script.shape}))}.",
        f"    shape: {script.shape}",
        *_RANKS.get(script.shape, ("    ranks: ${RANKS}",)),
        "    # New lives of the gang after a failure.",
        "    restarts: 3",
        "    # resources: {cpu: 1, memory: 2Gi}",
        "    # timeout: 2h",
        "",
        "  # A model that must be good enough: windlass.report(accuracy=...) in the script, then",
        "  # good-enough:",
        "  #   gate: {of: train, metric: accuracy, at_least: 0.9}",
    ]
    return "\n".join(lines) + "\n"


_RANKS = {
    "single": (),
    "ps": ('    ranks: {chief: 1, worker: "${RANKS}", ps: 1}',),
    "average": (
        "    ranks: ${RANKS}",
        "    # Runs once after all trainers; their models lie in $WINDLASS_OUTPUT_DIR.",
        "    merge: python merge.py",
    ),
}
"""Shape -> the lines that say how many ranks, where one number does not."""


def _params(script: Script, params: list[tuple[str, str, str]]) -> list[str]:
    lines = [f"  {param}: {{value: {value}, help: {option} of the script}}" for param, option, value in params]
    if script.shape != "single":
        lines.insert(0, "  RANKS: {value: 2, help: processes that train together}")
    return ["params:", *lines] if lines else ["params: {}"]


def _command(script: Script, params: list[tuple[str, str, str]]) -> str:
    name = os.path.basename(script.path)
    # `${` begins a param in a job file; in a file's name it is meant literally.
    word = shlex.quote(name if script.python else f"./{name}").replace("${", "$${")
    return (
        ("python " if script.python else "") + word + "".join(f" {option} ${{{param}}}" for param, option, _ in params)
    )


def _options(source: str) -> tuple[tuple[str, str], ...]:
    """Long options with a number as their default: the ones worth a param."""
    found: dict[str, str] = {}
    for call in re.finditer(r"add_argument\(([^()]*(?:\([^()]*\)[^()]*)*)\)", source):
        option = re.search(r"""["'](--[A-Za-z][\w-]*)["']""", call[1])
        default = re.search(r"\bdefault\s*=\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(?:,|$)", call[1].strip())
        if option and default and "store_" not in call[1]:
            found.setdefault(option[1], default[1])
    return tuple(found.items())[:20]


def _param(option: str) -> str:
    name = option.strip("-").upper().replace("-", "_")
    return name if name != "RANKS" else "SCRIPT_RANKS"


def _scalar(text: str) -> str:
    """A YAML scalar: plain where that is safe, else in double quotes."""
    import json

    return text if re.fullmatch(r"[A-Za-z0-9./][\w ./${}=-]*", text) else json.dumps(text, ensure_ascii=False)
