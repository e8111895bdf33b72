"""Whoever is killed with -9, nothing survives, the run tells the truth, and it can go on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from longboat.runtime import run_layout
from tests.local.place import Place, until

CLINGING = """
import os, subprocess, sys, time
if os.environ["LONGBOAT_GENERATION"] == "1":
    subprocess.Popen(["setsid", "sleep", "600"])
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    print("up", flush=True)
    time.sleep(600)
print("again", flush=True)
"""
TWO = """
stages:
  prepare: {run: echo prepared}
  train: {run: [python, work.py], shape: allreduce, ranks: 2, after: prepare}
"""


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def ancestors(longboat: Place, stage: str = "train") -> tuple[int, int, int]:
    """Agent, fork server and supervisor of the first rank of the stage that runs."""
    rank = until(lambda: [e for e in longboat.events("rank.started") if e["stage"] == stage])[0]["pid"]
    agent = parent_of(rank)
    fork_server = parent_of(agent)
    return agent, fork_server, parent_of(fork_server)


def children(longboat: Place, parent: int) -> set[int]:
    """Processes of the place below the parent: others, as the viewer's `git`, may end while they are looked at."""
    found = set()
    for pid in longboat.processes():
        with suppress(FileNotFoundError, ProcessLookupError):
            found |= {pid} if parent_of(pid) == parent else set()
    return found


def begun(longboat: Place) -> int:
    """A run with ranks that cling to life; the pid of its driver."""
    command = longboat.start(TWO, "--detach", work=CLINGING)
    assert command.said().code == 0, command.err
    longboat.printed("up", 0, stage="train")
    longboat.printed("up", 1, stage="train")
    return int(longboat.events("run.started")[0]["pid"])


def test_a_killed_driver_takes_everything_along_and_the_run_says_so(longboat: Place) -> None:
    os.kill(begun(longboat), signal.SIGKILL)
    longboat.nothing_is_left()
    status = longboat.status()
    assert (status["state"], status["cause"]["kind"]) == ("lost", "driver_lost")
    assert {rank["state"] for rank in status["stages"][1]["ranks"]} == {"lost"}
    why = longboat("why").out
    assert "is lost" in why
    assert f"longboat run --resume {longboat.id}" in why
    assert "[train/worker-0] up" in longboat("logs").out
    assert longboat("wait").code == 1
    assert longboat("logs", "-f").code == 0
    assert longboat("rm", longboat.id).code == 0
    assert longboat.runs == []


def test_a_lost_run_is_resumed_as_the_next_generation_with_what_had_passed(longboat: Place) -> None:
    os.kill(begun(longboat), signal.SIGKILL)
    longboat.nothing_is_left()
    said = longboat("run", "--resume", longboat.id)
    assert said.code == 0, said.err
    generations = [(e["stage"], e["gen"]) for e in longboat.events("gen.started")]
    assert generations == [("prepare", 1), ("train", 1), ("train", 2)]
    assert [e["stage"] for e in longboat.events("stage.reused")] == ["prepare"]
    assert longboat.log(0, stage="train") == "up\nagain\n"
    assert longboat.log(0, stage="prepare") == "prepared\n"
    assert [e["attempt"] for e in longboat.events("stage.started") if e["stage"] == "train"] == [1, 2]
    assert [e["n"] for e in longboat.events()] == list(range(1, len(longboat.events()) + 1))
    assert longboat.status()["state"] == "succeeded"
    again = longboat("run", "--resume", longboat.id)
    assert (again.code, again.err.splitlines()[0]) == (
        2,
        f"error: {longboat.id} has succeeded and nothing has changed since; there is nothing to resume",
    )


def test_a_run_that_is_under_way_is_not_resumed(longboat: Place) -> None:
    begun(longboat)
    said = longboat("run", "--resume", longboat.id)
    assert said.code == 2
    assert f"{longboat.id} is still running" in said.err
    assert longboat("stop", "--now").code == 0


RIVAL = """
import os, sys
import longboat
from longboat.engines.interface import EngineContext, RunRequest
from longboat.engines.local.engine import LocalEngine
from longboat.runtime.errors import LongboatError
plan = longboat.load("job.yaml", set={"N": 2}).plan()
context = EngineContext(os.environ["LONGBOAT_HOME"], os.environ)
engine = LocalEngine(context)
run, _ = engine.resume(engine.find(sys.argv[1]), RunRequest(plan), print)
print("decided", flush=True)
sys.stdin.read()
try:
    print(getattr(run, sys.argv[2])())
except LongboatError as error:
    print(error.message)
"""
OFTEN = """
params: {N: 1}
run: 'echo ${N} >> times; test $(wc -l < times) -gt 1 && until test -e go; do sleep 0.05; done'
restarts: 0
"""


