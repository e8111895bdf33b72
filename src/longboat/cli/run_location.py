"""Where a run is that a command speaks of: the arguments that say so, and the run's directory that comes of them."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from longboat.cli.console import World
from longboat.engines.resolve import Where
from longboat.runtime.plan import ENGINES

if TYPE_CHECKING:
    from longboat.engines.kubernetes.cluster import Cluster
    from longboat.engines.kubernetes.replica import Mirror
    from longboat.runs.run_files import Shelf
    from longboat.runs.watch import Watch


def add_place_arguments(parser: argparse.ArgumentParser) -> None:
    """--on, --context and --namespace, for commands that speak of a run."""
    parser.add_argument("--on", metavar="ENGINE", choices=ENGINES, help="look here: local or kubernetes")
    add_cluster_arguments(parser)


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--context", default="", metavar="NAME", help="the kubeconfig's context to use")
    parser.add_argument("-n", "--namespace", default="", metavar="NAME", help="the cluster's namespace to use")


def add_submit_arguments(parser: argparse.ArgumentParser) -> None:
    """What only whoever submits a run to a cluster may choose."""
    group = parser.add_argument_group("on a cluster")
    group.add_argument(
        "--service-account", default="", metavar="NAME", help="of the driver: one that exists, instead of a new one"
    )
    group.add_argument("--volume", default="10Gi", metavar="SIZE", help="of the run's volume (10Gi); none: no volume")
    group.add_argument("--storage-class", default="", metavar="NAME", help="of the run's volume")
    group.add_argument(
        "--driver-lease", default="5m", metavar="TIME", help="how long the driver goes on without the API server (5m)"
    )
    group.add_argument("--pending-timeout", default="10m", metavar="TIME", help="how long pods may wait (10m)")


def where(args: argparse.Namespace, world: World) -> Where:
    return Where(world.home, world.environ, args.on, args.context, args.namespace)


def in_cluster(args: argparse.Namespace, world: World) -> bool:
    return where(args, world).in_cluster


def cluster_of(args: argparse.Namespace, world: World) -> Cluster:
    from longboat.engines.kubernetes.cluster import Cluster

    return Cluster(world.environ, args.context, args.namespace)


def find(args: argparse.Namespace, world: World, text: str | None) -> tuple[Path, Mirror | None]:
    """The directory of the run that is meant; of one in a cluster a copy, not yet brought up to date."""
    return where(args, world).find(text)


@contextlib.contextmanager
def shelf(args: argparse.Namespace, world: World, text: str | None) -> Iterator[Shelf]:
    """The files of the run that is meant; a pod that was needed to see them goes again."""
    from longboat.runs.journal_fold import plan_of
    from longboat.runs.run_files import Local

    run, copy = find(args, world, text)
    if copy is None:
        yield Local(run, plan_of(run))
        return
    from longboat.engines.kubernetes.pod_files import ClusterShelf

    with ClusterShelf(copy.cluster, copy.run, plan_of(run)) as there:
        yield there


def look(args: argparse.Namespace, world: World, text: str | None, logs: bool = False) -> Path:
    """The run's directory as it stands now."""
    run, copy = find(args, world, text)
    if copy is not None:
        copy.sync(logs=logs)
    return run


def follow(args: argparse.Namespace, world: World, text: str | None, logs: bool = True) -> Watch:
    """The run, kept up to date from now on."""
    from longboat.runs.watch import Watch

    run, copy = find(args, world, text)
    if copy is None:
        return Watch(run)
    copy.keep_up(logs, world.say)
    return Watch(run, copy.after)
