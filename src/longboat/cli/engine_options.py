"""The options that say where a run is, and the run or engine that they mean."""

from __future__ import annotations

import argparse

from longboat.cli.console import Console
from longboat.engines import registry
from longboat.engines.interface import Engine, EngineContext, RunHandle

SUBMIT_OPTIONS = ("service_account", "volume", "storage_class", "driver_lease", "pending_timeout")


def add_place_arguments(parser: argparse.ArgumentParser) -> None:
    """--on, --context and --namespace, for commands about a run."""
    parser.add_argument("--on", metavar="ENGINE", help="look here: local, kubernetes, or an engine you installed")
    add_cluster_arguments(parser)


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--context", default="", metavar="NAME", help="the kubeconfig context to use")
    parser.add_argument("-n", "--namespace", default="", metavar="NAME", help="the cluster namespace to use")


def add_submit_arguments(parser: argparse.ArgumentParser) -> None:
    """What can only be chosen when a run is submitted to a cluster."""
    group = parser.add_argument_group("on a cluster")
    group.add_argument(
        "--service-account", default="", metavar="NAME", help="existing service account of the driver, not a new one"
    )
    group.add_argument(
        "--volume", default="10Gi", metavar="SIZE", help="size of the run's volume (10Gi); none: no volume"
    )
    group.add_argument("--storage-class", default="", metavar="NAME", help="storage class of the run's volume")
    group.add_argument(
        "--driver-lease", default="5m", metavar="TIME", help="how long the driver runs without the API server (5m)"
    )
    group.add_argument("--pending-timeout", default="10m", metavar="TIME", help="how long pods may be pending (10m)")


def submit_options(args: argparse.Namespace) -> dict[str, str]:
    return {name: getattr(args, name) for name in SUBMIT_OPTIONS}


def context_of(args: argparse.Namespace, console: Console) -> EngineContext:
    return EngineContext(console.home, console.environ, args.context, args.namespace)


def engine_of(args: argparse.Namespace, console: Console) -> Engine:
    """The engine that the options name; without one, the default."""
    context = context_of(args, console)
    return registry.engine(registry.chosen(args.on, context) or registry.DEFAULT, context)


def find(args: argparse.Namespace, console: Console, text: str | None) -> RunHandle:
    """The run that is meant, wherever it is."""
    return registry.find(args.on, context_of(args, console), text)
