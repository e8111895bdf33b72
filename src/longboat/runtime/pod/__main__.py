"""`python longboat.pyz WORD`: what the zipapp can be asked to do in a pod.

| word | who asks | what it does |
|---|---|---|
| agent | the pod of a seat | unpacks the code, then is the agent of the seat |
| fetch | the pod of a server | brings the model from the driver |
| board | the pod of a TensorBoard | brings what it shows, as that grows |
| server | the pod of a server | becomes the model server, whose words follow |
| drive | the driver's pod | drives the run; once it has ended, stays reachable for a while |
| read | `longboat` on a laptop | streams files of the run to stdout, from offsets, until the run ends if asked |
| list, give, take | the same, in the driver's or a helper's pod | lists files, sends them, stores them |
| rest | a helper's pod | waits for readers of storage, and ends when none comes |
| stop | the same | asks the driver to stop the run |
| beside, beside-rank | the same, in a rank's pod | executes a command with the environment of a rank |
"""

from __future__ import annotations

import os
import sys
from typing import List, Mapping


def main(words: List[str], environ: Mapping[str, str]) -> int:
    word, rest = words[0], words[1:]
    if word == "agent":
        from longboat.runtime.pod import rank_pod

        environ = rank_pod.prepare(environ)
        if environ.get("LONGBOAT_AGENT_CREW"):
            from longboat.runtime.pod.multi_rank import main as be_crew

            return be_crew(environ)
        from longboat.runtime.agent.__main__ import main as be_agent

        return be_agent(environ)
    if word == "fetch":
        from longboat.runtime.pod import server_pod

        return server_pod.fetch(environ)
    if word == "board":
        from longboat.runtime.pod import server_pod

        return server_pod.board(environ)
    if word == "server":
        from longboat.runtime.pod import server_pod

        return server_pod.serve(rest, environ)
    if word == "drive":
        from longboat.runtime.pod import driver_pod

        return driver_pod.main(environ)
    from longboat.runtime.pod import pod_commands

    if word in pod_commands.WORDS:
        return pod_commands.WORDS[word](rest)
    from longboat.runtime.pod import file_access

    if word in file_access.WORDS:
        return file_access.WORDS[word](rest)
    sys.stderr.write(f"error: there is no word {word!r}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
