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

from longboat.cli import engine_options
from longboat.cli.console import Console
from longboat.engines.interface import CanServe, EndpointRequest, able
from longboat.runs import formatting
from longboat.runtime.errors import INTERRUPTED, OK, LongboatError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run (the newest if not given)")
    parser.add_argument("--wait", action="store_true", help="wait until there is one")
    parser.add_argument("--timeout", default="10m", metavar="TIME", help="how long to wait (10m)")
    parser.add_argument("--grpc", action="store_true", help="HOST:PORT for gRPC instead of the URL")
    parser.add_argument("--board", action="store_true", help="of the TensorBoard that the job file's `board:` asks for")
    parser.add_argument("--stage", default="", metavar="NAME", help="which stage, where several serve")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="ClusterIP: the port here (any free one)")
    parser.add_argument("--json", action="store_true", help="url, grpc, page and more as JSON")
    engine_options.add_place_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    if args.board and args.grpc:
        raise LongboatError("--board and --grpc exclude each other", "leave one of them out")
    timeout = formatting.seconds(args.timeout)
    request = EndpointRequest(args.stage, args.board, args.port, timeout if args.wait else None)
    run = able(engine_options.find(args, console, args.run), CanServe, "url")
    try:
        with run.endpoint(request, console.say) as endpoint:
            facts = endpoint.facts
            console.print(json.dumps(dict(facts)) if args.json else facts["grpc" if args.grpc else "url"])
            console.out.flush()
            if endpoint.held:
                console.say("this leads into the cluster until Ctrl-C")
                while True:
                    time.sleep(3600)
    except KeyboardInterrupt:
        return INTERRUPTED
    return OK
