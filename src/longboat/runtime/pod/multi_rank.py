"""Several ranks in one pod: one agent for each, in one container, so that their GPUs see each other.

The pod is prepared once, and the code tree is shared, as on one machine. Without a shared disk each agent has its
own run directory, because it sends everything in it. They end together: when one dies, the container ends, and the
driver learns of all.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Dict, List, Mapping

from longboat.runtime.agent import syscalls
from longboat.runtime.kube_client import names
from longboat.runtime.pod import rank_pod
from longboat.runtime.seat import Seat

PREFIX = "LONGBOAT_AGENT_"


def main(environ: Mapping[str, str]) -> int:
    """Run one agent for each seat of the pod; the environment names the first."""
    agents: Dict[int, str] = {}
    first = os.getpid()
    signal.signal(signal.SIGTERM, lambda *_: syscalls.signal_all(list(agents), signal.SIGTERM))
    for env in environments(environ):
        if env[f"{PREFIX}DIRECTORY"] != environ[f"{PREFIX}DIRECTORY"]:
            os.makedirs(env[f"{PREFIX}DIRECTORY"], exist_ok=True)
            rank_pod.place_plan(env[f"{PREFIX}DIRECTORY"])
        agents[syscalls.fork(lambda env=env: _run_agent(env, first))] = env[f"{PREFIX}SEAT"]  # type: ignore[misc]
    while agents:
        pid, status = os.wait()  # also for orphans: this is the container's first process
        seat = agents.pop(pid, "")
        code = os.waitstatus_to_exitcode(status)
        if seat and code:
            sys.stderr.write(f"the agent of {seat} exited with code {code}; the other agents in its pod stop too\n")
            return code if code > 0 else 128 - code
    return 0


def environments(environ: Mapping[str, str]) -> List[Dict[str, str]]:
    """The environment of each agent: its seat, directory and GPUs."""
    seat = Seat.parse(environ[f"{PREFIX}SEAT"])
    size, gpus = int(environ[f"{PREFIX}CREW"]), int(environ.get(f"{PREFIX}GPUS") or 0)
    shared = not environ.get(f"{PREFIX}DEPOT")
    envs = []
    for number in range(size):
        env = {**environ, f"{PREFIX}SEAT": seat._replace(rank=seat.rank + number).name, f"{PREFIX}PORTS": ""}
        env[f"{PREFIX}GPUS"] = ",".join(str(number * gpus + gpu) for gpu in range(gpus))
        if not shared:
            env[f"{PREFIX}DIRECTORY"] = f"{names.RUN}/{number}"
        envs.append(env)
    return envs


def _run_agent(environ: Mapping[str, str], parent: int) -> int:
    from longboat.runtime.agent.__main__ import main as run_agent

    syscalls.die_with_parent(parent)
    return run_agent(environ)
