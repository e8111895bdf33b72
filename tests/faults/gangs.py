"""Faults among ranks: signals, memory, hangs, peers, MPI."""

from __future__ import annotations

import signal

from longboat.runtime.causes import CauseKind
from tests.faults import injections as do
from tests.faults.fault import Fault

ONE = "run: [python, work.py]\nrestarts: 0\n"
TWO = "run: [python, work.py]\nshape: allreduce\nranks: 2\nrestarts: 0\n"
MPI = "run: python work.py\nshape: mpi\nranks: 2\nrestarts: 0\n"
HANG = TWO + "stall_after: 3\non_stall: fail\n"
"""Long enough for a slow machine to start the ranks and hear the first report of each."""
UP = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"

SIGNALS = (
    Fault(
        "SIGKILL from outside",
        CauseKind.KILLED,
        TWO,
        where="main/worker-1",
        because=("worker-0",),
        says=("killed by signal 9 (SIGKILL), sender unknown", "no out-of-memory kill was counted"),
        not_says=("out of memory\n",),
        work=UP,
        inject=do.signalled(signal.SIGKILL, 1, 2),
    ),
    Fault(
        "SIGTERM from outside",
        CauseKind.KILLED,
        TWO,
        says=("signal 15 (SIGTERM)",),
        because=("worker-1",),
        work=UP,
        inject=do.signalled(signal.SIGTERM, 0, 2),
    ),
    Fault(
        "a command that the shell reports as killed",
        CauseKind.KILLED,
        'run: "python work.py\\nexit $?"\nrestarts: 0\n',
        says=("signal 9 (SIGKILL)", "exit code 137"),
        work="import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n",
    ),
    Fault(
        "a segmentation fault",
        CauseKind.KILLED,
        ONE,
        says=("signal 11 (SIGSEGV)", "work.py:3 in poke"),
        work="import ctypes\ndef poke():\n    ctypes.string_at(0)\npoke()\n",
    ),
    Fault(
        "a segmentation fault below a shell",
        CauseKind.KILLED,
        'run: "python work.py; exit $?"\nrestarts: 0\n',
        says=("signal 11 (SIGSEGV)", "exit code 139", "work.py:3 in poke"),
        work="import ctypes\ndef poke():\n    ctypes.string_at(0)\npoke()\n",
    ),
    Fault(
        "an abort",
        CauseKind.KILLED,
        ONE,
        says=("signal 6 (SIGABRT)", "terminate called"),
        work="import os, sys\nprint('terminate called', file=sys.stderr)\nos.abort()\n",
    ),
    Fault(
        "a rank killed by the kernel for lack of memory",
        CauseKind.OUT_OF_MEMORY,
        ONE,
        says=("killed by the kernel because memory ran out", "1 out-of-memory kill", "SIGKILL", "limit of 96.0 MiB"),
        work="hog = b'x' * (200 << 20)\n",
        inject=do.in_little_memory,
    ),
    Fault(
        "a child of a rank killed by the kernel for lack of memory",
        CauseKind.OUT_OF_MEMORY,
        ONE,
        says=("out of memory", "1 out-of-memory kill", "RuntimeError: loader died: -9"),
        work="""\
            import subprocess, sys
            done = subprocess.run([sys.executable, "-c", "b'x' * (200 << 20)"])
            raise RuntimeError(f"loader died: {done.returncode}")
            """,
        inject=do.in_little_memory,
    ),
)

