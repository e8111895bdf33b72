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

from tests.local.place import Place, until
from windlass import layout

CLINGING = """
import os, subprocess, sys, time
if os.environ["WINDLASS_GENERATION"] == "1":
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


def ancestors(windlass: Place, stage: str = "train") -> tuple[int, int, int]:
    """Agent, nursery and keeper of the first rank of the stage that runs."""
    rank = until(lambda: [e for e in windlass.events("rank.started") if e["stage"] == stage])[0]["pid"]
    agent = parent_of(rank)
    nursery = parent_of(agent)
    return agent, nursery, parent_of(nursery)


def children(windlass: Place, parent: int) -> set[int]:
    """Processes of the place below the parent: others, as the viewer's `git`, may end while they are looked at."""
    found = set()
    for pid in windlass.processes():
        with suppress(FileNotFoundError, ProcessLookupError):
            found |= {pid} if parent_of(pid) == parent else set()
    return found


def begun(windlass: Place) -> int:
    """A run with ranks that cling to life; the pid of its driver."""
    command = windlass.start(TWO, "--detach", work=CLINGING)
    assert command.said().code == 0, command.err
    windlass.printed("up", 0, stage="train")
    windlass.printed("up", 1, stage="train")
    return int(windlass.events("run.started")[0]["pid"])


def test_a_killed_supervisor_takes_everything_along_and_the_run_says_so(windlass: Place) -> None:
    os.kill(begun(windlass), signal.SIGKILL)
    windlass.nothing_is_left()
    status = windlass.status()
    assert (status["state"], status["cause"]["kind"]) == ("lost", "supervisor_lost")
    assert {rank["state"] for rank in status["stages"][1]["ranks"]} == {"lost"}
    why = windlass("why").out
    assert "is lost" in why
    assert f"windlass run --resume {windlass.id}" in why
    assert "[train/worker-0] up" in windlass("logs").out
    assert windlass("wait").code == 1
    assert windlass("logs", "-f").code == 0
    assert windlass("rm", windlass.id).code == 0
    assert windlass.runs == []


def test_a_lost_run_is_resumed_as_the_next_generation_with_what_had_passed(windlass: Place) -> None:
    os.kill(begun(windlass), signal.SIGKILL)
    windlass.nothing_is_left()
    said = windlass("run", "--resume", windlass.id)
    assert said.code == 0, said.err
    generations = [(e["stage"], e["gen"]) for e in windlass.events("gen.started")]
    assert generations == [("prepare", 1), ("train", 1), ("train", 2)]
    assert [e["stage"] for e in windlass.events("stage.reused")] == ["prepare"]
    assert windlass.log(0, stage="train") == "up\nagain\n"
    assert windlass.log(0, stage="prepare") == "prepared\n"
    assert [e["attempt"] for e in windlass.events("stage.started") if e["stage"] == "train"] == [1, 2]
    assert [e["n"] for e in windlass.events()] == list(range(1, len(windlass.events()) + 1))
    assert windlass.status()["state"] == "succeeded"
    again = windlass("run", "--resume", windlass.id)
    assert (again.code, again.err.splitlines()[0]) == (
        2,
        f"error: {windlass.id} has succeeded and nothing has changed since; there is nothing to resume",
    )


def test_a_run_that_is_under_way_is_not_resumed(windlass: Place) -> None:
    begun(windlass)
    said = windlass("run", "--resume", windlass.id)
    assert said.code == 2
    assert f"{windlass.id} is still running" in said.err
    assert windlass("stop", "--now").code == 0


