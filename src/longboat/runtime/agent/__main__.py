"""`python longboat.pyz`: the agent of one seat, told by its environment what it is.

| variable | meaning |
|---|---|
| LONGBOAT_AGENT_SEAT | STAGE/ROLE-RANK |
| LONGBOAT_AGENT_RUN | the run's id |
| LONGBOAT_AGENT_DIRECTORY | the run directory; holds plan.json |
| LONGBOAT_AGENT_DRIVER | where the driver listens, HOST:PORT or a socket's path |
| LONGBOAT_AGENT_TOKEN_FILE | file with the run's token; never an argument, never in a log |
| LONGBOAT_AGENT_HOST | the name or address by which peers reach this seat |
| LONGBOAT_AGENT_LEASE | seconds to train on without the driver |
| LONGBOAT_AGENT_PATIENCE | seconds to wait for the driver's name and port at the start |
| LONGBOAT_AGENT_NAME | by which the engine knows this agent again; it leaves on SIGTERM |
| LONGBOAT_AGENT_PORTS | ports that its predecessor held, to be taken again |
| LONGBOAT_AGENT_GPUS | the devices of this rank, where others in its container have theirs |
| LONGBOAT_AGENT_DEPOT | where files go to and come from, HOST:PORT; empty: the run directory is shared |
| LONGBOAT_AGENT_TERMINATION | file for the last words, /dev/termination-log by default |

None of them reaches the rank. Ships into strangers' images: standard library only, Python 3.9.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Dict, Mapping

from longboat import runtime
from longboat.runtime import plan as plans
from longboat.runtime import run_layout, wire
from longboat.runtime.agent.agent import Agent
from longboat.runtime.agent.agent_config import AgentConfig
from longboat.runtime.agent.driver_link import connect

PREFIX = "LONGBOAT_AGENT_"
KNOCK = 0.02
"""Seconds between two tries to reach a driver that has not begun."""
PATIENT = (0.05, 2.0)
"""Seconds that a try may take, at first and after many: what is sent before the cluster knows the way is lost, and the
kernel would send it again only after a second."""


def config_of(environ: Mapping[str, str]) -> AgentConfig:
    def told(name: str, default: str = "") -> str:
        return environ.get(PREFIX + name, default)

    stage, _, rest = told("SEAT").rpartition("/")
    role, _, rank = rest.rpartition("-")
    directory = told("DIRECTORY")
    with open(os.path.join(directory, run_layout.PLAN), encoding="utf-8") as file:
        plan = plans.from_json(file.read())
    with open(told("TOKEN_FILE"), "rb") as secret:
        token = secret.read().strip()
    mounts = {mount.name: mount.path or run_layout.storage(directory, mount.name) for mount in plan.storage}
    cores = next((each.resources.cpu for each in plan.stage(stage).roles if each.name == role), None)
    base: Dict[str, str] = {name: value for name, value in environ.items() if not name.startswith(PREFIX)}
    return AgentConfig(
        plan=plan,
        run_id=told("RUN"),
        run_dir=directory,
        stage=stage,
        role=role,
        rank=int(rank),
        driver=told("DRIVER"),
        token=token,
        base=base,
        data=base.get("LONGBOAT_DATA_DIR") or mounts.get("data") or os.path.join(directory, "data"),
        rank_path=runtime.RANK_PATH,
        python="",
        host=told("HOST", "127.0.0.1"),
        lease=float(told("LEASE", "120")),
        threads=max(1, int(cores)) if cores else 0,
        gpus=tuple(device for device in told("GPUS").split(",") if device),
        mounts=mounts,
        ports=tuple(int(port) for port in told("PORTS").split(",") if port),
        agent=told("NAME"),
        leaves=bool(told("NAME")),
        depot=told("DEPOT"),
    )


def wait_for_driver(address: str, patience: float) -> str:
    """Until the driver's name resolves and its port answers; what stood in the way, when it is too late."""
    due, each = time.monotonic() + patience, PATIENT[0]
    while True:
        try:
            connect(address, each).close()
            return ""
        except OSError as error:
            if time.monotonic() >= due:
                return f"the driver at {address} could not be reached within {patience:g} s: {error}"
            time.sleep(KNOCK)
            each = min(each * 1.15, PATIENT[1])


def main(environ: Mapping[str, str]) -> int:
    patience = float(environ.get(PREFIX + "PATIENCE", "300"))
    words = wait_for_driver(environ[PREFIX + "DRIVER"], patience)
    code = 1
    if not words:
        try:
            agent = Agent(config_of(environ))
            code = agent.serve()
            words = agent.last_words
        except (OSError, wire.WireError) as error:
            words = f"the agent gave up: {error}"
    _say_last(words, environ.get(PREFIX + "TERMINATION", "/dev/termination-log"))
    return code


def _say_last(words: str, path: str) -> None:
    if words:
        sys.stderr.write(words + "\n")
        try:
            with open(path, "w", encoding="utf-8") as file:
                file.write(words)
        except OSError:
            pass


if __name__ == "__main__":
    sys.exit(main(os.environ))
