"""The shim that mpirun starts instead of the user's command, once for each MPI process.

It gets its rank from mpirun, opens the rank's log, runs the user's command with the rank's environment, and
records how it started and ended. It stays between mpirun and the command, so that an end is recorded even
when mpirun kills everything.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any, Dict

RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")


def main(settings_file: str) -> int:
    with open(settings_file, encoding="utf-8") as file:
        settings: Dict[str, Any] = json.load(file)
    sys.path.append(settings["package"])
    rank = int(next(os.environ[name] for name in RANKS if name in os.environ))
    mine = settings["ranks"][rank]
    env = dict(os.environ)
    env.update(mine["env"])
    env["LONGBOAT_MPI_SIZE"] = str(settings["size"])
    return _run(settings, mine, rank, env)


def _run(settings: Dict[str, Any], mine: Dict[str, Any], rank: int, env: Dict[str, str]) -> int:
    from longboat.runtime.agent import exit_causes, syscalls
    from longboat.runtime.agent.rank_process import CannotStart, RankProcess
    from longboat.runtime.journal import plain

    def record(kind: str, **keys: Any) -> None:
        line = json.dumps({"is": kind, "rank": rank, "at": time.time(), **keys}, separators=(",", ":")) + "\n"
        fd = os.open(settings["records"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, line.encode("utf-8", "backslashreplace"))
        os.close(fd)

    syscalls.adopt_orphans()
    os.makedirs(os.path.dirname(mine["reports"]), exist_ok=True)
    reported = os.path.getsize(mine["reports"]) if os.path.exists(mine["reports"]) else 0
    kills = max(exit_causes.oom_kills(), 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    syscalls.become_relay()  # mpirun signals only this process; an agent that stops the run signals all
    try:
        process = RankProcess(settings["command"], env, os.getcwd(), mine["log"])
    except CannotStart as failure:
        cause = exit_causes.of_start(failure, env.get("PATH", ""))
        record("ended", code=127, cause=plain(cause))
        return 127
    record("started", pid=process.pid, log_offset=process.log_offset, report_offset=reported)
    signal.signal(signal.SIGTERM, lambda *_: process.end(3600))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
    code, signum = process.wait()
    lines = exit_causes.tail(mine["log"], process.log_offset)
    now = exit_causes.oom_kills()
    oom = now - kills if now >= 0 else -1
    cause_ = exit_causes.of_exit(code, signum, lines, oom, False, settings["run_dir"])
    keys = {"role": "worker", "rank": rank}
    record("ended", code=code, signal=signum or None, cause={**plain(cause_), **keys} if cause_ else None)
    return 128 + signum if signum else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
