"""Several ranks in one pod: an agent for each, in one container, so that their GPUs see each other.

The pod was prepared once; the code tree is shared, as it is on one machine. Each agent has a run
directory of its own where none is shared by all pods, for it sends what it finds there. They end
together: when one of them dies, the container ends, and the driver is told of all.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Dict, List, Mapping

from longboat.runtime.agent import syscalls
from longboat.runtime.kube_client import names
from longboat.runtime.pod import rank_pod

PREFIX = "LONGBOAT_AGENT_"


def main(environ: Mapping[str, str]) -> int:
    """As many agents as the pod has seats; the environment names the first."""
    agents: Dict[int, str] = {}
    first = os.getpid()
    signal.signal(signal.SIGTERM, lambda *_: syscalls.signal_all(list(agents), signal.SIGTERM))
    for told in environments(environ):
        if told[f"{PREFIX}DIRECTORY"] != environ[f"{PREFIX}DIRECTORY"]:
            os.makedirs(told[f"{PREFIX}DIRECTORY"], exist_ok=True)
            rank_pod.place_plan(told[f"{PREFIX}DIRECTORY"])
        agents[syscalls.fork(lambda told=told: _be_agent(told, first))] = told[f"{PREFIX}SEAT"]  # type: ignore[misc]
    while agents:
        pid, status = os.wait()  # also for whoever lost its parent: this is the container's first process
        seat = agents.pop(pid, "")
        code = os.waitstatus_to_exitcode(status)
        if seat and code:
            sys.stderr.write(f"the agent of {seat} ended with {code}, and with it the others in its pod\n")
            return code if code > 0 else 128 - code
    return 0


def environments(environ: Mapping[str, str]) -> List[Dict[str, str]]:
    """One for each agent: its seat, its directory, its GPUs."""
    place, _, rank = environ[f"{PREFIX}SEAT"].rpartition("-")
    size, gpus = int(environ[f"{PREFIX}CREW"]), int(environ.get(f"{PREFIX}GPUS") or 0)
    shared = not environ.get(f"{PREFIX}DEPOT")
    found = []
    for number in range(size):
        told = {**environ, f"{PREFIX}SEAT": f"{place}-{int(rank) + number}", f"{PREFIX}PORTS": ""}
        told[f"{PREFIX}GPUS"] = ",".join(str(number * gpus + each) for each in range(gpus))
        if not shared:
            told[f"{PREFIX}DIRECTORY"] = f"{names.RUN}/{number}"
        found.append(told)
    return found


def _be_agent(environ: Mapping[str, str], parent: int) -> int:
    from longboat.runtime.agent.__main__ import main as be_agent

    syscalls.die_with_parent(parent)
    return be_agent(environ)