HANGS = (
    Fault(
        "a lock that is never given back",
        CauseKind.STALLED,
        HANG,
        where="main",
        says=("no progress was reported for 3 s", "worker-0", "worker-1", "work.py:6 in update", "sleeping"),
        work="""\
            import threading, longboat
            longboat.report(step=1)
            lock = threading.Lock()
            def update():
                lock.acquire()
                lock.acquire()
            update()
            """,
    ),
    Fault(
        "a loop that never ends",
        CauseKind.STALLED,
        HANG,
        where="main",
        says=("in spin", "running"),
        work="""\
            import longboat
            longboat.report(step=1)
            def spin():
                while True:
                    pass
            spin()
            """,
    ),
    Fault(
        "a rank that somebody stopped",
        CauseKind.STALLED,
        HANG,
        where="main",
        says=("worker-1", "stopped by a signal", "in train"),
        work="""\
            import time, longboat
            print("up", flush=True)
            def train():
                for step in range(100000):
                    longboat.report(step=step)
                    time.sleep(0.05)
            train()
            """,
        inject=do.at_step,
    ),
    Fault(
        "two ranks that wait for each other's message",
        CauseKind.STALLED,
        HANG,
        where="main",
        says=("work.py:11 in exchange", "worker-0", "worker-1", "sleeping"),
        work="""\
            import os, socket, longboat
            address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
            def meet():
                if os.environ["RANK"] == "0":
                    return socket.create_server(address).accept()[0]
                while True:
                    try: return socket.create_connection(address)
                    except ConnectionRefusedError: pass
            peer = meet(); longboat.report(step=1)
            def exchange():
                return peer.recv(8)
            exchange()
            """,
    ),
    Fault(
        "a program that is not Python and says nothing",
        CauseKind.STALLED,
        "run: [sleep, '600']\nrestarts: 0\nstall_after: 3\non_stall: fail\n",
        where="main",
        says=("no progress was reported for 3 s", "worker-0", "sleeping", "sleep 600"),
    ),
    Fault(
        "a stage that takes too long",
        CauseKind.TIMED_OUT,
        "run: sleep 600\ntimeout: 0.3\n",
        where="main",
        says=("the stage ran longer than its timeout of 0.3 s", "timeout:"),
    ),
)

PEERS = (
    Fault(
        "a rank that dies and a peer that loses its connection",
        CauseKind.KILLED,
        TWO,
        where="main/worker-1",
        because=("worker-0",),
        says=("signal 9 (SIGKILL)",),
        not_says=("failed: main/worker-0", "the program failed", "a connection was lost"),
        work="""\
            import os, signal, socket
            address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
            if os.environ["RANK"] == "0":
                peer, _ = socket.create_server(address).accept()
                if peer.recv(8) == b"":
                    raise ConnectionResetError("Connection reset by peer")
            while True:
                try: peer = socket.create_connection(address)
                except ConnectionRefusedError: continue
                os.kill(os.getpid(), signal.SIGKILL)
            """,
    ),
    Fault(
        "two ranks that fail for reasons of their own, half a second apart",
        CauseKind.USER_ERROR,
        TWO,
        because=("worker-1",),
        says=("ValueError: first",),
        not_says=("failed: main/worker-1",),
        work="""\
            import os, time
            here = os.environ["LONGBOAT_OUTPUT_DIR"] + "/"
            rank = os.environ["RANK"]
            with open(here + "new" + rank, "w") as file:
                file.write(str(os.getpid()))
            os.rename(here + "new" + rank, here + rank)
            while not all(os.path.exists(here + each) for each in "01"):
                time.sleep(0.001)
            def lives(pid):
                try:
                    return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "Z"
                except OSError:
                    return False
            if rank == "1":
                while lives(open(here + "0").read()):
                    time.sleep(0.001)
                time.sleep(0.5)
                raise OSError("second")
            raise ValueError("first")
            """,
    ),
    Fault(
        "a connection lost while all ranks live",
        CauseKind.LOST_RENDEZVOUS,
        ONE,
        says=("ConnectionResetError", "a connection was lost or never made", "work.py:1"),
        work="raise ConnectionResetError(104, 'Connection reset by peer')\n",
    ),
    Fault(
        "a parameter server that dies",
        CauseKind.USER_ERROR,
        "run: [python, work.py]\nshape: ps\nranks: {worker: 2, ps: 1}\nrestarts: 0\n",
        where="main/ps-0",
        because=("worker-0", "worker-1"),
        says=("KeyError: 'embedding'",),
        work="""\
            import os, time
            if os.environ["LONGBOAT_ROLE"] == "ps":
                raise KeyError("embedding")
            time.sleep(600)
            """,
        next="longboat logs {id} --role ps --rank 0 --tail 50",
    ),
    Fault(
        "a merge that fails",
        CauseKind.USER_ERROR,
        "run: 'true'\nshape: average\nranks: 2\nmerge: [python, work.py]\nrestarts: 0\n",
        where="main/merge-0",
        says=("ZeroDivisionError: division by zero",),
        work="1 / 0\n",
        next="longboat logs {id} --role merge --rank 0 --tail 50",
    ),
    Fault(
        "an agent that is killed",
        CauseKind.AGENT_LOST,
        TWO,
        where="main/worker-1",
        because=("worker-0",),
        says=("the agent was killed by signal 9 (SIGKILL), sender unknown",),
        work=UP,
        inject=do.agent_signalled(signal.SIGKILL, 1, 2),
    ),
    Fault(
        "a machine that is taken away, and a run that goes on",
        CauseKind.PREEMPTED,
        "run: [python, work.py]\nrestarts: 0\ngrace: 2\n",
        state="succeeded",
        says=("succeeded", "failed on the way", "preempted"),
        work="import os, time\nprint('up', flush=True)\nif os.environ['LONGBOAT_GENERATION'] == '1': time.sleep(600)\n",
        inject=do.agent_signalled(signal.SIGTERM),
        next="longboat logs {id}",
    ),
)

