"""What ships into strangers' images, on a real Python 3.9 where one is to be found."""

from __future__ import annotations

import ast
import glob
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import longboat
from longboat import zipapp

SOURCE = Path(longboat.__file__).parent
MODULES = [
    name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    for name, _ in zipapp.files()
    if name.startswith("longboat/") and not name.endswith("__main__.py") and "rank_path" not in name
]

WORK = """
import importlib, json, os, sys
for name in sys.argv[2:]:
    importlib.import_module(name)
foreign = [n for n, m in sys.modules.items() if "site-packages" in (getattr(m, "__file__", "") or "")]
assert not foreign, foreign

from longboat.runtime import journal, plan, rank_env, wire
from longboat.runtime.gang import gang_events
from longboat.runtime.gang.machine import Gang
stage = plan.Stage("train", shape="allreduce", roles=(plan.Role("worker", 2),))
whole = plan.Plan("job", stages=(stage,), params=(plan.Param("A", 1),))
assert plan.from_json(plan.to_json(whole)) == whole

writer = journal.JournalWriter(sys.argv[1])
from longboat.runtime.causes import Cause, CauseKind
writer.write("run.ended", state="failed", cause=Cause(CauseKind.USER_ERROR, "no", lines=("a",)))
writer.close()
assert journal.cause_of(journal.read(sys.argv[1])[0]).lines == ("a",)

from longboat.runtime.seat import Seat
seat = Seat("train", "worker", 0)
it = Gang(gang_events.GangRules({seat: (True, False)}))
it.begin(0.0)
address = rank_env.Address("h", (1, 2, 3))
actions = it.handle(gang_events.Heartbeat(seat, "x", address, gang_events.NO_INCARNATION, False), 0.0)
assert any(isinstance(action, gang_events.Start) for action in actions)

world = rank_env.World(1, 1, {"worker": (address, address)})
places = rank_env.Places("r", "/d", "/o", "/c", "/f", "/s", "/p", "/b")
assert rank_env.environment(stage, "worker", 1, 0, world, places, {})["RANK"] == "1"
assert wire.Decoder().feed(wire.encode({"is": "a"})) == [{"is": "a"}]

os.environ["LONGBOAT_REPORT_FILE"] = os.path.join(sys.argv[1], "reports")
import longboat
longboat.report(step=1, loss=float("nan"))
assert json.loads(open(os.environ["LONGBOAT_REPORT_FILE"]).read())["loss"] == "nan"
assert longboat.stopping() is False
print("fine")
"""


def python39() -> str | None:
    found = [shutil.which("python3.9"), *glob.glob(os.path.expanduser("~/.pyenv/versions/3.9*/bin/python3.9"))]
    found += glob.glob("/opt/*/bin/python3.9") + glob.glob("/usr/*/bin/python3.9")
    for path in found:
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    return None


@pytest.mark.parametrize("interpreter", ["this one", "3.9"])
def test_shipped_modules_work_with_the_standard_library_alone(interpreter: str, tmp_path: Path) -> None:
    program = sys.executable if interpreter == "this one" else python39()
    if program is None:
        for module in MODULES:
            path = SOURCE.parent / module.replace(".", "/")
            file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            ast.parse(file.read_text(), feature_version=(3, 9))
        return  # none is to be found: they were parsed by its grammar, and their imports are test_zipapp's
    done = subprocess.run(
        [program, "-S", "-c", WORK, str(tmp_path), *MODULES],
        env={"PYTHONPATH": str(SOURCE.parent), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "fine\n", done.stderr


def test_the_sitecustomize_of_ranks_starts_in_every_python_that_is_to_be_found(tmp_path: Path) -> None:
    """Old interpreters too: a rank's Python may be older than any that Longboat runs on."""
    programs = {
        sys.executable,
        shutil.which("python3"),
        *glob.glob(os.path.expanduser("~/.pyenv/versions/*/bin/python3.?")),
    }
    for program in filter(None, programs):
        stacks = tmp_path / "stacks"
        done = subprocess.run(
            [program, "-c", "import sys; print('started'); sys.modules['sitecustomize']"],
            env={
                "PYTHONPATH": str(SOURCE / "runtime" / "rank_path"),
                "LONGBOAT_RUN_ID": "x",
                "LONGBOAT_STACKS_FILE": str(stacks),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.stdout, done.stderr) == ("started\n", ""), program