def kept(run: Path, *names: str) -> dict[str, str]:
    return {name: (run / name).read_text() for name in names}


@pytest.mark.parametrize("way", ["drive", "detach"])
@pytest.mark.parametrize("ended", [False, True], ids=["while it runs", "when it has ended"])
def test_of_two_that_resume_a_run_at_once_the_later_one_changes_nothing(longboat: Place, ended: bool, way: str) -> None:
    assert longboat.run(OFTEN).code == 1
    script = longboat.file("rival.py", RIVAL)
    rival = Popen(
        [sys.executable, script, longboat.id, way],
        env=longboat.env,
        cwd=longboat.code,
        stdin=PIPE,
        stdout=PIPE,
        text=True,
    )
    assert rival.stdout is not None
    assert rival.stdout.readline() == "decided\n"
    winner = longboat.begin("run", "--resume", longboat.id)
    times = longboat.code / "times"
    until(lambda: times.read_text().count("\n") == 2, "the second life")
    assert times.read_text() == "1\n1\n", "the rival's plan has run"
    if ended:
        longboat.file("go", "")
        assert winner.said().code == 0
    names = (run_layout.PLAN, run_layout.ORDERS, *([run_layout.FINGERPRINTS] if ended else []))
    before = kept(longboat.dir, *names)
    said, _ = rival.communicate("")
    longboat.file("go", "")
    assert winner.said().code == 0
    words = "somebody else has just resumed" if ended or way == "detach" else "is already driven by another process"
    assert words in said
    assert kept(longboat.dir, *names) == before
    assert "echo 1" in before[run_layout.PLAN]
    assert times.read_text() == "1\n1\n"


def test_driver_and_agents_killed_together_leave_nothing(longboat: Place) -> None:
    driver = begun(longboat)
    agent, _, _ = ancestors(longboat)
    for pid in (agent, driver):
        os.kill(pid, signal.SIGKILL)
    longboat.nothing_is_left()
    assert longboat.status()["state"] == "lost"


def test_driver_and_supervisor_killed_together_leave_no_process(longboat: Place) -> None:
    driver = begun(longboat)
    _, _, supervisor = ancestors(longboat)
    for pid in (driver, supervisor):
        os.kill(pid, signal.SIGSTOP)
    for pid in (driver, supervisor):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not longboat.processes(), "the end of all processes")
    assert longboat.status()["state"] == "lost"
    (scratch,) = longboat.scratch()
    os.utime(longboat.tmp / scratch, (1, 1))
    said = longboat("run", "--resume", longboat.id)
    assert said.code == 0, said.err
    assert longboat.scratch() == [], "the next run clears away what nobody was left to clear away"


def test_the_scratch_of_a_driver_that_was_killed_before_it_listened_is_cleared_away(longboat: Place) -> None:
    for name in ("longboat-0123abcd", "longboat-89abcdef", "longboat-mine"):
        (longboat.tmp / name).mkdir()
    (longboat.tmp / "longboat-89abcdef/data").write_text("not ours")
    for name in os.listdir(longboat.tmp):
        os.utime(longboat.tmp / name, (1, 1))
    assert longboat.run("run: 'true'\n").code == 0
    assert longboat.scratch() == ["longboat-89abcdef", "longboat-mine"]
    for name in longboat.scratch():
        shutil.rmtree(longboat.tmp / name)


def test_a_run_does_not_clear_away_the_scratch_of_one_that_is_under_way(longboat: Place) -> None:
    begun(longboat)
    (scratch,) = longboat.scratch()
    os.utime(longboat.tmp / scratch, (1, 1))
    first = longboat.id
    assert longboat.run("run: 'true'\n").code == 0
    assert longboat.scratch() == [scratch]
    assert longboat("stop", "--now", first).code == 0


def test_a_killed_supervisor_ends_the_run_with_a_cause_and_leaves_nothing(longboat: Place) -> None:
    begun(longboat)
    _, _, supervisor = ancestors(longboat)
    os.kill(supervisor, signal.SIGKILL)
    assert longboat("wait").code == 1
    longboat.nothing_is_left()
    assert longboat.events("run.ended")[-1]["state"] == "failed"
    assert "the supervisor of the run's processes was killed" in longboat("why").out
    assert longboat("run", "--resume", longboat.id).code == 0


def test_a_killed_fork_server_ends_the_run_with_a_cause_and_leaves_nothing(longboat: Place) -> None:
    begun(longboat)
    _, fork_server, _ = ancestors(longboat)
    os.kill(fork_server, signal.SIGKILL)
    assert longboat("wait").code == 1
    longboat.nothing_is_left()
    assert longboat.events("run.ended")[-1]["state"] == "failed"
    assert longboat("run", "--resume", longboat.id).code == 0


