"""Remove runs with their logs, checkpoints and output; in a cluster also their objects.

Use it when you no longer need a run. A run that still runs is refused; --force kills it first.

  longboat rm mnist-abcde
  longboat rm mnist --data --on kubernetes
  longboat rm --images

RUN is a run's id, the beginning of one, or a job's name (its newest run). Images that `longboat build` pushed are kept
unless you add --images: with RUN it removes the run's image, without RUN all images pushed from this machine.

Data in a cluster is kept: storage created for the job (`make:`), claims, buckets and NFS exports that it wrote to. They
are listed, each with the command that deletes it. --data also deletes the storage created for the job; what existed
before is always kept.
"""

from __future__ import annotations

import argparse

from longboat.cli import engine_options
from longboat.cli.console import Console
from longboat.cli.removal_report import RemovalReport
from longboat.engines import registry
from longboat.engines.interface import KeepsData, RunHandle, able
from longboat.runs.journal_fold import plan_of
from longboat.runtime.errors import OK, LongboatError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="*", metavar="RUN", help="runs to remove")
    parser.add_argument("--force", action="store_true", help="kill a running run, then remove it")
    parser.add_argument("--images", action="store_true", help="also remove pushed images; without RUN, all of them")
    parser.add_argument("--data", action="store_true", help="in a cluster: also delete storage created for the job")
    parser.add_argument("--json", action="store_true", help="print what was removed and kept as JSON")
    engine_options.add_place_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    if not args.runs and not args.images:
        raise LongboatError("no run was given", "longboat rm RUN; `longboat status` lists them")
    report = RemovalReport(console, args.json)
    try:
        return _remove(args, console, report)
    finally:
        report.close()


def _remove(args: argparse.Namespace, console: Console, report: RemovalReport) -> int:
    from longboat.cli import image_removal

    if not args.runs:
        return image_removal.all_of(console, report)
    refused: list[LongboatError] = []
    for text, run in _named(args, console).items():
        try:
            if isinstance(run, LongboatError):
                raise run
            if run is None:
                _remove_data(args, console, text, report)
                continue
            image = _image(run) if args.images else ""
            removal = run.remove(force=args.force, data=args.data)
            report.gone(run.id, removal.detail, **removal.facts)
            for what in removal.gone:
                report.gone(what)
            for kept in removal.kept:
                report.stays(kept.what, kept.command)
            if image:
                engine = registry.engine(run.engine, engine_options.context_of(args, console))
                image_removal.of_run(console, report, image, able(engine, KeepsData, "rm --images").plans())
        except LongboatError as error:
            refused.append(error)
            report.refused(text, error.message)
    if refused:
        raise LongboatError("; ".join(error.message for error in refused), refused[0].hint, refused[0].code)
    return OK


def _named(args: argparse.Namespace, console: Console) -> dict[str, RunHandle | LongboatError | None]:
    """Every run to remove, once, found before any is removed; None if only data of it may be left."""
    runs: dict[str, RunHandle | LongboatError | None] = {}
    data_alone = args.data and registry.chosen(args.on, engine_options.context_of(args, console)) is not None
    for text in args.runs:
        try:
            run = engine_options.find(args, console, text)
            runs.setdefault(run.id, run)
        except LongboatError as error:
            runs[text] = None if data_alone else error
    return runs


def _image(run: RunHandle) -> str:
    plan = plan_of(run.directory)
    return plan.image if plan is not None else ""


def _remove_data(args: argparse.Namespace, console: Console, text: str, report: RemovalReport) -> None:
    """Deletes the storage of a run that no longer exists."""
    engine = engine_options.engine_of(args, console)
    gone = able(engine, KeepsData, "rm --data").remove_data(text)
    for what in gone:
        report.gone(what)
    if not gone:
        engine.find(text)  # raises: there is no such run
