"""Faults of the program itself: what it raises, how it exits, how it is called."""

from __future__ import annotations

from longboat.runtime.causes import CauseKind
from tests.faults.fault import Fault

ONE = "run: [python, work.py]\nrestarts: 0\n"
THREE = "run: [python, work.py]\nshape: allreduce\nranks: 3\nrestarts: 0\n"
LOGS = "longboat logs {id} --role worker --rank 0 --tail 50"

RAISED = (
    Fault(
        "an exception",
        CauseKind.USER_ERROR,
        ONE,
        says=(
            "failed: main/worker-0: the program failed: ValueError: batch 7 is empty",
            "work.py:2 in train",
            "exit code 1",
        ),
        work="def train():\n    raise ValueError('batch 7 is empty')\ntrain()\n",
        next=LOGS,
    ),
    Fault(
        "an exception raised from another",
        CauseKind.USER_ERROR,
        ONE,
        says=("RuntimeError: no weights", "work.py:4", "KeyError: 'conv1'"),
        work="try:\n    {}['conv1']\nexcept KeyError as error:\n    raise RuntimeError('no weights') from error\n",
    ),
    Fault(
        "a group of exceptions",
        CauseKind.USER_ERROR,
        ONE,
        says=("ExceptionGroup: two shards failed (2 sub-exceptions)", "work.py:1", "OSError: shard 3"),
        work="raise ExceptionGroup('two shards failed', [ValueError('shard 1'), OSError('shard 3')])\n",
    ),
    Fault(
        "a custom exception without a message",
        CauseKind.USER_ERROR,
        ONE,
        says=("the program failed: Diverged", "work.py:3"),
        work="class Diverged(Exception):\n    pass\nraise Diverged\n",
    ),
    Fault(
        "a script that does not parse",
        CauseKind.USER_ERROR,
        ONE,
        says=("SyntaxError: '(' was never closed", "work.py:2"),
        work="import os\nprint((\n",
    ),
    Fault(
        "an import that fails in one rank of three",
        CauseKind.USER_ERROR,
        THREE,
        where="main/worker-1",
        because=("worker-0", "worker-2"),
        says=("ImportError: cannot import name 'nothing' from 'json'", "work.py:3"),
        work="import os, time\nif os.environ['RANK'] == '1':\n    from json import nothing\ntime.sleep(600)\n",
        next="longboat logs {id} --role worker --rank 1 --tail 50",
    ),
    Fault(
        "an assertion without a text",
        CauseKind.USER_ERROR,
        ONE,
        says=("the program failed: AssertionError", "work.py:1"),
        work="assert 1 == 2\n",
    ),
    Fault(
        "a recursion without end",
        CauseKind.USER_ERROR,
        ONE,
        says=("RecursionError: maximum recursion depth exceeded", "work.py:2 in down"),
        work="def down(n):\n    return down(n + 1)\ndown(0)\n",
    ),
    Fault(
        "an exception inside a library",
        CauseKind.USER_ERROR,
        ONE,
        says=("json.decoder.JSONDecodeError: Expecting value", "work.py:2 in read"),
        not_says=("at /usr/lib",),
        work="def read(text):\n    return __import__('json').loads(text)\nread('')\n",
    ),
    Fault(
        "an exception in a worker process of a pool",
        CauseKind.USER_ERROR,
        ONE,
        says=("ValueError: bad shard 3", "work.py:7"),
        work="""\
            import multiprocessing
            def load(n):
                if n == 3:
                    raise ValueError(f"bad shard {n}")
            if __name__ == "__main__":
                with multiprocessing.get_context("fork").Pool(2) as pool:
                    pool.map(load, range(5))
            """,
    ),
    Fault(
        "an exception in a thread, then exit code 3",
        CauseKind.USER_ERROR,
        ONE,
        says=(
            "exit code 3",
            "ZeroDivisionError: division by zero",
            "work.py:3 in feed",
            "raised in thread Thread-1 (feed)",
        ),
        work="""\
            import sys, threading
            def feed():
                1 / 0
            thread = threading.Thread(target=feed)
            thread.start()
            thread.join()
            sys.exit(3)
            """,
    ),
    Fault(
        "a traceback that was handled long before another end",
        CauseKind.USER_ERROR,
        ONE,
        says=(
            "exit code 9",
            "out of patience",
            "the last traceback, 31 lines before the end of the log",
            "KeyError: 'lr'",
        ),
        not_says=("the program failed: KeyError",),
        work="""\
            import sys, traceback
            try:
                {}["lr"]
            except KeyError:
                traceback.print_exc()
            for step in range(30):
                print("step", step)
            print("out of patience")
            sys.exit(9)
            """,
    ),
    Fault(
        "a traceback with other output behind it",
        CauseKind.USER_ERROR,
        ONE,
        says=("the program failed: ValueError: boom", "work.py:4", "11 lines follow the error in the log"),
        work="""\
            import atexit
            def goodbye():
                print(*(f"closing file {n}" for n in range(11)), sep="\\n")
            atexit.register(goodbye); raise ValueError("boom")
            """,
    ),
    Fault(
        "a traceback that is not UTF-8",
        CauseKind.USER_ERROR,
        ONE,
        says=("the program failed: ValueError: caf", "work.py:3"),
        work="import sys\nsys.stderr.reconfigure(encoding='latin-1')\nraise ValueError('caf\\xe9 \\xff')\n",
    ),
    Fault(
        "sys.exit with a text",
        CauseKind.USER_ERROR,
        ONE,
        says=("exit code 1", "no data in /datasets"),
        work="import sys\nsys.exit('no data in /datasets')\n",
    ),
    Fault(
        "memory that Python itself could not get",
        CauseKind.OUT_OF_MEMORY,
        ONE,
        says=("out of memory: the program could not allocate memory", "MemoryError", "work.py:3"),
        work="import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\nbytearray(1 << 33)\n",
    ),
)

