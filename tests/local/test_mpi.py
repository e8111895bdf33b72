"""Shape `mpi`, with a real mpirun and a real MPI library."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from longboat.install_hint import install_command
from tests.local.place import Place, until

pytest.importorskip("mpi4py")

BIN = Path(sys.executable).parent

SUM = """
import os
from mpi4py import MPI
world = MPI.COMM_WORLD
total = world.allreduce(world.Get_rank() + 1)
print("rank", world.Get_rank(), "of", world.Get_size(), "sum", total, flush=True)
assert os.environ["LONGBOAT_RANK"] == os.environ["RANK"] == str(world.Get_rank())
assert os.environ["LONGBOAT_ROLE"] == "worker"
import longboat
longboat.report(step=world.Get_rank() + 10, total=20)
"""


def test_mpi_workers_reduce_together_and_each_has_its_own_log(longboat: Place) -> None:
    said = longboat.run("run: python sum.py\nshape: mpi\nranks: 3\n", sum=SUM)
    assert said.code == 0, said.err
    for rank in range(3):
        assert longboat.log(rank) == f"rank {rank} of 3 sum 6\n"
    assert longboat.ends() == {
        "main/worker-0": "succeeded",
        "main/worker-1": "succeeded",
        "main/worker-2": "succeeded",
        "main/launcher-0": "succeeded",
    }
    steps = {rank["rank"]: rank["step"] for rank in longboat.status()["stages"][0]["ranks"] if rank["role"] == "worker"}
    assert steps == {0: 10, 1: 11, 2: 12}


def test_the_worker_that_raises_is_the_cause_and_the_others_fall_with_it(longboat: Place) -> None:
    script = """
        import sys
        from mpi4py import MPI
        if MPI.COMM_WORLD.Get_rank() == 1:
            raise ValueError("shard 1 is empty")
        MPI.COMM_WORLD.barrier()
    """
    said = longboat.run("run: python -m mpi4py work.py\nshape: mpi\nranks: 2\nrestarts: 0\n", work=script)
    assert said.code == 1
    cause = longboat.cause
    assert (cause["role"], cause["rank"]) == ("worker", 1), cause
    assert cause["error"] == "ValueError: shard 1 is empty"
    assert "main/worker-1: the program failed: ValueError: shard 1 is empty" in longboat("why").out
    ended = {e["rank"]: e for e in longboat.events("rank.ended") if e["role"] == "worker"}
    assert ended[1]["state"] == "failed"
    assert (ended[0]["state"], ended[0]["because"]) == ("killed", "worker-1")


def test_a_worker_that_raises_before_it_meets_the_others_is_named_too(longboat: Place) -> None:
    script = """
        import os
        if os.environ["LONGBOAT_RANK"] == "0":
            import no_such_module
        from mpi4py import MPI
        MPI.COMM_WORLD.barrier()
    """
    said = longboat.run("run: python work.py\nshape: mpi\nranks: 2\nrestarts: 0\n", work=script)
    assert said.code == 1
    assert (longboat.cause["role"], longboat.cause["rank"]) == ("worker", 0)
    assert longboat.cause["error"] == "ModuleNotFoundError: No module named 'no_such_module'"


def test_mpi_ranks_that_come_up_alone_are_caught_before_they_train(longboat: Place) -> None:
    """Without its process manager's variables MPI starts as a world of one: what another MPI's mpirun leads to."""
    script = """
        import os
        for name in list(os.environ):
            if name.startswith(("PMI", "HYD", "MPI_")):
                del os.environ[name]
        from mpi4py import MPI
        print("trained alone")
    """
    said = longboat.run("run: python alone.py\nshape: mpi\nranks: 2\n", alone=script)
    assert said.code == 1
    assert longboat.cause["kind"] == "mpi_mismatch"
    assert "mpirun started 2 ranks, but this process sees a world of 1" in longboat.log(longboat.cause["rank"])
    assert "trained alone" not in longboat.log(0) + longboat.log(1)
    assert [e["gen"] for e in longboat.events("gen.started")] == [1]
    assert "mpirun and the program's MPI library do not match" in longboat("why").out


def test_no_mpirun_is_an_error_before_anything_starts_with_the_one_command_that_helps(longboat: Place) -> None:
    empty = longboat.code / "bin"
    empty.mkdir()
    os.symlink(sys.executable, empty / "python")
    has_one = [shutil.which(name) for name in ("mpirun", "mpiexec")]
    clean = ":".join(d for d in os.environ["PATH"].split(":") if not any(p and p.startswith(d) for p in has_one))
    said = longboat.run(f"run: python sum.py\nshape: mpi\npython: {empty}/python\n", env={"PATH": clean}, sum=SUM)
    assert said.code == 2
    assert "no mpirun was found" in said.err
    assert said.err.endswith(f"hint: install one: {install_command('mpi')}\n")
    assert longboat.runs == []


def test_a_killed_mpirun_takes_its_workers_along_and_the_gang_starts_again(longboat: Place) -> None:
    script = """
        import os, sys
        from mpi4py import MPI
        MPI.COMM_WORLD.barrier()
        print("up", flush=True)
        if os.environ["LONGBOAT_GENERATION"] == "1":
            import time
            time.sleep(600)
    """
    command = longboat.start("run: python work.py\nshape: mpi\nranks: 2\n", work=script)
    longboat.printed("up", 0)
    longboat.printed("up", 1)
    launcher = until(lambda: [e for e in longboat.events("rank.started") if e["role"] == "launcher"])[0]
    os.kill(launcher["pid"], signal.SIGKILL)
    assert command.said().code == 0, command.err
    assert [e["gen"] for e in longboat.events("gen.started")] == [1, 2]
    assert longboat.events("gen.ended")[0]["cause"]["kind"] == "killed_by_signal"
    for rank in (0, 1):  # MPI itself may complain of its launcher's end
        assert longboat.log(rank).splitlines().count("up") == 2, longboat.log(rank)


def test_stopping_an_mpi_run_ends_every_worker(longboat: Place) -> None:
    script = """
        import time
        from mpi4py import MPI
        MPI.COMM_WORLD.barrier()
        print("up", flush=True)
        time.sleep(600)
    """
    command = longboat.start("run: python work.py\nshape: mpi\nranks: 2\ngrace: 5\n", work=script)
    longboat.printed("up", 1)
    command.signal(signal.SIGINT)
    assert command.said().code == 130
    assert set(longboat.ends().values()) == {"stopped"}


def test_the_workers_of_an_mpi_run_are_asked_once_to_stop(longboat: Place) -> None:
    script = """
        import signal, time
        asked = []
        signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
        print("up", flush=True)
        while not asked:
            time.sleep(0.01)
        time.sleep(0.5)  # saves
        print("asked", len(asked), flush=True)
    """
    command = longboat.start("run: [python, work.py]\nshape: mpi\nranks: 2\n", work=script)
    for rank in range(2):
        longboat.printed("up", rank)
    command.signal(signal.SIGINT)
    command.said()
    for rank in range(2):
        assert longboat.log(rank) == "up\nasked 1\n"
