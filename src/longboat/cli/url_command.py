"""Print the address of a run's served model, reachable from this machine.

Use it to call a model that a run serves. On this machine it is the server's address. On a cluster it depends on the
stage's `expose:`:

  ClusterIP      opens a port on this machine that forwards to the servers, until Ctrl-C (exit 130)
  NodePort       the address of a node that runs a server
  LoadBalancer   the address of the load balancer

RUN is a run's id, the beginning of one, or a job's name; without it, the newest run. With --wait, url waits until the
run serves and has an address, and prints what it waits for.

  curl $(longboat url RUN)/v1/models   (NodePort, LoadBalancer)
  longboat url RUN --grpc          host:port for gRPC
  longboat url RUN --port 8501     ClusterIP: use this port on this machine
  longboat url RUN --board         the TensorBoard of a job file with `board:`
"""

from __future__ import annotations

import argparse
import json
import time

from longboat.cli import engine_options
from longboat.cli.console import Console
from longboat.engines.interface import CanServe, EndpointRequest, able
from longboat.runs import formatting
from longboat.runtime.errors import INTERRUPTED, OK, LongboatError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run (the newest if not given)")
    parser.add_argument("--wait", action="store_true", help="wait until the run serves")
    parser.add_argument("--timeout", default="10m", metavar="TIME", help="how long to wait (10m)")
    parser.add_argument("--grpc", action="store_true", help="print HOST:PORT for gRPC")
    parser.add_argument("--board", action="store_true", help="print the address of the TensorBoard of `board:`")
    parser.add_argument("--stage", default="", metavar="NAME", help="stage, if several serve")
    parser.add_argument(
        "--port", type=int, default=0, metavar="N", help="ClusterIP: port on this machine (any free one)"
    )
    parser.add_argument("--json", action="store_true", help="print url, grpc, page and more as JSON")
    engine_options.add_place_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    if args.board and args.grpc:
        raise LongboatError("--board and --grpc exclude each other", "use one of them")
    timeout = formatting.seconds(args.timeout)
    request = EndpointRequest(args.stage, args.board, args.port, timeout if args.wait else None)
    run = able(engine_options.find(args, console, args.run), CanServe, "url")
    try:
        with run.endpoint(request, console.say) as endpoint:
            facts = endpoint.facts
            console.print(json.dumps(dict(facts)) if args.json else facts["grpc" if args.grpc else "url"])
            console.out.flush()
            if endpoint.held:
                console.say("forwarding into the cluster until Ctrl-C")
                while True:
                    time.sleep(3600)
    except KeyboardInterrupt:
        return INTERRUPTED
    return OK