EXITS = (
    Fault(
        "an exit code and no word", CauseKind.USER_ERROR, "run: exit 42\nrestarts: 0\n", says=("exited with code 42",)
    ),
    Fault(
        "the highest exit code", CauseKind.USER_ERROR, "run: exit 255\nrestarts: 0\n", says=("exited with code 255",)
    ),
    Fault(
        "a program that is not Python",
        CauseKind.USER_ERROR,
        "run: [awk, 'BEGIN { print \"shard 3 is torn\"; exit 6 }']\nrestarts: 0\n",
        says=("exited with code 6", "shard 3 is torn"),
    ),
    Fault(
        "a script that is not there",
        CauseKind.USER_ERROR,
        "run: [python, nowhere.py]\nrestarts: 0\n",
        says=("exited with code 2", "can't open file", "nowhere.py"),
    ),
    Fault(
        "the same failure twice without progress",
        CauseKind.USER_ERROR,
        "run: exit 3\nrestarts: 9\n",
        says=("exited with code 3", "not restarted: the same failure twice without progress", "generation 2"),
    ),
    Fault(
        "restarts and retries that are spent",
        CauseKind.USER_ERROR,
        "run: [python, work.py]\nrestarts: 1\nretries: 1\n",
        says=("exited with code 14", "generation 4", "attempt 2", "failed before", "exited with code 11"),
        work="import os, sys\nsys.exit(10 + int(os.environ['LONGBOAT_GENERATION']))\n",
    ),
)

COMMANDS = (
    Fault(
        "a command that is not there",
        CauseKind.NOT_FOUND,
        "run: [no-such-program, --fast]\n",
        says=("the command no-such-program was not found", "PATH="),
        next="longboat run {file}",
    ),
    Fault(
        "a command that is not there, in a shell",
        CauseKind.NOT_FOUND,
        "run: no-such-program --fast\n",
        says=("no-such-program: not found", "exit code 127"),
        next="longboat run {file}",
    ),
    Fault(
        "a script without its run bit",
        CauseKind.NOT_EXECUTABLE,
        "run: [./script.sh]\n",
        says=("./script.sh is not executable", "chmod +x ./script.sh"),
        files={"script.sh": "#!/bin/sh\n"},
        next="longboat run {file}",
    ),
    Fault(
        "a script without its run bit, in a shell",
        CauseKind.NOT_EXECUTABLE,
        "run: ./script.sh\n",
        says=("script.sh: Permission denied", "exit code 126", "chmod +x"),
        files={"script.sh": "#!/bin/sh\n"},
        next="longboat run {file}",
    ),
    Fault(
        "a script whose interpreter is not there",
        CauseKind.NOT_FOUND,
        "run: [./tool]\n",
        says=("the interpreter in the first line of ./tool was not found", "/no/such/python"),
        files={"tool": "#!/no/such/python\n"},
        next="longboat run {file}",
    ),
    Fault(
        "a code directory that is gone",
        CauseKind.MISSING_INPUT,
        "code: tree\nstages:\n  one: {run: 'rmdir $PWD'}\n  two: {run: 'true', after: one}\n",
        where="two/worker-0",
        says=("cannot enter the code directory", "tree", "No such file or directory"),
        files={"tree/": ""},
        next="longboat plan {file}",
    ),
    Fault(
        "a bucket that nothing entitles to read",
        CauseKind.MISSING_INPUT,
        "run: 'true'\nstorage: {data: s3://somewhere/data}\n",
        says=("storage data could not be fetched: no credentials for S3 found", "AWS_ACCESS_KEY_ID"),
        env={"AWS_SHARED_CREDENTIALS_FILE": "/nowhere"},
        next="longboat plan {file}",
    ),
)