RIVAL = """
import os, sys
import windlass
from windlass.engines.local import start
from windlass.errors import WindlassError
plan = windlass.load("job.yaml", set={"N": 2}).plan()
run = start.reopened(sys.argv[1], os.environ["WINDLASS_HOME"], os.environ, plan=plan)
print("decided", flush=True)
sys.stdin.read()
try:
    print(getattr(run, sys.argv[2])())
except WindlassError as error:
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
def test_of_two_that_resume_a_run_at_once_the_later_one_changes_nothing(windlass: Place, ended: bool, way: str) -> None:
    assert windlass.run(OFTEN).code == 1
    script = windlass.file("rival.py", RIVAL)
    rival = Popen(
        [sys.executable, script, windlass.id, way],
        env=windlass.env,
        cwd=windlass.code,
        stdin=PIPE,
        stdout=PIPE,
        text=True,
    )
    assert rival.stdout is not None
    assert rival.stdout.readline() == "decided\n"
    winner = windlass.begin("run", "--resume", windlass.id)
    times = windlass.code / "times"
    until(lambda: times.read_text().count("\n") == 2, "the second life")
    assert times.read_text() == "1\n1\n", "the rival's plan has run"
    if ended:
        windlass.file("go", "")
        assert winner.said().code == 0
    names = (layout.PLAN, layout.ORDERS, *([layout.FINGERPRINTS] if ended else []))
    before = kept(windlass.dir, *names)
    said, _ = rival.communicate("")
    windlass.file("go", "")
    assert winner.said().code == 0
    words = "somebody else has just resumed" if ended or way == "detach" else "is being driven by another process"
    assert words in said
    assert kept(windlass.dir, *names) == before
    assert "echo 1" in before[layout.PLAN]
    assert times.read_text() == "1\n1\n"


def test_supervisor_and_agents_killed_together_leave_nothing(windlass: Place) -> None:
    driver = begun(windlass)
    agent, _, _ = ancestors(windlass)
    for pid in (agent, driver):
        os.kill(pid, signal.SIGKILL)
    windlass.nothing_is_left()
    assert windlass.status()["state"] == "lost"


def test_supervisor_and_keeper_killed_together_leave_no_process(windlass: Place) -> None:
    driver = begun(windlass)
    _, _, keeper = ancestors(windlass)
    for pid in (driver, keeper):
        os.kill(pid, signal.SIGSTOP)
    for pid in (driver, keeper):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not windlass.processes(), "the end of all processes")
    assert windlass.status()["state"] == "lost"
    (scratch,) = windlass.scratch()
    os.utime(windlass.tmp / scratch, (1, 1))
    said = windlass("run", "--resume", windlass.id)
    assert said.code == 0, said.err
    assert windlass.scratch() == [], "the next run clears away what nobody was left to clear away"


def test_the_scratch_of_a_driver_that_was_killed_before_it_listened_is_cleared_away(windlass: Place) -> None:
    for name in ("windlass-0123abcd", "windlass-89abcdef", "windlass-mine"):
        (windlass.tmp / name).mkdir()
    (windlass.tmp / "windlass-89abcdef/data").write_text("not ours")
    for name in os.listdir(windlass.tmp):
        os.utime(windlass.tmp / name, (1, 1))
    assert windlass.run("run: 'true'\n").code == 0
    assert windlass.scratch() == ["windlass-89abcdef", "windlass-mine"]
    for name in windlass.scratch():
        shutil.rmtree(windlass.tmp / name)


def test_a_run_does_not_clear_away_the_scratch_of_one_that_is_under_way(windlass: Place) -> None:
    begun(windlass)
    (scratch,) = windlass.scratch()
    os.utime(windlass.tmp / scratch, (1, 1))
    first = windlass.id
    assert windlass.run("run: 'true'\n").code == 0
    assert windlass.scratch() == [scratch]
    assert windlass("stop", "--now", first).code == 0


def test_a_killed_keeper_ends_the_run_with_a_cause_and_leaves_nothing(windlass: Place) -> None:
    begun(windlass)
    _, _, keeper = ancestors(windlass)
    os.kill(keeper, signal.SIGKILL)
    assert windlass("wait").code == 1
    windlass.nothing_is_left()
    assert windlass.events("run.ended")[-1]["state"] == "failed"
    assert "the keeper of the run's processes was killed" in windlass("why").out
    assert windlass("run", "--resume", windlass.id).code == 0


def test_a_killed_nursery_ends_the_run_with_a_cause_and_leaves_nothing(windlass: Place) -> None:
    begun(windlass)
    _, nursery, _ = ancestors(windlass)
    os.kill(nursery, signal.SIGKILL)
    assert windlass("wait").code == 1
    windlass.nothing_is_left()
    assert windlass.events("run.ended")[-1]["state"] == "failed"
    assert windlass("run", "--resume", windlass.id).code == 0


def test_a_run_that_failed_is_resumed_too(windlass: Place) -> None:
    script = "import os, sys\nsys.exit(0 if os.path.exists('mended') else 4)\n"
    assert windlass.run("run: [python, work.py]\nrestarts: 0\n", work=script).code == 1
    windlass.file("mended", "")
    said = windlass("run", "--resume", windlass.id)
    assert said.code == 0, said.err
    assert [e["gen"] for e in windlass.events("gen.started")] == [1, 2]
    assert windlass.status()["state"] == "succeeded"
    assert len(windlass.runs) == 1


def test_a_half_written_journal_line_is_harmless_and_cut_off_on_resume(windlass: Place) -> None:
    os.kill(begun(windlass), signal.SIGKILL)
    windlass.nothing_is_left()
    with open(windlass.dir / "events.jsonl", "ab") as file:
        file.write(b'{"t":1,"n":99,"ev":"rank.en')
    assert windlass.status()["state"] == "lost"
    assert windlass("run", "--resume", windlass.id).code == 0
    assert [e["n"] for e in windlass.events()] == list(range(1, len(windlass.events()) + 1))


def test_a_run_whose_keeper_is_killed_has_nothing_that_still_seems_to_run(windlass: Place) -> None:
    command = windlass.start("run: [python, work.py]\n", work='import time\nprint("up", flush=True)\ntime.sleep(600)\n')
    windlass.printed("up")
    _, _, keeper = ancestors(windlass, "main")
    os.kill(keeper, signal.SIGKILL)
    assert command.said().code == 1
    told = json.loads(windlass("status", windlass.id, "--json").out)
    assert (told["state"], told["stages"][0]["state"]) == ("failed", "lost")
    assert [rank["state"] for rank in told["stages"][0]["ranks"]] == ["lost"]
    assert "keeper" in told["cause"]["message"]


def test_killing_the_viewer_does_not_touch_the_run(windlass: Place) -> None:
    script = """
        import os, time
        print("up", flush=True)
        while not os.path.exists("go"):
            time.sleep(0.005)
    """
    command = windlass.start("run: [python, work.py]\n", work=script)
    windlass.printed("up")
    _, _, keeper = ancestors(windlass, "main")
    viewers = until(lambda: children(windlass, command.pid) - {keeper}, "a viewer")
    for pid in viewers:
        os.kill(pid, signal.SIGKILL)
    windlass.file("go", "")
    assert command.said().code == 0
    assert windlass.events("run.ended")[0]["state"] == "succeeded"


DYING = """
import os, sys, time
from windlass.engines.local.keeper import LocalLauncher
launcher = LocalLauncher(lambda seat, ports: None, sys.argv[1])
if sys.argv[2] == "in order":
    launcher.close()
