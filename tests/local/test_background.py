"""Runs that nobody watches: --detach, attach, wait, exec, several at once, the Python API."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest

import longboat as api
from longboat.runtime.errors import LongboatError
from tests.local.place import PATIENCE, Place, until

WAIT = """
import os, sys, time
print("up", flush=True)
while not os.path.exists("go"):
    time.sleep(0.005)
print("went", flush=True)
sys.exit(int(open("go").read() or 0))
"""


def background(longboat: Place, more: str = "restarts: 0\n") -> str:
    """A run that waits for the file `go`; its id."""
    job = longboat.job("run: [python, work.py]\n" + more, work=WAIT)
    said = longboat("run", job, "--detach")
    assert said.code == 0, said.err
    longboat.printed("up")
    return said.out.strip()


def test_a_detached_run_returns_its_id_and_goes_on_by_itself(longboat: Place) -> None:
    run = background(longboat)
    assert run == longboat.id
    assert longboat.status()["state"] == "running"
    driver = longboat.events("run.started")[0]["pid"]
    assert os.getsid(driver) == driver, "it must not hear of the end of the terminal it came from"
    longboat.file("go", "")
    assert longboat("wait", run).code == 0
    assert longboat.log() == "up\nwent\n"


def test_attach_shows_a_run_to_its_end_and_takes_over_its_exit_code(longboat: Place) -> None:
    run = background(longboat)
    attached = longboat.begin("attach", run)
    until(lambda: "attached to" in attached.err)
    waiting = longboat.begin("wait", run)
    longboat.file("go", "5")
    said = attached.said()
    assert said.code == 1
    assert "[worker-0] went" in said.err
    assert f"longboat why {run}" in said.err
    assert waiting.said().code == 1


def test_ctrl_c_in_attach_ends_the_viewing_only(longboat: Place) -> None:
    run = background(longboat)
    attached = longboat.begin("attach", run)
    until(lambda: "attached to" in attached.err)
    attached.signal(signal.SIGINT)
    said = attached.said()
    assert said.code == 130
    assert f"{run} continues" in said.err
    assert longboat.status()["state"] == "running"
    longboat.file("go", "")
    assert longboat("wait", run).code == 0


def test_wait_gives_up_after_its_timeout_and_the_run_goes_on(longboat: Place) -> None:
    run = background(longboat)
    said = longboat("wait", run, "--timeout", "0.2s")
    assert said.code == 1
    assert "it continues" in said.err
    longboat.file("go", "")
    assert longboat("wait", run).code == 0


def test_exec_runs_beside_a_rank_in_its_environment_and_box_and_gives_its_exit_code(longboat: Place) -> None:
    background(longboat, "shape: allreduce\nranks: 2\n")
    longboat.printed("up", 1)
    said = longboat("exec", "--rank", "1", longboat.id, "--", "sh", "-c", "echo $RANK of $WORLD_SIZE in $PWD; exit 7")
    assert (said.code, said.out) == (7, f"1 of 2 in {longboat.code}\n")
    pids = longboat("exec", longboat.id, "--", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").out
    assert pids.count("work.py") >= 2
    assert longboat("exec", longboat.id, "--", "sh", "-c", "kill -9 $$").code == 137
    missing = longboat("exec", longboat.id, "--", "no-such-program")
    assert missing.code == 127
    assert "no-such-program" in missing.err
    wrong = longboat("exec", "--rank", "5", longboat.id, "--", "true")
    assert (wrong.code, wrong.err.splitlines()[0]) == (2, "error: no such rank is running")
    longboat.file("go", "")
    assert longboat("wait").code == 0
    late = longboat("exec", longboat.id, "--", "true")
    assert (late.code, late.err.splitlines()[0]) == (2, f"error: no rank of {longboat.id} is running: it succeeded")


def test_two_runs_of_the_same_job_do_not_meet(longboat: Place) -> None:
    first, second = background(longboat), background(longboat)
    assert first != second
    assert longboat("exec", first, "--", "sh", "-c", "echo $LONGBOAT_RUN_ID").out == f"{first}\n"
    stopped = longboat("stop", "--json", first)
    assert (stopped.code, json.loads(stopped.out)["state"]) == (0, "stopped")
    longboat.file("go", "")
    assert longboat("wait", second).code == 0
    states = {run["id"]: run["state"] for run in json.loads(longboat("status", "--json").out)}
    assert states == {first: "stopped", second: "succeeded"}


def test_a_run_that_is_under_way_is_not_removed_unless_by_force(longboat: Place) -> None:
    run = background(longboat)
    said = longboat("rm", run)
    assert said.code == 2
    assert f"error: {run} is still running" in said.err
    assert longboat.status()["state"] == "running"
    assert longboat("rm", "--force", run).code == 0
    assert longboat.runs == []


def test_the_json_of_a_run_is_its_whole_journal(longboat: Place) -> None:
    longboat.file("work.sh", "echo 'longboat: step=1'; exit $((RANK * 3))\n")
    said = longboat.run("run: sh work.sh\nshape: allreduce\nranks: 2\nrestarts: 0\n", "--json")
    assert said.code == 1
    events = [json.loads(line) for line in said.out.splitlines()]
    assert events == longboat.events()
    assert (events[0]["ev"], events[-1]["ev"]) == ("run.started", "run.ended")


def test_quiet_leaves_out_what_the_ranks_print(longboat: Place) -> None:
    said = longboat.run("run: echo noise\n", "--quiet")
    assert said.code == 0
    assert "noise" not in said.err
    assert longboat.log() == "noise\n"


def test_from_python_a_job_is_planned_run_watched_and_removed(longboat: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in longboat.env.items():
        monkeypatch.setenv(name, value)
    path = longboat.job("params: {WORD: hello}\nrun: echo ${WORD} > $LONGBOAT_OUTPUT_DIR/file; echo said\n")
    job = api.load(path, set={"WORD": "bye"})
    assert job.plan().stage("main").roles[0].command[-1].startswith("echo bye")
    run = job.run()
    state = run.wait(PATIENCE)
    assert (state.state, state.code) == ("succeeded", 0)
    assert (run.output("main") / "file").read_text() == "bye\n"
    assert [line.text for line in run.logs()] == [b"said"]
    assert api.Run(run.id).directory == run.directory
    run.rm()
    assert not run.directory.exists()


def test_from_python_a_run_is_stopped_and_resumed(longboat: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in longboat.env.items():
        monkeypatch.setenv(name, value)
    run = api.load(longboat.job("run: [python, work.py]\n", work=WAIT)).run()
    longboat.printed("up")
    with pytest.raises(TimeoutError):
        run.wait(0.1)
    with pytest.raises(LongboatError, match="is still running"):
        run.rm()
    assert run.stop()
    assert run.status().state == "stopped"
    assert "stopped by Run.stop()" in run.why().headline
    longboat.file("go", "")
    assert run.resume().wait(PATIENCE).state == "succeeded"


def test_from_python_a_wrong_job_raises_one_error_with_all_its_problems(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: x\nrun: 'true'\nrestrats: 3\n")
    with pytest.raises(LongboatError, match="restrats"):
        api.load(tmp_path)


def test_strangers_at_the_drivers_door_do_not_disturb_the_run(longboat: Place) -> None:
    background(longboat)
    (scratch,) = longboat.scratch()
    door = str(longboat.tmp / scratch / "driver.sock")
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\0\0\0\2{}", b""):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
            stranger.settimeout(PATIENCE)
            stranger.connect(door)
            stranger.sendall(data)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(65536):
                pass
    assert oct((longboat.tmp / scratch).stat().st_mode & 0o777) == "0o700", "no other user even gets to the door"
    longboat.file("go", "")
    assert longboat("wait").code == 0
