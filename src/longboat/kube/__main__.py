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

Ships into strangers' images: standard library only, Python 3.9.
"""

from __future__ import annotations

import os
import sys
from typing import List, Mapping


def main(words: List[str], environ: Mapping[str, str], package: str) -> int:
    word, rest = words[0], words[1:]
    if word == "agent":
        from longboat.kube import pod

        environ = pod.prepare(environ)
        if environ.get("LONGBOAT_AGENT_CREW"):
            from longboat.kube.crew import main as be_crew

            return be_crew(environ, package)
        from longboat.agent.__main__ import main as be_agent

        return be_agent(environ, package)
    if word == "fetch":
        from longboat.kube import fetch

        return fetch.fetch(environ)
    if word == "board":
        from longboat.kube import fetch

        return fetch.board(environ)
    if word == "server":
        from longboat.kube import fetch

        return fetch.serve(rest, environ, package)
    if word == "drive":
        from longboat.kube import drive

        return drive.main(environ)
    from longboat.kube import desk

    if word in desk.WORDS:
        return desk.WORDS[word](rest)
    from longboat.kube import shelf

    if word in shelf.WORDS:
        return shelf.WORDS[word](rest)
    sys.stderr.write(f"error: there is no word {word!r}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ, os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
