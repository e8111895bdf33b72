"""What happens after a rank falls: restarts, their end, and the cause that is told."""

from __future__ import annotations

import os
import signal

import pytest

from tests.local.place import Place, until

ONCE = """
import os, sys
print("generation", os.environ["LONGBOAT_GENERATION"], flush=True)
if os.environ["LONGBOAT_GENERATION"] == "1" and os.environ["LONGBOAT_RANK"] == "1":
    sys.exit(7)
"""


def test_a_gang_whose_rank_crashes_once_starts_again_and_succeeds(longboat: Place) -> None:
    said = longboat.run("run: python once.py\nshape: allreduce\nranks: 2\n", once=ONCE)
    assert said.code == 0, said.err
    assert [(e["gen"], e["reason"]) for e in longboat.events("gen.started")] == [(1, "first"), (2, "user_error")]
    assert longboat.log(1) == "generation 1\ngeneration 2\n"
    first = longboat.events("gen.ended")[0]
    assert (first["state"], first["cause"]["rank"], first["cause"]["exit_code"]) == ("failed", 1, 7)
    assert "main/worker-1" in longboat("why").out, "a failure that was made good is told too"


def test_no_process_of_a_generation_starts_before_the_last_one_of_the_old_has_ended(longboat: Place) -> None:
    script = """
        import os, time, signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        here = os.environ["LONGBOAT_OUTPUT_DIR"]
        generation, rank = os.environ["LONGBOAT_GENERATION"], os.environ["LONGBOAT_RANK"]
        alive = [name for name in os.listdir(here) if name.startswith("alive") and not name.endswith("." + generation)]
        for name in alive:
            pid = int(open(os.path.join(here, name)).read())
            assert not os.path.exists(f"/proc/{pid}"), "an old process is alive"
        with open(os.path.join(here, f"alive-{rank}.{generation}"), "w") as file:
            file.write(str(os.getpid()))
        if int(generation) < 3:
            while len([name for name in os.listdir(here) if name.endswith("." + generation)]) < 2:
                time.sleep(0.005)
            if rank == "0":
                raise SystemExit(int(generation))
            time.sleep(600)
    """
    said = longboat.run("run: python work.py\nshape: allreduce\nranks: 2\n", work=script)
    assert said.code == 0, longboat.log(0) + longboat.log(1)
    assert [e["gen"] for e in longboat.events("gen.started")] == [1, 2, 3]


def test_restarts_are_spent_one_by_one_and_then_the_run_fails(longboat: Place) -> None:
    script = "import os, sys\nsys.exit(10 + int(os.environ['LONGBOAT_GENERATION']))\n"
    said = longboat.run("run: python work.py\nrestarts: 2\n", work=script)
    assert said.code == 1
    assert [e["gen"] for e in longboat.events("gen.started")] == [1, 2, 3]
    assert longboat.cause["exit_code"] == 13
    assert longboat.events("run.ended")[0]["code"] == 1


def test_the_same_failure_twice_without_progress_is_not_tried_a_third_time(longboat: Place) -> None:
    said = longboat.run("run: exit 3\nrestarts: 9\n")
    assert said.code == 1
    assert [e["gen"] for e in longboat.events("gen.started")] == [1, 2]
    notes = [e["text"] for e in longboat.events("note")]
    assert any("the same failure twice" in note for note in notes), notes
    assert "the same failure twice" in said.err


def test_the_same_failure_after_progress_is_tried_again(longboat: Place) -> None:
    script = """
        import os, sys, longboat
        longboat.report(step=int(os.environ["LONGBOAT_GENERATION"]))
        sys.exit(3)
    """
    said = longboat.run("run: python work.py\nrestarts: 3\n", work=script)
    assert said.code == 1
    assert [e["gen"] for e in longboat.events("gen.started")] == [1, 2, 3, 4]


@pytest.mark.parametrize("command", ["no-such-program --fast", "[no-such-program, --fast]"])
def test_a_command_that_is_not_found_fails_at_once_and_is_named(longboat: Place, command: str) -> None:
    said = longboat.run(f"run: {command}\nshape: allreduce\nranks: 2\nretries: 4\n")
    assert said.code == 1
    assert longboat.cause["kind"] == "command_not_found"
    assert "no-such-program" in said.err
    assert [e["gen"] for e in longboat.events("gen.started")] == [1]
    assert [e["attempt"] for e in longboat.events("stage.started")] == [1]


@pytest.mark.parametrize("command", ["./script.sh", "[./script.sh]"])
def test_a_script_without_its_run_bit_fails_at_once_with_the_fix(longboat: Place, command: str) -> None:
    longboat.file("script.sh", "#!/bin/sh\necho ran\n")
    said = longboat.run(f"run: {command}\n")
    assert said.code == 1
    assert longboat.cause["kind"] == "command_not_executable"
    assert "chmod +x" in longboat("why").out
    assert [e["gen"] for e in longboat.events("gen.started")] == [1]


def test_a_script_whose_interpreter_is_missing_says_so(longboat: Place) -> None:
    longboat.file("script.sh", "#!/no/such/interpreter\n").chmod(0o755)
    assert longboat.run("run: [./script.sh]\n").code == 1
    assert longboat.cause["kind"] == "command_not_found"
    assert "the interpreter in the first line of ./script.sh was not found" in longboat("why").out


