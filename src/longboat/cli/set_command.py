"""Change a param in a job file.

Only the value is replaced: comments, layout and everything else stay as they are. Says what the value
was and in how many places the file uses it.
"""

from __future__ import annotations

import argparse

from longboat.cli.console import Console
from longboat.runtime.errors import OK, LongboatError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="job file, or a directory with job.yaml")
    parser.add_argument("name", metavar="NAME", help="the param")
    # All that follows, so that a value may begin with a dash.
    parser.add_argument("value", metavar="VALUE", nargs=argparse.REMAINDER, help="its new value")
    parser.usage = "longboat set [-h] FILE NAME VALUE"


def main(args: argparse.Namespace, console: Console) -> int:
    import shlex

    from longboat.spec.param_editing import change

    words = args.value[1:] if args.value[:1] == ["--"] else args.value
    if len(words) != 1:
        fix = shlex.join(["longboat", "set", args.file, args.name, " ".join(words) or "VALUE"])
        raise LongboatError(f"one value is needed for {args.name}, not {len(words)}", f"`{fix}`")
    value = words[0]
    done = change(args.file, args.name, value)
    places = "1 place" if done.count == 1 else f"{done.count} places"
    console.print(f"set {args.name} to {value or 'nothing'} (was {done.old or 'nothing'}), used in {places}")
    file = shlex.quote(args.file)
    console.next(f"longboat params {file}", f"longboat plan {file}")
    return OK