def test_a_run_that_failed_is_resumed_too(longboat: Place) -> None:
    script = "import os, sys\nsys.exit(0 if os.path.exists('mended') else 4)\n"
    assert longboat.run("run: [python, work.py]\nrestarts: 0\n", work=script).code == 1
    longboat.file("mended", "")
    said = longboat("run", "--resume", longboat.id)
    assert said.code == 0, said.err
    assert [e["gen"] for e in longboat.events("gen.started")] == [1, 2]
    assert longboat.status()["state"] == "succeeded"
    assert len(longboat.runs) == 1


def test_a_half_written_journal_line_is_harmless_and_cut_off_on_resume(longboat: Place) -> None:
    os.kill(begun(longboat), signal.SIGKILL)
    longboat.nothing_is_left()
    with open(longboat.dir / "events.jsonl", "ab") as file:
        file.write(b'{"t":1,"n":99,"ev":"rank.en')
    assert longboat.status()["state"] == "lost"
    assert longboat("run", "--resume", longboat.id).code == 0
    assert [e["n"] for e in longboat.events()] == list(range(1, len(longboat.events()) + 1))


def test_a_run_whose_supervisor_is_killed_has_nothing_that_still_seems_to_run(longboat: Place) -> None:
    command = longboat.start("run: [python, work.py]\n", work='import time\nprint("up", flush=True)\ntime.sleep(600)\n')
    longboat.printed("up")
    _, _, supervisor = ancestors(longboat, "main")
    os.kill(supervisor, signal.SIGKILL)
    assert command.said().code == 1
    told = json.loads(longboat("status", longboat.id, "--json").out)
    assert (told["state"], told["stages"][0]["state"]) == ("failed", "lost")
    assert [rank["state"] for rank in told["stages"][0]["ranks"]] == ["lost"]
    assert "supervisor" in told["cause"]["message"]


def test_killing_the_viewer_does_not_touch_the_run(longboat: Place) -> None:
    script = """
        import os, time
        print("up", flush=True)
        while not os.path.exists("go"):
            time.sleep(0.005)
    """
    command = longboat.start("run: [python, work.py]\n", work=script)
    longboat.printed("up")
    _, _, supervisor = ancestors(longboat, "main")
    viewers = until(lambda: children(longboat, command.pid) - {supervisor}, "a viewer")
    for pid in viewers:
        os.kill(pid, signal.SIGKILL)
    longboat.file("go", "")
    assert command.said().code == 0
    assert longboat.events("run.ended")[0]["state"] == "succeeded"


DYING = """
import os, sys, time
from longboat.engines.local.supervisor import LocalLauncher
launcher = LocalLauncher(lambda seat, ports: None, sys.argv[1])
if sys.argv[2] == "in order":
    launcher.close()
else:
    os.closerange(3, 1024)
print("closed", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("end", "left"), [("by a kill", False), ("in order", True)])
def test_the_supervisor_clears_away_after_a_driver_that_the_kernel_has_not_yet_done_with(
    longboat: Place, tmp_path: Path, end: str, left: bool
) -> None:
    """A process that is killed has lost its files before its children have lost their parent."""
    scratch = tmp_path / "longboat-of-a-driver"
    scratch.mkdir()
    command = [sys.executable, "-c", DYING, str(scratch), end]
    with Popen(command, stdin=PIPE, stdout=PIPE, env=longboat.env, text=True) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "closed\n"
        supervisors = longboat.processes().keys() - {driver.pid}
        until(lambda: not longboat.processes().keys() & supervisors, "the end of the supervisor")
        assert driver.poll() is None
        assert scratch.exists() is left, "a driver that ends in order removes it itself"


UNHEARD = """
import os, signal, sys
from pathlib import Path
from longboat.engines.local.supervisor import LocalLauncher, SupervisorLost
launcher = LocalLauncher(lambda seat, ports: None, sys.argv[1])
supervisor = launcher._supervisor
os.kill(int(Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text()), signal.SIGSTOP)
launcher.launch(("train", "worker", 0), ())
os.kill(supervisor, signal.SIGKILL)
try:
    launcher.poll()
except SupervisorLost as lost:
    print(lost)
"""


def test_a_supervisor_that_is_killed_before_an_order_was_heard_is_lost_like_any_other(
    longboat: Place, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", UNHEARD, str(tmp_path)]
    with Popen(command, stdout=PIPE, env=longboat.env, text=True) as driver:
        assert driver.communicate()[0] == "the supervisor of the run's processes was killed\n"
