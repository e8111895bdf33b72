"""Runs that nobody watches: --detach, attach, wait, exec, several at once, the Python API."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest

import windlass as api
from tests.local.place import PATIENCE, Place, until
from windlass.errors import WindlassError

WAIT = """
import os, sys, time
print("up", flush=True)
while not os.path.exists("go"):
    time.sleep(0.005)
print("went", flush=True)
sys.exit(int(open("go").read() or 0))
"""


def background(windlass: Place, more: str = "restarts: 0\n") -> str:
    """A run that waits for the file `go`; its id."""
    job = windlass.job("run: [python, work.py]\n" + more, work=WAIT)
    said = windlass("run", job, "--detach")
    assert said.code == 0, said.err
    windlass.printed("up")
    return said.out.strip()


def test_a_detached_run_returns_its_id_and_goes_on_by_itself(windlass: Place) -> None:
    run = background(windlass)
    assert run == windlass.id
    assert windlass.status()["state"] == "running"
    driver = windlass.events("run.started")[0]["pid"]
    assert os.getsid(driver) == driver, "it must not hear of the end of the terminal it came from"
    windlass.file("go", "")
    assert windlass("wait", run).code == 0
    assert windlass.log() == "up\nwent\n"


def test_attach_shows_a_run_to_its_end_and_takes_over_its_exit_code(windlass: Place) -> None:
    run = background(windlass)
    attached = windlass.begin("attach", run)
    until(lambda: "attached to" in attached.err)
    waiting = windlass.begin("wait", run)
    windlass.file("go", "5")
    said = attached.said()
    assert said.code == 1
    assert "[worker-0] went" in said.err
    assert f"windlass why {run}" in said.err
    assert waiting.said().code == 1


def test_ctrl_c_in_attach_ends_the_viewing_only(windlass: Place) -> None:
    run = background(windlass)
    attached = windlass.begin("attach", run)
    until(lambda: "attached to" in attached.err)
    attached.signal(signal.SIGINT)
    said = attached.said()
    assert said.code == 130
    assert f"{run} goes on" in said.err
    assert windlass.status()["state"] == "running"
    windlass.file("go", "")
    assert windlass("wait", run).code == 0


def test_wait_gives_up_after_its_timeout_and_the_run_goes_on(windlass: Place) -> None:
    run = background(windlass)
    said = windlass("wait", run, "--timeout", "0.2s")
    assert said.code == 1
    assert "it goes on" in said.err
    windlass.file("go", "")
    assert windlass("wait", run).code == 0


def test_exec_runs_beside_a_rank_in_its_environment_and_box_and_gives_its_exit_code(windlass: Place) -> None:
    background(windlass, "shape: allreduce\nranks: 2\n")
    windlass.printed("up", 1)
    said = windlass("exec", "--rank", "1", windlass.id, "--", "sh", "-c", "echo $RANK of $WORLD_SIZE in $PWD; exit 7")
    assert (said.code, said.out) == (7, f"1 of 2 in {windlass.code}\n")
    pids = windlass("exec", windlass.id, "--", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").out
    assert pids.count("work.py") >= 2
    assert windlass("exec", windlass.id, "--", "sh", "-c", "kill -9 $$").code == 137
    missing = windlass("exec", windlass.id, "--", "no-such-program")
    assert missing.code == 127
    assert "no-such-program" in missing.err
    wrong = windlass("exec", "--rank", "5", windlass.id, "--", "true")
    assert (wrong.code, wrong.err.splitlines()[0]) == (2, "error: no such rank is running")
    windlass.file("go", "")
    assert windlass("wait").code == 0
    late = windlass("exec", windlass.id, "--", "true")
    assert (late.code, late.err.splitlines()[0]) == (2, f"error: no rank of {windlass.id} is running: it is succeeded")


def test_two_runs_of_the_same_job_do_not_meet(windlass: Place) -> None:
    first, second = background(windlass), background(windlass)
    assert first != second
    assert windlass("exec", first, "--", "sh", "-c", "echo $WINDLASS_RUN_ID").out == f"{first}\n"
    stopped = windlass("stop", "--json", first)
    assert (stopped.code, json.loads(stopped.out)["state"]) == (0, "stopped")
    windlass.file("go", "")
    assert windlass("wait", second).code == 0
    states = {run["id"]: run["state"] for run in json.loads(windlass("status", "--json").out)}
    assert states == {first: "stopped", second: "succeeded"}


def test_a_run_that_is_under_way_is_not_removed_unless_by_force(windlass: Place) -> None:
    run = background(windlass)
    said = windlass("rm", run)
    assert said.code == 2
    assert f"error: {run} is under way" in said.err
    assert windlass.status()["state"] == "running"
    assert windlass("rm", "--force", run).code == 0
    assert windlass.runs == []


def test_the_json_of_a_run_is_its_whole_journal(windlass: Place) -> None:
    windlass.file("work.sh", "echo 'windlass: step=1'; exit $((RANK * 3))\n")
    said = windlass.run("run: sh work.sh\nshape: allreduce\nranks: 2\nrestarts: 0\n", "--json")
    assert said.code == 1
    events = [json.loads(line) for line in said.out.splitlines()]
    assert events == windlass.events()
    assert (events[0]["ev"], events[-1]["ev"]) == ("run.started", "run.ended")


def test_quiet_leaves_out_what_the_ranks_print(windlass: Place) -> None:
    said = windlass.run("run: echo noise\n", "--quiet")
    assert said.code == 0
    assert "noise" not in said.err
    assert windlass.log() == "noise\n"


def test_from_python_a_job_is_planned_run_watched_and_removed(windlass: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in windlass.env.items():
        monkeypatch.setenv(name, value)
    path = windlass.job("params: {WORD: hello}\nrun: echo ${WORD} > $WINDLASS_OUTPUT_DIR/file; echo said\n")
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


def test_from_python_a_run_is_stopped_and_resumed(windlass: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in windlass.env.items():
        monkeypatch.setenv(name, value)
    run = api.load(windlass.job("run: [python, work.py]\n", work=WAIT)).run()
    windlass.printed("up")
    with pytest.raises(TimeoutError):
        run.wait(0.1)
    with pytest.raises(WindlassError, match="is under way"):
        run.rm()
    assert run.stop()
    assert run.status().state == "stopped"
    assert "stopped by Run.stop()" in run.why().headline
    windlass.file("go", "")
    assert run.resume().wait(PATIENCE).state == "succeeded"


def test_from_python_a_wrong_job_raises_one_error_with_all_its_problems(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: x\nrun: 'true'\nrestrats: 3\n")
    with pytest.raises(WindlassError, match="restrats"):
        api.load(tmp_path)


def test_strangers_at_the_drivers_door_do_not_disturb_the_run(windlass: Place) -> None:
    background(windlass)
    (scratch,) = windlass.scratch()
    door = str(windlass.tmp / scratch / "driver.sock")
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\0\0\0\2{}", b""):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
            stranger.settimeout(PATIENCE)
            stranger.connect(door)
            stranger.sendall(data)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(65536):
                pass
    assert oct((windlass.tmp / scratch).stat().st_mode & 0o777) == "0o700", "no other user even gets to the door"
    windlass.file("go", "")
    assert windlass("wait").code == 0
