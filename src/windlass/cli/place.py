"""Where a run is that a command speaks of: on this machine, or in a cluster and copied to here as needed.

The arguments that say so, and the run's directory that comes of them. A run that was started
from this machine is found again without being told where it is.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.cli.world import World
from windlass.errors import WindlassError
from windlass.runs.store import Store, born, mirrored

if TYPE_CHECKING:
    from windlass.causes import Cause
    from windlass.engines.kubernetes.cluster import Cluster
    from windlass.engines.kubernetes.mirror import Mirror
    from windlass.runs.values import RunState

ENGINES = ("local", "kubernetes")


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
    group.add_argument("--pending-timeout", default="10m", metavar="TIME", help="how long pods may wait (10m)")


def in_cluster(args: argparse.Namespace) -> bool:
    return (args.on == "kubernetes" or args.on is None) and bool(args.on or args.context or args.namespace)


def cluster_of(args: argparse.Namespace, world: World) -> Cluster:
    from windlass.engines.kubernetes.cluster import Cluster

    return Cluster(world.environ, args.context, args.namespace)


def find(args: argparse.Namespace, world: World, text: str | None) -> tuple[Path, Mirror | None]:
    """The directory of the run that is meant; of one in a cluster a copy, not yet brought up to date."""
    if in_cluster(args):
        from windlass.engines.kubernetes import mirror

        cluster = cluster_of(args, world)
        store, _ = mirror.known(cluster, world.home)
        if not store.ids():
            raise WindlassError(
                f"there are no runs in the namespace {cluster.namespace}", "windlass run job.yaml --on kubernetes"
            )
        run = store.find(text)
        return run, mirror.Mirror(cluster, world.home, run.name)
    run = _anywhere(world, text, args.on)
    told = mirrored(run)
    return run, None if told is None else _remembered(run, told, world)


def look(args: argparse.Namespace, world: World, text: str | None, logs: bool = False) -> Path:
    """The run's directory as it stands now."""
    run, copy = find(args, world, text)
    if copy is not None:
        copy.sync(logs=logs)
    return run


def follow(args: argparse.Namespace, world: World, text: str | None, logs: bool = True) -> Path:
    """The run's directory, kept up to date from now on."""
    run, copy = find(args, world, text)
    if copy is not None:
        copy.sync(logs=logs)
        if not copy.whole():
            copy.follow(logs=logs)
    return run


def is_copy(world: World, text: str) -> bool:
    """Whether a run is one in a cluster that this machine knows."""
    try:
        return mirrored(_anywhere(world, text, None)) is not None
    except WindlassError:
        return False


def standing(copy: Mirror) -> RunState:
    """How a run in a cluster stands; while its driver has not begun, the cluster says why."""
    from dataclasses import replace

    from windlass.runs.state import load

    if copy.begun or copy.reachable:
        copy.sync()
        state = load(copy.path)
        return replace(state, cause=_reckoned(copy, state.cause)) if state.cause is not None else state
    return replace(load(copy.path), cause=copy.cluster.trouble(copy.run))


def _reckoned(copy: Mirror, cause: Cause) -> Cause:
    """Where no node had room: the arithmetic, which the driver may not do, for it may not see nodes."""
    from dataclasses import replace

    from windlass.causes import Kind
    from windlass.runs.state import plan_of

    plan = plan_of(copy.path)
    if cause.kind is not Kind.UNSCHEDULABLE or plan is None:
        return cause
    stage = next((each for each in plan.stages if each.name == cause.stage), None)
    role = next((each for each in stage.roles if each.name == cause.role), None) if stage else None
    if role is None:
        return cause
    asked = role.resources
    told = copy.cluster.room(asked.cpu or 0.0, float(asked.memory or 0), float(asked.gpu))
    return replace(cause, evidence=(*cause.evidence, told)) if told else cause


def _anywhere(world: World, text: str | None, on: str | None) -> Path:
    """A run of this machine, or the copy of one that was started or looked at from here."""
    copies = [] if on == "local" else _copies(world.home)
    own = Store(world.home)
    found: list[Path] = []
    problem: WindlassError | None = None
    for store in [own, *copies]:
        try:
            found.append(store.find(text))
        except WindlassError as error:
            problem = problem or error
    if not found:
        assert problem is not None
        raise problem
    return max(found, key=born) if text is None else found[0]


def _copies(home: str) -> list[Store]:
    try:
        places = sorted((Path(home) / "clusters").iterdir())
    except OSError:
        return []
    return [store for place in places if (store := Store(place)).ids()]


def _remembered(run: Path, told: dict[str, object], world: World) -> Mirror:
    from windlass.engines.kubernetes.cluster import Cluster
    from windlass.engines.kubernetes.mirror import OVER, Mirror

    environ = dict(world.environ)
    if told.get("kubeconfig"):
        environ["KUBECONFIG"] = str(told["kubeconfig"])
    cluster = Cluster(environ, str(told.get("context") or ""), str(told.get("namespace") or ""))
    copy = Mirror(cluster, world.home, run.name)
    root = cluster.root(run.name)
    if root is None:
        raise WindlassError(
            f"{run.name} is no longer in the namespace {cluster.namespace}: somebody has removed it",
            f"its copy is {run}; to drop that too: windlass rm {run.name}",
        )
    copy.mark(root.state not in OVER, root.created, root.plan)
    return copy
