"""A real Kubernetes cluster of three nodes on this machine, for tests.

  up                     start it (the first time: build it, about eight minutes) and print its KUBECONFIG
  down                   end it; only the build cache stays, which all checkouts share
  status                 what runs
  with -- COMMAND        run a command with KUBECONFIG set: the user's if set, else this cluster, started if need be
                         and then ended again
  load ARCHIVE...        give all nodes images (files as `docker save` writes them)
  add NAME               add metrics-server, s3 or kwok (100 nodes that do not exist) to it
  images                 make the test images and print their archives, for other clusters

  node-stop N            cut a node's power                        node-start N      boot it again
  kubelet-stop N         kill a node's kubelet; pods run on        kubelet-start N
  net-cut N              pull a node's cable                       net-heal N
  api-stop               kill the API server                       api-start

Needs root, Debian 12 and Go (PyPI's, if the machine has none). docs/clusters.md says more.
"""

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.cluster import addons, faults
from tests.cluster.cluster import Cluster, build, kubectl
from tests.cluster.errors import ClusterError


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--name", default="test", help="which cluster; several can run side by side (default: test)")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")
    for name in ("up", "down", "status", "images", *faults.ON_API):
        commands.add_parser(name)
    for name in faults.ON_NODES:
        commands.add_parser(name).add_argument("node", metavar="N")
    commands.add_parser("add").add_argument("addon", choices=addons.NAMES)
    commands.add_parser("load").add_argument("archives", nargs="+", type=Path, metavar="ARCHIVE")
    commands.add_parser("with").add_argument("argv", nargs=argparse.REMAINDER, metavar="COMMAND")
    return parser.parse_args()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _do(arguments: argparse.Namespace) -> int:
    cluster = Cluster(arguments.name, _say)
    match arguments.command:
        case "up":
            cluster.up()
            print(f"export KUBECONFIG={cluster.places.kubeconfig}")
            print(f"export PATH={kubectl().parent}:$PATH")
        case "down":
            _say(f"the cluster {arguments.name} is down" if cluster.down() else f"no cluster {arguments.name}")
        case "status":
            return _status(cluster)
        case "images":
            print("\n".join(map(str, build(_say).archives)))
        case "load":
            for archive in arguments.archives:
                cluster.load(archive.resolve(strict=True))
        case "add":
            addons.add(cluster, arguments.addon, _say)
        case "with":
            return _with(cluster, [part for part in arguments.argv if part != "--"])
        case name if name in faults.ON_NODES:
            faults.ON_NODES[name](faults.Faults(cluster), arguments.node)
        case name:
            faults.ON_API[name](faults.Faults(cluster))
    return 0


def _status(cluster: Cluster) -> int:
    if not cluster.is_up():
        _say(f"the cluster {cluster.places.name} is not up")
        return 1
    for program, status in sorted(cluster.box.programs().items()):
        print(f"{program:<24} {'runs' if status is None else f'ended with {status}'}")
    print(f"export KUBECONFIG={cluster.places.kubeconfig}")
    return 0


def _with(cluster: Cluster, argv: list[str]) -> int:
    if os.environ.get("KUBECONFIG"):
        return _run(argv, {})
    found = cluster.is_up()
    cluster.up()
    try:
        path = f"{kubectl().parent}:{os.environ['PATH']}"
        return _run(argv, {"KUBECONFIG": str(cluster.places.kubeconfig), "PATH": path})
    finally:
        if not found:
            cluster.down()


def _run(argv: list[str], environment: dict[str, str]) -> int:
    process = subprocess.Popen(argv, env=os.environ | environment)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # the terminal told the command as well: it ends in its own time
            continue


def main() -> int:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _do(arguments)
    except (ClusterError, FileNotFoundError) as error:
        _say(f"error: {error}")
        if hint := getattr(error, "hint", ""):
            _say(f"\nhint: {hint}")
        return 1
    except KeyboardInterrupt:
        _say("interrupted")
        return 130


if __name__ == "__main__":
    sys.exit(main())
