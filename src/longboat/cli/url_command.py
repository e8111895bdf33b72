"""Prints the address at which a run's served model answers, one that works from here.

RUN is a run's id, the beginning of one, or a job's name; without it, the newest run.

On this machine it is the server's own. On a cluster it depends on `expose:` of the stage:

  ClusterIP      a port of this machine that leads to the servers is opened and held until Ctrl-C (exit 130)
  NodePort       the address of a node with a server on it
  LoadBalancer   the address that the cluster gave the load balancer

With --wait it waits until the run serves and an address is there; what it waits for is said meanwhile.

  curl $(longboat url RUN)/v1/models   (NodePort, LoadBalancer)
  longboat url RUN --grpc          host:port for gRPC
  longboat url RUN --port 8501     ClusterIP: at this port of this machine
  longboat url RUN --board         the TensorBoard of a job file with `board:`
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from longboat.cli import run_location
from longboat.cli.console import Console
from longboat.engines.resolve import standing
from longboat.runs import formatting
from longboat.runs.journal_fold import load, plan_of
from longboat.runs.run_state import RunState, StageState
from longboat.runtime.errors import FAILED, INTERRUPTED, OK, LongboatError
from longboat.runtime.kube_client import names
from longboat.runtime.rank_env import bracketed

if TYPE_CHECKING:
    from longboat.engines.kubernetes.replica import RunReplica
    from longboat.engines.kubernetes.service_address import ServiceAddress

PAUSE = 1.0
SILENT = 60.0
"""Seconds after which a load balancer that nobody speaks of is not going to come."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run (the newest if not given)")
    parser.add_argument("--wait", action="store_true", help="wait until there is one")
    parser.add_argument("--timeout", default="10m", metavar="TIME", help="how long to wait (10m)")
    parser.add_argument("--grpc", action="store_true", help="HOST:PORT for gRPC instead of the URL")
    parser.add_argument("--board", action="store_true", help="of the TensorBoard that the job file's `board:` asks for")
    parser.add_argument("--stage", default="", metavar="NAME", help="which stage, where several serve")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="ClusterIP: the port here (any that is free)")
    parser.add_argument("--json", action="store_true", help="url, grpc, page and more as JSON")
    run_location.add_place_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    if args.board and args.grpc:
        raise LongboatError("--board and --grpc exclude each other", "leave one of them out")
    run, copy = run_location.find(args, console, args.run)
    try:
        if copy is None:
            return _here(run, args, console)
        return _there(copy, args, console)
    except KeyboardInterrupt:
        return INTERRUPTED


def _here(run: Path, args: argparse.Namespace, console: Console) -> int:
    if args.board:
        raise LongboatError(f"{run.name} is a run of this machine", f"to look at it: longboat board {run.name}")
    due = time.monotonic() + formatting.seconds(args.timeout)
    while (stage := _serving(load(run), args.stage)) is None:
        _check(load(run), args, due)
        time.sleep(0.2)
    told = {key: stage.serving[key] for key in ("url", "grpc", "page", "model") if key in stage.serving}
    _show(told, args, console)
    return OK


def _there(copy: RunReplica, args: argparse.Namespace, console: Console) -> int:
    from longboat.engines.kubernetes import service_address

    due = time.monotonic() + formatting.seconds(args.timeout)
    plan = plan_of(copy.path)
    if args.board:
        if plan is None or plan.board is None:
            raise LongboatError(f"{copy.run} has no `board:`", f"on this machine: longboat board {copy.run}")
        chosen = names.selector(copy.run, names.BOARD)
        return _given(copy, lambda: service_address.board(copy.cluster, copy.run), chosen, "", args, console, due)
    name, serve = service_address.served(plan, copy.run, args.stage)
    state = standing(copy)
    if args.wait and _serving(state, name) is None and not state.over:
        console.say(f"{copy.run} is {state.state}: waiting until {name} serves")
    while _serving(state, name) is None and not (state.over and copy.cluster.stands(copy.run, name)):
        _check(state, args, due)
        time.sleep(PAUSE)
        state = standing(copy)
    chosen = service_address.servers(copy.run, name)
    return _given(
        copy, lambda: service_address.find(copy.cluster, copy.run, name), chosen, serve.name, args, console, due
    )


def _given(
    copy: RunReplica,
    find: Callable[[], ServiceAddress],
    chosen: str,
    model: str,
    args: argparse.Namespace,
    console: Console,
    due: float,
) -> int:
    """Prints the address once it is there, and holds it open where that is what it takes."""
    from longboat.engines.kubernetes import port_forward

    found = _settled(copy, find, args, console, due)
    if found is None:
        return FAILED
    if found.expose != "ClusterIP":
        _show(_told(model, found.host, found.rest, found.grpc, found.expose), args, console)
        return OK
    ports = {found.rest: args.port} | ({found.grpc: 0} if found.grpc != found.rest else {})
    with port_forward.PortForward(copy.cluster, chosen, ports, console.say) as way:
        _show(_told(model, "127.0.0.1", way.ports[found.rest], way.ports[found.grpc], found.expose), args, console)
        console.say("this leads into the cluster until Ctrl-C")
        while True:
            time.sleep(3600)


def _settled(
    copy: RunReplica, find: Callable[[], ServiceAddress], args: argparse.Namespace, console: Console, due: float
) -> ServiceAddress | None:
    """The address once it is there; None when it does not come."""
    begun, said = time.monotonic(), ""
    while True:
        found = find()
        if found.host or found.expose == "ClusterIP":
            return found
        if found.why != said:
            said = found.why
            console.say(f"the {found.expose} has no address yet: {said}")
        lost = said.startswith("nobody") and time.monotonic() - begun > SILENT
        if not args.wait or lost or time.monotonic() > due:
            describe = f"kubectl describe service -n {copy.cluster.namespace} -l longboat.dev/run={copy.run}"
            hint = describe if args.wait else f"longboat url {copy.run} --wait"
            console.say(f"error: {copy.run} has no address from outside\n\nhint: {hint}")
            return None
        time.sleep(PAUSE)


def _serving(state: RunState, name: str) -> StageState | None:
    stages = [stage for stage in state.stages if stage.state == "serving" and stage.serving]
    return next((stage for stage in stages if not name or stage.name == name), None)


def _check(state: RunState, args: argparse.Namespace, due: float) -> None:
    """Raises when there is nothing to wait for, or nobody wants to."""
    if state.over:
        raise LongboatError(
            f"{state.id} does not serve: it is {state.state.replace('_', ' ')}", f"longboat why {state.id}"
        )
    if not any(stage.kind == "serve" for stage in state.stages):
        raise LongboatError(f"{state.id} has no `serve:` stage", f"longboat status {state.id}")
    if not args.wait:
        raise LongboatError(f"{state.id} does not serve yet: it is {state.state}", f"longboat url {state.id} --wait")
    if time.monotonic() > due:
        raise LongboatError(f"{state.id} does not serve after {args.timeout}", f"longboat why {state.id}")


def _told(model: str, host: str, rest: int, grpc: int, expose: str) -> dict[str, str]:
    url = f"http://{bracketed(host)}:{rest}"
    told = {"url": url, "expose": expose}
    return (
        told | {"grpc": f"{bracketed(host)}:{grpc}", "page": f"{url}/models/{model}", "model": model} if model else told
    )


def _show(told: dict[str, str], args: argparse.Namespace, console: Console) -> None:
    console.print(json.dumps(told) if args.json else told["grpc" if args.grpc else "url"])
    console.out.flush()
