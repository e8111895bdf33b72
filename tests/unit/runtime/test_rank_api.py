"""What a training script may call, also where nobody listens."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"import longboat\n{code}"]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_outside_of_a_run_a_report_is_a_printed_line_and_nothing_stops() -> None:
    done = run("longboat.report(step=1, total=2, loss=0.5)\nprint(longboat.stopping())")
    assert done.stdout == "longboat: step=1 total=2 loss=0.5\nFalse\n"


def test_a_report_is_one_line_of_the_ranks_file_and_nothing_is_printed(tmp_path: Path) -> None:
    file = tmp_path / "reports"
    code = """
class Scalar:
    def __float__(self):
        return 0.25
longboat.report(step=1, loss=Scalar(), ok=True)
longboat.report(loss=2)
"""
    done = run(code, LONGBOAT_REPORT_FILE=str(file))
    assert (done.returncode, done.stdout) == (0, "")
    first, second = (json.loads(line) for line in file.read_text().splitlines())
    assert (first["step"], first["loss"], first["ok"]) == (1, 0.25, 1)
    assert (second["loss"], "step" in second) == (2, False)


def test_what_json_has_no_number_for_is_written_as_text(tmp_path: Path) -> None:
    run("longboat.report(a=float('nan'), b=float('inf'), c=-float('inf'))", LONGBOAT_REPORT_FILE=str(tmp_path / "r"))
    line = json.loads((tmp_path / "r").read_text(), parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name)))
    assert (line["a"], line["b"], line["c"]) == ("nan", "inf", "-inf")


def test_a_full_disk_does_not_end_the_training() -> None:
    assert run("longboat.report(step=1)", LONGBOAT_REPORT_FILE="/dev/full").returncode == 0


def test_stopping_turns_true_with_sigterm_and_leaves_a_handler_of_the_script_alone() -> None:
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    assert run(f"longboat.stopping()\n{kill}\nprint(longboat.stopping())").stdout == "True\n"
    own = "import signal; signal.signal(signal.SIGTERM, lambda *_: print('mine'))"
    assert run(f"{own}\nlongboat.stopping()\n{kill}\nprint(longboat.stopping())").stdout == "mine\nFalse\n"


def test_importing_longboat_in_a_rank_imports_nothing_else() -> None:
    done = run("import sys; print([n for n in sys.modules if n.startswith('longboat.')])")
    assert done.stdout == "[]\n"
