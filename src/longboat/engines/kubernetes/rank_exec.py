"""Runs a command beside a rank in its pod, on this terminal."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import struct
import sys
import termios
from collections.abc import Mapping, Sequence

from longboat.engines.kubernetes.cluster import Cluster, command
from longboat.engines.kubernetes.pod_exec import RESIZE, STDERR, STDOUT, ExecLost, PodExec
from longboat.runs.run_state import RankState
from longboat.runtime.errors import FAILED, LongboatError
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import ApiError
from longboat.runtime.pod import pod_templates


def execute(cluster: Cluster, run: str, rank: RankState, arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Runs the command beside the rank, with its environment and directory; returns its exit code."""
    selector = names.selector(run, "rank")
    selector += f",{names.STAGE_LABEL}={rank.stage},{names.ROLE_LABEL}={rank.role}"
    running = [p for p in cluster.api.list("Pod", selector) if p.get("status", {}).get("phase") == "Running"]
    pods = [
        p
        for p in running
        if 0 <= rank.rank - pod_templates.seat_of(p["metadata"]["labels"]).rank < pod_templates.seats_per_pod(p)
    ]
    if not pods:
        raise LongboatError(f"the pod of {rank.stage}/{rank.role}-{rank.rank} does not run", f"longboat status {run}")
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    several = pod_templates.seats_per_pod(pods[-1]) > 1
    name = ["exec-rank", str(rank.rank)] if several else ["exec"]
    invocation = command(*name, environ.get("TERM", "") if terminal else "", *(arguments or ["/bin/sh"]))
    try:
        with PodExec(cluster.api, pods[-1]["metadata"]["name"], invocation, names.CONTAINER, True, terminal) as program:
            return _joined(program, terminal)
    except ExecLost as error:
        where = f"{rank.stage}/{rank.role}-{rank.rank}"
        raise LongboatError(f"{error}", f"the pod of {where} may be gone: longboat status {run}", FAILED) from None
    except ApiError as error:
        raise cluster.refusal(error) from None


def _joined(program: PodExec, terminal: bool) -> int:
    """Carries bytes between this terminal and the program until it ends."""
    import tty

    before = termios.tcgetattr(0) if terminal else None
    wake, write = os.pipe()
    os.set_blocking(write, False)
    if terminal:
        tty.setraw(0)
        signal.signal(signal.SIGWINCH, lambda *_: os.write(write, b"x"))
        _size(program)
    sources: list[PodExec | int] = [program, 0, wake]
    try:
        while program.code is None:
            ready = [program] if program.pending else select.select(sources, [], [])[0]
            if wake in ready:
                os.read(wake, 64)
                _size(program)
            if 0 in ready:
                data = os.read(0, 1 << 16)
                if data:
                    program.send(data)
                else:
                    sources.remove(0)
                    program.close_input()
            if program in ready and (piece := program.receive()) is not None:
                os.write({STDOUT: 1, STDERR: 2}.get(piece[0], 2), piece[1])
    finally:
        if before is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, before)
    return program.code


def _size(program: PodExec) -> None:
    rows, columns, _, _ = struct.unpack("HHHH", fcntl.ioctl(0, termios.TIOCGWINSZ, b"\0" * 8))
    program.send(json.dumps({"Width": columns, "Height": rows}).encode(), RESIZE)
