"""Disks that are full, and places that cannot be written to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.local.place import PATIENCE, Place

FILL = """
import sys
print("begin", flush=True)
line = b"x" * 4095 + b"\\n"
try:
    while True:
        sys.stdout.buffer.write(line)
        sys.stdout.flush()
except OSError as error:
    sys.stderr = None
    raise SystemExit(5)
"""


def test_a_home_that_is_a_file_is_said_with_the_fix(longboat: Place) -> None:
    longboat.home.write_text("")
    said = longboat.run("run: 'true'\n")
    assert said.code == 2
    assert f"error: cannot create a run in {longboat.home / 'runs'}: " in said.err
    assert "hint: make that directory writable, or use another: `export LONGBOAT_HOME=DIRECTORY`" in said.err


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
def test_a_home_that_may_not_be_written_is_said_with_the_fix(longboat: Place) -> None:
    """Root without its privilege to write everywhere is refused like anybody else."""
    longboat.home.mkdir(mode=0o500)
    longboat.python = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", sys.executable]
    check = [*longboat.python, "-c", f"open('{longboat.home}/x', 'w')"]
    assert subprocess.run(check, capture_output=True, check=False).returncode == 1, (
        "the directory must be closed to it, or this test shows nothing"
    )
    said = longboat.run("run: 'true'\n")
    assert said.code == 2
    assert f"cannot create a run in {longboat.home / 'runs'}: Permission denied" in said.err


@pytest.fixture
def small(longboat: Place) -> Place:
    """The home is a disk of two megabytes, in a mount namespace of its own."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    longboat.home.mkdir()
    return longboat


def in_small_disk(longboat: Place, *commands: str, size: str = "2m") -> list[subprocess.CompletedProcess[str]]:
    """Shell lines, one after the other on the same small disk; `W` is longboat."""
    results = longboat.code / "results"
    results.mkdir()
    script = [f"mount -t tmpfs -o size={size} tmpfs {longboat.home}", f'W="{sys.executable} -m longboat"']
    for number, command in enumerate(commands):
        place = f"{results}/{number}"
        script.append(f"{{ {command} ; }} >{place}.out 2>{place}.err; echo $? >{place}.code")
    subprocess.run(
        ["unshare", "--mount", "sh", "-c", "\n".join(script)],
        env=longboat.env,
        cwd=longboat.code,
        check=True,
        timeout=PATIENCE,
    )
    return [
        subprocess.CompletedProcess(
            command,
            int((results / f"{n}.code").read_text()),
            (results / f"{n}.out").read_text(errors="replace"),
            (results / f"{n}.err").read_text(errors="replace"),
        )
        for n, command in enumerate(commands)
    ]


def test_a_disk_that_fills_up_ends_the_run_with_that_cause_and_everything_can_still_be_read(small: Place) -> None:
    small.job("run: [python, fill.py]\nretries: 3\n", fill=FILL)
    run, status, why, events, rm, left = in_small_disk(
        small,
        "$W run --quiet",
        "$W status --json $(ls $LONGBOAT_HOME/runs)",
        "$W why",
        "cat $LONGBOAT_HOME/runs/*/events.jsonl",
        "$W rm $(ls $LONGBOAT_HOME/runs)",
        "ls -A $LONGBOAT_HOME/runs",
    )
    assert run.returncode == 1, run.stderr
    assert json.loads(status.stdout)["cause"]["kind"] == "disk_full", status.stdout
    assert "the disk is full" in why.stdout
    journal = [json.loads(line) for line in events.stdout.splitlines()]
    assert journal[-1]["ev"] == "run.ended"
    assert [e["gen"] for e in journal if e["ev"] == "gen.started"] == [1], "a restart cannot help"
    assert [e["attempt"] for e in journal if e["ev"] == "stage.started"] == [1], "another attempt cannot help"
    assert rm.returncode == 0, rm.stderr
    assert left.stdout == ""


def test_a_disk_filled_by_somebody_else_ends_the_run_while_the_rank_goes_on_printing_nothing(small: Place) -> None:
    small.file("fill.sh", "head -c 10000000 /dev/zero > $LONGBOAT_HOME/big; sleep 600\n")
    small.job("run: sh fill.sh\n")
    run, why = in_small_disk(small, "$W run --quiet", "$W why")
    assert run.returncode == 1, run.stderr
    assert "the disk is full" in why.stdout


TAKEN = """
import builtins, errno, os
write, opened = os.write, open
def refuse():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
os.write = lambda fd, data: refuse() if b'"ev":"{first}"' in data else write(fd, data)
builtins.open = lambda file, *more, **named: refuse() if "driver.log" in str(file) else opened(file, *more, **named)
"""
"""The disk has no room for an event, whatever is given up for it, nor for the driver's log."""


@pytest.mark.parametrize("first", ["run.started", "gen.started"])
def test_a_disk_whose_reserve_the_ranks_have_taken_is_the_cause_and_no_failure_of_ours(
    longboat: Place, tmp_path: Path, first: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(TAKEN.replace("{first}", first))
    said = longboat.run("run: sleep 600\n", env={"PYTHONPATH": str(tmp_path)})
    assert said.code == 1
    assert "Traceback" not in said.err
    assert longboat.cause["kind"] == "disk_full", longboat.cause


def test_a_disk_that_is_full_before_the_run_is_said(small: Place) -> None:
    small.job("run: 'true'\n")
    (run,) = in_small_disk(small, "head -c 10000000 /dev/zero > $LONGBOAT_HOME/big; $W run")
    assert run.returncode in (1, 2)
    assert "No space left on device" in run.stderr or "disk is full" in run.stderr, run.stderr
    assert "bug" not in run.stderr


def test_output_that_cannot_be_written_names_the_user_and_is_not_tried_again(longboat: Place) -> None:
    """The stage before leaves a file where this one's output directory has to be."""
    said = longboat.run("""
        stages:
          first: {run: 'touch $LONGBOAT_OUTPUT_DIR/../second'}
          second: {run: 'true', after: first, retries: 2}
        """)
    assert said.code == 1
    assert longboat.cause["kind"] == "not_writable"
    assert longboat.cause["evidence"] == [f"as uid {os.geteuid()}, gid {os.getegid()}"]
    assert [e["attempt"] for e in longboat.events("stage.started") if e["stage"] == "second"] == [1]
    assert Path(longboat.dir / "output/second").is_file()


def test_a_home_without_file_locks_stops_a_run_before_it_begins(longboat: Place, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import errno, fcntl, os\n"
        "def refuse(*_): raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))\n"
        "fcntl.lockf = refuse\n"
    )
    said = longboat.run("run: 'true'\n", env={"PYTHONPATH": str(tmp_path)})
    assert said.code == 2
    assert "cannot lock files" in said.err
    assert "No locks available" in said.err
    assert "export LONGBOAT_HOME" in said.err
    assert longboat.runs == []


def test_a_home_on_a_file_system_that_reports_no_blocks_is_not_called_full(longboat: Place, tmp_path: Path) -> None:
    """As many FUSE mounts do."""
    (tmp_path / "sitecustomize.py").write_text("import os\nnone = os.statvfs('/proc')\nos.statvfs = lambda _: none\n")
    said = longboat.run("run: sleep 1.5\n", env={"PYTHONPATH": str(tmp_path)})
    assert said.code == 0, said.err
