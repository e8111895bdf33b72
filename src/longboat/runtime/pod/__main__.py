"""`python longboat.pyz COMMAND`: the commands of the zipapp in a pod.

| command | where | what it does |
|---|---|---|
| agent | a rank's pod | unpacks the code, then runs the agent of the seat |
| fetch | a model server's pod | fetches the model from the driver |
| board | a TensorBoard pod | fetches its event files as they grow |
| server | a model server's pod | becomes the model server; its arguments follow |
| drive | the driver's pod | drives the run; afterwards stays reachable for a while |
| read | the driver's pod, for the CLI | streams files from given offsets to stdout, on request until the run ends |
| list, get, put | the driver's or a helper pod, for the CLI | lists, sends and stores files |
| wait | a helper pod | waits for requests, and ends when none comes |
| stop | the driver's pod, for the CLI | stops the run |
| exec, exec-rank | a rank's pod, for the CLI | executes a command with the environment of a rank |
"""

from __future__ import annotations

import os
import sys
from typing import List, Mapping


def main(arguments: List[str], environ: Mapping[str, str]) -> int:
    name, *rest = arguments
    if name == "agent":
        from longboat.runtime.pod import rank_pod

        environ = rank_pod.prepare(environ)
        if environ.get("LONGBOAT_AGENT_CREW"):
            from longboat.runtime.pod import multi_rank

            return multi_rank.main(environ)
        from longboat.runtime.agent.__main__ import main as run_agent

        return run_agent(environ)
    if name == "fetch":
        from longboat.runtime.pod import server_pod

        return server_pod.fetch(environ)
    if name == "board":
        from longboat.runtime.pod import server_pod

        return server_pod.board(environ)
    if name == "server":
        from longboat.runtime.pod import server_pod

        return server_pod.serve(rest, environ)
    if name == "drive":
        from longboat.runtime.pod import driver_pod

        return driver_pod.main(environ)
    from longboat.runtime.pod import pod_commands

    if name in pod_commands.COMMANDS:
        return pod_commands.COMMANDS[name](rest)
    from longboat.runtime.pod import file_access

    if name in file_access.COMMANDS:
        return file_access.COMMANDS[name](rest)
    sys.stderr.write(f"error: unknown command {name!r}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
