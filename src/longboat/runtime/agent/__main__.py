"""`python longboat.pyz`: run the agent of one seat, configured by environment variables.

| variable | meaning |
|---|---|
| LONGBOAT_AGENT_SEAT | STAGE/ROLE-RANK |
| LONGBOAT_AGENT_RUN | the run's id |
| LONGBOAT_AGENT_DIRECTORY | the run directory; holds plan.json |
| LONGBOAT_AGENT_DRIVER | the driver's address, HOST:PORT or the path of a socket |
| LONGBOAT_AGENT_TOKEN_FILE | file with the run's token; never an argument, never in a log |
| LONGBOAT_AGENT_HOST | the name or address by which peers reach this seat |
| LONGBOAT_AGENT_LEASE | seconds to keep training without the driver |
| LONGBOAT_AGENT_PATIENCE | seconds to wait at the start until the driver's name resolves and its port answers |
| LONGBOAT_AGENT_NAME | the engine's name for this agent, e.g. its pod; with it, SIGTERM ends the agent |
| LONGBOAT_AGENT_PORTS | ports of its predecessor, reused if they are free |
| LONGBOAT_AGENT_GPUS | GPUs of this rank, if several ranks share a container |
| LONGBOAT_AGENT_DEPOT | the driver's file server, HOST:PORT; empty: the run directory is shared |
| LONGBOAT_AGENT_TERMINATION | file for the termination message, /dev/termination-log by default |

None of them is passed on to the rank.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Dict, Mapping

from longboat import runtime
from longboat.runtime import debug_log, run_layout, wire
from longboat.runtime import plan as plans
from longboat.runtime.agent.agent import Agent
from longboat.runtime.agent.agent_config import AgentConfig
from longboat.runtime.agent.driver_link import connect
from longboat.runtime.seat import Seat

PREFIX = "LONGBOAT_AGENT_"
RETRY = 0.02
"""Seconds between two attempts to reach a driver that is not up yet."""
CONNECT = (0.05, 2.0)
"""Seconds that one attempt may take, first and last. Short at first: packets sent before the cluster network knows the
route are lost, and the kernel resends them only after a second."""


def config_of(environ: Mapping[str, str]) -> AgentConfig:
    def setting(name: str, default: str = "") -> str:
        return environ.get(PREFIX + name, default)

    seat = Seat.parse(setting("SEAT"))
    directory = setting("DIRECTORY")
    with open(os.path.join(directory, run_layout.PLAN), encoding="utf-8") as file:
        plan = plans.from_json(file.read())
    with open(setting("TOKEN_FILE"), "rb") as secret:
        token = secret.read().strip()
    mounts = {mount.name: mount.path or run_layout.storage(directory, mount.name) for mount in plan.storage}
    cores = next((each.resources.cpu for each in plan.stage(seat.stage).roles if each.name == seat.role), None)
    base: Dict[str, str] = {name: value for name, value in environ.items() if not name.startswith(PREFIX)}
    return AgentConfig(
        plan=plan,
        run_id=setting("RUN"),
        run_dir=directory,
        seat=seat,
        driver=setting("DRIVER"),
        token=token,
        base=base,
        data=base.get("LONGBOAT_DATA_DIR") or mounts.get("data") or os.path.join(directory, "data"),
        rank_path=runtime.RANK_PATH,
        python="",
        host=setting("HOST", "127.0.0.1"),
        lease=float(setting("LEASE", "120")),
        threads=max(1, int(cores)) if cores else 0,
        gpus=tuple(device for device in setting("GPUS").split(",") if device),
        mounts=mounts,
        ports=tuple(int(port) for port in setting("PORTS").split(",") if port),
        agent=setting("NAME"),
        leaves=bool(setting("NAME")),
        file_server=setting("DEPOT"),
    )


def wait_for_driver(address: str, patience: float) -> str:
    """Wait until the driver's name resolves and its port answers; returns the error if it takes too long."""
    due, timeout = time.monotonic() + patience, CONNECT[0]
    while True:
        try:
            connect(address, timeout).close()
            return ""
        except OSError as error:
            if time.monotonic() >= due:
                return f"no response from the driver at {address} within {patience:g} s: {error}"
            time.sleep(RETRY)
            timeout = min(timeout * 1.15, CONNECT[1])


def main(environ: Mapping[str, str]) -> int:
    debug_log.begin(debug_log.level_of(environ), f"agent {environ[PREFIX + 'SEAT']}")
    patience = float(environ.get(PREFIX + "PATIENCE", "300"))
    message = wait_for_driver(environ[PREFIX + "DRIVER"], patience)
    code = 1
    if not message:
        try:
            agent = Agent(config_of(environ))
            code = agent.serve()
            message = agent.termination_message
        except (OSError, wire.WireError) as error:
            message = f"the agent stopped: {error}"
    _write_termination_message(message, environ.get(PREFIX + "TERMINATION", "/dev/termination-log"))
    return code


def _write_termination_message(message: str, path: str) -> None:
    if message:
        sys.stderr.write(message + "\n")
        try:
            with open(path, "w", encoding="utf-8") as file:
                file.write(message)
        except OSError:
            pass


if __name__ == "__main__":
    sys.exit(main(os.environ))