else:
    os.closerange(3, 1024)
print("closed", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("end", "left"), [("by a kill", False), ("in order", True)])
def test_the_keeper_clears_away_after_a_driver_that_the_kernel_has_not_yet_done_with(
    windlass: Place, tmp_path: Path, end: str, left: bool
) -> None:
    """A process that is killed has lost its files before its children have lost their parent."""
    scratch = tmp_path / "windlass-of-a-driver"
    scratch.mkdir()
    command = [sys.executable, "-c", DYING, str(scratch), end]
    with Popen(command, stdin=PIPE, stdout=PIPE, env=windlass.env, text=True) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "closed\n"
        keepers = windlass.processes().keys() - {driver.pid}
        until(lambda: not windlass.processes().keys() & keepers, "the end of the keeper")
        assert driver.poll() is None
        assert scratch.exists() is left, "a driver that ends in order removes it itself"


UNHEARD = """
import os, signal, sys
from pathlib import Path
from windlass.engines.local.keeper import KeeperLost, LocalLauncher
launcher = LocalLauncher(lambda seat, ports: None, sys.argv[1])
keeper = launcher._keeper
os.kill(int(Path(f"/proc/{keeper}/task/{keeper}/children").read_text()), signal.SIGSTOP)
launcher.launch(("train", "worker", 0), ())
os.kill(keeper, signal.SIGKILL)
try:
    launcher.poll()
except KeeperLost as lost:
    print(lost)
"""


def test_a_keeper_that_is_killed_before_an_order_was_heard_is_lost_like_any_other(
    windlass: Place, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", UNHEARD, str(tmp_path)]
    with Popen(command, stdout=PIPE, env=windlass.env, text=True) as driver:
        assert driver.communicate()[0] == "the keeper of the run's processes was killed\n"
