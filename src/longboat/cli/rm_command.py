"""Removes runs with all that they left: logs, checkpoints, output; in a cluster all objects too.

RUN is a run's id, the beginning of one, or a job's name (its newest run). A run that is under
way is refused; with --force it is killed first. Images that `longboat build` pushed stay, unless
--images is given: with RUN the image that the run used, without one all that were pushed from here.

Data outlives a run in a cluster: storage that was made for the job (`make:`), claims, buckets and
NFS exports that it wrote to. They are named, each with the command that deletes it. With --data
what was made for the job goes too; what was yours before stays in any case.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from longboat.cli import run_location
from longboat.cli.console import Console
from longboat.cli.removal_report import RemovalReport
from longboat.runs import formatting
from longboat.runs.store import Store, alive, tree_size
from longboat.runtime.errors import OK, LongboatError

if TYPE_CHECKING:
    from longboat.engines.kubernetes.cluster import Cluster


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="*", metavar="RUN", help="the runs to remove")
    parser.add_argument("--force", action="store_true", help="kill a run that is under way, then remove it")
    parser.add_argument("--images", action="store_true", help="images that `build` pushed, too; without RUN all")
    parser.add_argument("--data", action="store_true", help="in a cluster: also the storage that was made for the job")
    parser.add_argument("--json", action="store_true", help="what went and what stays, as JSON")
    run_location.add_place_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    if not args.runs and not args.images:
        raise LongboatError("say which runs to remove", "longboat rm RUN; `longboat status` lists them")
    told = RemovalReport(console, args.json)
    try:
        return _remove(args, console, told)
    finally:
        told.close()


def _remove(args: argparse.Namespace, console: Console, told: RemovalReport) -> int:
    if not args.runs:
        from longboat.cli import image_removal

        return image_removal.all_of(console, told)
    store = Store(console.home)
    here = {} if run_location.in_cluster(args, console) else {text: _here(store, text) for text in args.runs}
    refused: list[LongboatError] = []
    for text, run in {here.get(text) or text: (text, here.get(text)) for text in args.runs}.values():
        try:
            if run is None:
                _remove_there(text, args, console, told)
                continue
            if args.force and alive(run):
                _kill(run)
            removed(store, run, told)
        except LongboatError as error:
            refused.append(error)
            told.refused(text, error.message)
    if refused:
        raise LongboatError("; ".join(error.message for error in refused), refused[0].hint, refused[0].code)
    return OK


def removed(store: Store, run: Path, told: RemovalReport) -> None:
    """Removes a run and says what went."""
    size = tree_size(run)
    store.remove(run)
    told.gone(run.name, f" ({formatting.size(size)})", bytes=size)


def _kill(run: Path) -> None:
    from longboat.engines.local.driving import stop

    stop(str(run), by="longboat rm --force", now=True, wait=30.0)


def _here(store: Store, text: str) -> Path | None:
    """A run of this machine; None for one that it knows as a copy, or not at all."""
    try:
        return store.find(text)
    except LongboatError:
        return None


def _remove_there(text: str, args: argparse.Namespace, console: Console, told: RemovalReport) -> None:
    """In a cluster: the root goes, and all that it owns; data stays unless it is asked for."""
    if (
        args.data
        and run_location.in_cluster(args, console)
        and _only_data(run_location.cluster_of(args, console), text, told)
    ):
        return
    run, copy = run_location.find(args, console, text)
    if copy is None:
        removed(Store(console.home), run, told)
        return
    root = copy.cluster.root(copy.run) if args.images else None
    gone, stays = copy.remove(force=args.force, data=args.data)
    told.gone(copy.run, f" from the namespace {copy.cluster.namespace}", namespace=copy.cluster.namespace)
    for each in gone:
        told.gone(each)
    for kept in stays:
        told.stays(kept.what, kept.command)
    if root is not None:
        from longboat.cli import image_removal

        image_removal.of_run(console, told, root, copy.cluster.runs())


def _only_data(cluster: Cluster, run: str, told: RemovalReport) -> bool:
    """A run that is gone, and its storage is not."""
    from longboat.engines.kubernetes import storage

    gone = storage.remove_of(cluster, run) if cluster.root(run) is None else []
    for each in gone:
        told.gone(each)
    return bool(gone)
