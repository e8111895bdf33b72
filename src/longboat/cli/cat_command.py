"""Print a file of a run: `longboat cat RUN:PATH` or `longboat cat RUN PATH`.

Use it to read an output or a file in the job's storage without copying it; `longboat ls RUN` lists the files.

  longboat cat mnist:plan.json
  longboat cat :storage/data/README          the newest run

RUN is a run's id, the beginning of one, or a job's name; `:PATH` means the newest run. `storage/NAME/...` is a path in
one of the job's mounts. On a terminal, a file that is not text is printed only with --force.
"""

from __future__ import annotations

import argparse

from longboat.cli import engine_options, log_format
from longboat.cli.console import Console
from longboat.runtime.errors import OK, LongboatError

PIECE = 1 << 20


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN[:PATH]", help="a run, and the file's path in it")
    parser.add_argument("path", nargs="?", metavar="PATH", help="the file's path in the run")
    parser.add_argument("--force", action="store_true", help="print a file that is not text on a terminal")
    engine_options.add_place_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    text, _, path = args.run.partition(":")
    path = args.path or path
    with engine_options.find(args, console, text or None).files() as files:
        run = files.run
        if not path:
            raise LongboatError("no file was given", f"`longboat ls {run}` lists them; then `longboat cat {run}:PATH`")
        for item in files.items(path):
            if item.source is None:
                raise LongboatError(f"{path} is not a file", f"to list it: `longboat ls {run}:{path}`")
            data = item.source.read(PIECE)
            if b"\0" in data and console.out.isatty() and not args.force:
                raise LongboatError(
                    f"{path} is not text",
                    f"print it with --force, or copy it: `longboat cp {run}:{path} .`",
                )
            while data:
                log_format.write(console.out, data)
                data = item.source.read(PIECE)
            break
        else:
            raise LongboatError(f"{path} is not a file", f"to list it: `longboat ls {run}:{path}`")
    return OK