def test_one_rank_that_dies_at_import_is_the_cause_and_its_peers_are_consequences(longboat: Place) -> None:
    script = """
        import os, time
        if os.environ["RANK"] == "1":
            import no_such_module
        time.sleep(600)
    """
    said = longboat.run("run: python work.py\nshape: allreduce\nranks: 3\nrestarts: 0\n", work=script)
    assert said.code == 1
    cause = longboat.cause
    assert (cause["role"], cause["rank"], cause["kind"]) == ("worker", 1, "user_error")
    assert cause["error"] == "ModuleNotFoundError: No module named 'no_such_module'"
    assert "work.py:4" in cause["frame"]
    ended = longboat.events("gen.ended")[0]
    assert sorted(ended["consequences"]) == ["worker-0", "worker-2"]
    assert longboat.ends() == {"main/worker-0": "killed", "main/worker-1": "failed", "main/worker-2": "killed"}
    why = longboat("why").out
    assert "where: main/worker-1, generation 1" in why
    assert "stopped because of it: worker-0, worker-2" in why
    assert f"longboat logs {longboat.id} --role worker --rank 1 --tail 50" in why


def test_an_exit_code_is_told_as_it_was(longboat: Place) -> None:
    said = longboat.run("run: exit 42\nrestarts: 0\n")
    assert said.code == 1
    assert longboat.cause["exit_code"] == 42
    assert "exit code 42" in longboat("why").out


def test_a_killed_rank_is_told_honestly_without_guessing_at_memory(longboat: Place) -> None:
    said = longboat.run("run: kill -9 $$\nrestarts: 0\n")
    assert said.code == 1
    cause = longboat.cause
    assert (cause["kind"], cause["signal"]) == ("killed_by_signal", 9)
    assert cause["evidence"] in (
        ["no out-of-memory kill was counted"],
        ["the kernel's out-of-memory counter cannot be read here"],
    )
    assert "SIGKILL" in longboat("why").out


def test_a_segmentation_fault_is_named(longboat: Place) -> None:
    script = "import ctypes\nprint('before', flush=True)\nctypes.string_at(0)\n"
    said = longboat.run("run: [python, work.py]\nrestarts: 0\n", work=script)
    assert said.code == 1
    assert longboat.cause["signal"] == signal.SIGSEGV
    assert "SIGSEGV" in longboat("why").out
    assert longboat.log().startswith("before\n")


def test_what_a_rank_leaves_running_is_ended_with_it(longboat: Place) -> None:
    longboat.file("left.sh", "setsid sleep 600 & (setsid sleep 601 &) ; echo up\n")
    said = longboat.run("run: sh left.sh\n")
    assert said.code == 0
    longboat.nothing_is_left()


def test_a_stage_that_takes_too_long_is_ended_with_that_cause(longboat: Place) -> None:
    said = longboat.run("run: sleep 600\ntimeout: 0.5\n")
    assert said.code == 1
    assert longboat.cause["kind"] == "timed_out"
    assert "the stage ran longer than its timeout of 0.5 s" in said.err
    assert [e["gen"] for e in longboat.events("gen.started")] == [1]


def test_a_gang_without_progress_is_stalled_its_stacks_are_kept_and_it_starts_again(longboat: Place) -> None:
    script = """
        import os, time, longboat
        here, generation = os.environ["LONGBOAT_OUTPUT_DIR"], os.environ["LONGBOAT_GENERATION"]
        open(f"{here}/{generation}-{os.environ['RANK']}", "w").close()
        while not all(os.path.exists(f"{here}/{generation}-{rank}") for rank in (0, 1)):
            time.sleep(0.005)  # else the one may be looked at before the other hangs
        longboat.report(step=1)
        def hang_here():
            time.sleep(600)
        if os.environ["LONGBOAT_GENERATION"] == "1":
            hang_here()
    """
    said = longboat.run("run: python work.py\nshape: allreduce\nranks: 2\nstall_after: 4\n", work=script)
    assert said.code == 0, said.err
    assert [(e["gen"], e["reason"]) for e in longboat.events("gen.started")] == [(1, "first"), (2, "stalled")]
    for rank in (0, 1):
        assert "hang_here" in (longboat.dir / f"stacks/main/worker-{rank}.txt").read_text()


def test_a_killed_agent_costs_a_restart_and_leaves_none_of_its_processes(longboat: Place) -> None:
    script = """
        import os, subprocess, time
        if os.environ["LONGBOAT_GENERATION"] == "1":
            subprocess.Popen(["setsid", "sleep", "600"])
            print("up", flush=True)
            time.sleep(600)
    """
    command = longboat.start("run: python work.py\nshape: allreduce\nranks: 2\n", work=script)
    longboat.printed("up", 0)
    longboat.printed("up", 1)
    rank = until(lambda: [e for e in longboat.events("rank.started") if e["rank"] == 1])[0]["pid"]
    os.kill(parent_of(rank), signal.SIGKILL)
    assert command.said().code == 0, command.err
    first = longboat.events("gen.ended")[0]
    assert (first["cause"]["kind"], first["cause"]["rank"]) == ("agent_lost", 1)
    assert longboat.events("gen.started")[1]["reason"] == "agent_lost"


def test_all_agents_killed_at_once_cost_one_restart(longboat: Place) -> None:
    script = """
        import os, time
        print("up", flush=True)
        if os.environ["LONGBOAT_GENERATION"] == "1":
            time.sleep(600)
    """
    command = longboat.start("run: python work.py\nshape: allreduce\nranks: 3\nrestarts: 1\n", work=script)
    for rank in range(3):
        longboat.printed("up", rank)
    until(lambda: len(longboat.events("rank.started")) == 3)
    agents = [parent_of(e["pid"]) for e in longboat.events("rank.started")]
    os.kill(command.pid, signal.SIGSTOP)  # else a slow machine kills the second when the first is forgotten
    for agent in agents:
        os.kill(agent, signal.SIGKILL)
    os.kill(command.pid, signal.SIGCONT)
    assert command.said().code == 0, command.err
    assert [e["gen"] for e in longboat.events("gen.started")] == [1, 2]


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])
