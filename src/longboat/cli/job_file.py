"""Arguments of the commands that take a job file, and loading it."""

from __future__ import annotations

import argparse

from longboat import spec
from longboat.cli.console import Console
from longboat.engines import registry
from longboat.runtime.errors import LongboatError


def add_file_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        default=".",
        help="job file, or a directory with job.yaml (default: the current one)",
    )


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """FILE, --set, --preset, --env-file and --on."""
    add_file_argument(parser)
    parser.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], dest="sets", help="set a param; may be repeated"
    )
    parser.add_argument("--preset", metavar="PRESET", help="use the values of this preset of the job file")
    parser.add_argument(
        "--env-file",
        metavar="PATH",
        action="append",
        default=[],
        dest="env_files",
        help="KEY=VALUE lines for every rank; may be repeated",
    )
    parser.add_argument(
        "--on",
        metavar="ENGINE",
        default="local",
        help="where to run: local (default), kubernetes, or an engine you installed",
    )


def load_job(args: argparse.Namespace, console: Console) -> spec.LoadedJob:
    """Loads the job that the arguments name."""
    return spec.load(
        args.file,
        sets=parse_sets(args.sets),
        environ=console.environ,
        preset=args.preset,
        engine=args.on,
        remote=registry.is_remote(args.on),
        env_files=args.env_files,
    )


def parse_sets(given: list[str]) -> dict[str, str]:
    values = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise LongboatError(f"--set {text}: must be NAME=VALUE", "for example `--set STEPS=200`")
        values[name.strip()] = value
    return values


def file_words(args: argparse.Namespace) -> str:
    """FILE as an argument of the next command, after a space; empty if it is the default."""
    import shlex

    return "" if args.file == "." else " " + shlex.quote(args.file)