MPIS = (
    Fault(
        "an MPI worker that raises",
        CauseKind.USER_ERROR,
        MPI.replace("python ", "python -m mpi4py "),
        where="main/worker-1",
        because=("worker-0",),
        says=("ValueError: shard 1 is empty", "work.py:3"),
        work="""\
            from mpi4py import MPI
            if MPI.COMM_WORLD.Get_rank() == 1:
                raise ValueError("shard 1 is empty")
            MPI.COMM_WORLD.barrier()
            """,
        next="longboat logs {id} --role worker --rank 1 --tail 50",
    ),
    Fault(
        "an MPI worker that is killed",
        CauseKind.KILLED,
        MPI,
        where="main/worker-1",
        because=("worker-0",),
        says=("signal 9 (SIGKILL)",),
        work="""\
            import time
            from mpi4py import MPI
            MPI.COMM_WORLD.barrier()
            print("up", flush=True)
            time.sleep(600)
            """,
        inject=do.signalled(signal.SIGKILL, 1, 2),
    ),
    Fault(
        "MPI processes that do not see each other",
        CauseKind.MPI_MISMATCH,
        MPI,
        where="main/worker-*",
        says=(
            "mpirun and the program's MPI library do not match",
            "mpirun started 2 ranks, but this process sees a world of 1",
        ),
        work="""\
            import os
            for name in list(os.environ):
                if name.startswith(("PMI", "HYD", "MPI_")):
                    del os.environ[name]
            from mpi4py import MPI
            """,
        next="longboat doctor",
    ),
    Fault(
        "MPI workers that wait for each other",
        CauseKind.STALLED,
        MPI + "stall_after: 6\non_stall: fail\n",
        where="main",
        says=("no progress was reported for 6 s", "worker-0:", "work.py:6", "worker-1:", "work.py:8", "mpirun"),
        work="""\
            import longboat
            from mpi4py import MPI
            world = MPI.COMM_WORLD
            longboat.report(step=1)
            if world.Get_rank() == 0:
                world.recv(source=1)
            else:
                world.recv(source=0)
            """,
    ),
    Fault(
        "an mpirun that is gone",
        CauseKind.NOT_FOUND,
        "stages:\n  one: {run: 'rm env/mpirun'}\n"
        "  two: {run: python work.py, shape: mpi, python: ./env/python, after: one}\n",
        where="two/launcher-0",
        says=("no mpirun was found", "pip install mpich mpi4py"),
        inject=do.without_mpirun,
        next="longboat run {file}",
    ),
)
