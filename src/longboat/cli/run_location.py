"""Where a run is that a command speaks of: the arguments that say so, and the run's directory that comes of them."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from longboat.cli.console import Console
from longboat.engines.resolve import Where
from longboat.runtime.plan import ENGINES

if TYPE_CHECKING:
    from longboat.engines.kubernetes.cluster import Cluster
    from longboat.engines.kubernetes.replica import RunReplica
    from longboat.runs.run_files import RunFiles
    from longboat.runs.watch import RunWatch


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


def where(args: argparse.Namespace, console: Console) -> Where:
    return Where(console.home, console.environ, args.on, args.context, args.namespace)


def in_cluster(args: argparse.Namespace, console: Console) -> bool:
    return where(args, console).in_cluster


def cluster_of(args: argparse.Namespace, console: Console) -> Cluster:
    from longboat.engines.kubernetes.cluster import Cluster

    return Cluster(console.environ, args.context, args.namespace)


def find(args: argparse.Namespace, console: Console, text: str | None) -> tuple[Path, RunReplica | None]:
    """The directory of the run that is meant; of one in a cluster a copy, not yet brought up to date."""
    return where(args, console).find(text)


@contextlib.contextmanager
def shelf(args: argparse.Namespace, console: Console, text: str | None) -> Iterator[RunFiles]:
    """The files of the run that is meant; a pod that was needed to see them goes again."""
    from longboat.runs.journal_fold import plan_of
    from longboat.runs.run_files import LocalFiles

    run, copy = find(args, console, text)
    if copy is None:
        yield LocalFiles(run, plan_of(run))
        return
    from longboat.engines.kubernetes.pod_files import PodFiles

    with PodFiles(copy.cluster, copy.run, plan_of(run)) as there:
        yield there


def look(args: argparse.Namespace, console: Console, text: str | None, logs: bool = False) -> Path:
    """The run's directory as it stands now."""
    run, copy = find(args, console, text)
    if copy is not None:
        copy.sync(logs=logs)
    return run


def follow(args: argparse.Namespace, console: Console, text: str | None, logs: bool = True) -> RunWatch:
    """The run, kept up to date from now on."""
    from longboat.runs.watch import RunWatch

    run, copy = find(args, console, text)
    if copy is None:
        return RunWatch(run)
    copy.keep_up(logs, console.say)
    return RunWatch(run, copy.after)
