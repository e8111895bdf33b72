"""Writes a job file for an existing script, for `longboat init --from`.

The script is read and never run; its imports decide the shape. The job file has comments and is meant to be edited.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex

from longboat.runtime.errors import LongboatError
from longboat.runtime.light_dataclasses import dataclass
from longboat.runtime.shapes import SHAPES

_LARGEST = 1 << 20

_SIGNS: tuple[tuple[str, str, str], ...] = (
    (r"\bParameterServerStrategy\b", "ps", "it uses TensorFlow's parameter servers"),
    (r"^\s*(?:from|import)\s+(?:mpi4py|horovod)\b", "mpi", "it imports mpi4py or Horovod, which mpirun starts"),
    (r"\btorch\.distributed\b|\bDistributedDataParallel\b", "allreduce", "it uses torch.distributed"),
    (r"\bjax\.distributed\b|\bkeras\.distribution\b", "allreduce", "it uses jax.distributed"),
    (r"\b(?:tf|tensorflow)\.distribute\b|\bMultiWorkerMirroredStrategy\b", "allreduce", "it uses tf.distribute"),
    (r"environ(?:\.get\(|\[)\s*[\"'](?:RANK|WORLD_SIZE)[\"']", "allreduce", "it reads RANK or WORLD_SIZE"),
    (r"\bLONGBOAT_RANK\b.*\bLONGBOAT_WORLD_SIZE\b", "average", "it takes its shard from LONGBOAT_RANK"),
)
"""Pattern in the source, the shape it suggests, and the reason. The first match wins."""


@dataclass(frozen=True)
class Option:
    """An argument of the script's parser: an option such as `--steps`, or a positional argument."""

    name: str
    default: int | float | str = ""
    help: str = ""
    required: bool = False
    flag: bool = False


@dataclass(frozen=True)
class Script:
    """What the source of a script shows: language, shape, options."""

    path: str
    python: bool
    shape: str
    reason: str
    options: tuple[Option, ...] = ()


def read(path: str) -> Script:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            source = file.read(_LARGEST)
    except FileNotFoundError:
        raise LongboatError(f"script {path} does not exist", "longboat init --from PATH/TO/train.py") from None
    except OSError as error:
        raise LongboatError(f"cannot read {path}: {error.strerror}") from error
    python = path.endswith(".py") or bool(re.match(r"#!.*python", source))
    for pattern, shape, reason in _SIGNS:
        if python and re.search(pattern, source, re.MULTILINE | re.DOTALL):
            return Script(path, python, shape, reason, _options(source))
    reason = "it uses no framework for several processes"
    return Script(path, python, "single", reason, _options(source) if python else ())


def job_file(script: Script, directory: str) -> str:
    """The text of a job file for the directory."""
    name = re.sub(r"[^a-z0-9]+", "-", os.path.splitext(os.path.basename(script.path))[0].lower())[:40].strip("-")
    code = os.path.relpath(os.path.dirname(os.path.abspath(script.path)), os.path.abspath(directory))
    lines = [
        f"# Written by `longboat init --from {os.path.basename(script.path)}`. Edit it; `longboat plan` checks it.",
        "longboat: 1",
        f"name: {name or 'job'}",
        "",
        "# Parameters, used below as ${NAME}. To change one for a single run: --set NAME=VALUE.",
        *_params(script),
        "",
        "# Code and working directory of every rank.",
        f"code: {_scalar(code)}",
        "",
        "stages:",
        "  train:",
        *_flags(script),
        f"    run: {_scalar(_command(script))}",
        f"    # {script.shape}: {SHAPES[script.shape].help}.",
        f"    # The other shapes: {', '.join(sorted(set(SHAPES) - {script.shape}))}.",
        f"    shape: {script.shape}",
        *_RANKS.get(script.shape, ("    ranks: ${RANKS}",)),
        "    # Restarts after a failure.",
        "    restarts: 3",
        "    # resources: {cpu: 1, memory: 2Gi}",
        "    # timeout: 2h",
        "",
        "  # To check the model, call longboat.report(accuracy=...) in the script, then add:",
        "  # good-enough:",
        "  #   gate: {of: train, metric: accuracy, at_least: 0.9}",
    ]
    return "\n".join(lines) + "\n"


_RANKS = {
    "single": (),
    "ps": ('    ranks: {chief: 1, worker: "${RANKS}", ps: 1}',),
    "average": (
        "    ranks: ${RANKS}",
        "    # Runs once after all trainers; their models are in $LONGBOAT_OUTPUT_DIR.",
        "    merge: python merge.py",
    ),
}
"""Shape -> lines for the number of ranks, where it is not a single number."""


def _params(script: Script) -> list[str]:
    lines = []
    for option in script.options:
        if not option.flag:
            value = option.default if isinstance(option.default, (int, float)) else json.dumps(option.default)
            text = json.dumps(option.help or f"{option.name} of the script", ensure_ascii=False).replace("${", "$${")
            lines.append(
                f"  {_param(option.name)}: {{value: {value}, help: {text}{', required: true' * option.required}}}"
            )
    if script.shape != "single":
        lines.insert(0, "  RANKS: {value: 2, help: processes that train together}")
    return ["params:", *lines] if lines else ["params: {}"]


def _flags(script: Script) -> list[str]:
    flags = [option.name for option in script.options if option.flag]
    return [f"    # It also takes {', '.join(flags)}."] if flags else []


def _command(script: Script) -> str:
    name = os.path.basename(script.path)
    starter = "python " if script.python else "" if os.access(script.path, os.X_OK) else "sh "
    # `${` starts a param in a job file; in a file name it is literal.
    arguments = [starter + shlex.quote(f"./{name}" if not starter else name).replace("${", "$${")]
    for option in script.options:
        if not option.flag:
            value = f"${{{_param(option.name)}}}"
            value = f'"{value}"' if isinstance(option.default, str) else value
            arguments += [option.name, value] if option.name.startswith("-") else [value]
    return " ".join(arguments)


def _options(source: str) -> tuple[Option, ...]:
    """Arguments of its argparse parser, if they are literals."""
    try:
        calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    except (SyntaxError, ValueError, RecursionError):
        return ()
    add_argument_calls = [c for c in calls if isinstance(c.func, ast.Attribute) and c.func.attr == "add_argument"]
    options = [_option(call) for call in sorted(add_argument_calls, key=lambda call: call.lineno)]
    return tuple({option.name: option for option in options if option is not None}.values())[:30]


def _option(call: ast.Call) -> Option | None:
    names = [str(word) for word in map(_plain, call.args) if isinstance(word, str)]
    keywords = {keyword.arg: _plain(keyword.value) for keyword in call.keywords}
    name = next((name for name in names if name.startswith("--")), names[0] if names else "")
    if not re.fullmatch(r"-*[A-Za-z][\w-]*", name) or "nargs" in keywords or name.startswith("-") and len(name) < 4:
        return None
    if "action" in keywords:
        return Option(name, flag=True) if str(keywords["action"]).startswith("store_") else None
    default = keywords.get("default")
    text = " ".join(str(keywords.get("help") or "").replace("%(default)s", str(default)).split())
    if name.startswith("--") and isinstance(default, (int, float, str)) and not isinstance(default, bool):
        return Option(name, default, text)
    return Option(name, "", text, required=True) if keywords.get("required") or not name.startswith("-") else None


def _plain(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _param(option: str) -> str:
    name = option.strip("-").upper().replace("-", "_")
    return name if name != "RANKS" else "SCRIPT_RANKS"


def _scalar(text: str) -> str:
    """A YAML scalar, plain if that is safe, else in double quotes."""
    return text if re.fullmatch(r"[A-Za-z0-9./][\w ./${}=-]*", text) else json.dumps(text, ensure_ascii=False)
