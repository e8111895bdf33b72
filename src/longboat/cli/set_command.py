"""Change a param in a job file, keeping its comments and layout.

Use it to change a value for good; `--set` of `longboat run` changes it for one run. Prints the old value and how often
the file uses the param.

  longboat set job.yaml STEPS 200
"""

from __future__ import annotations

import argparse

from longboat.cli.console import Console
from longboat.runtime.errors import OK, LongboatError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="job file, or a directory with job.yaml")
    parser.add_argument("name", metavar="NAME", help="name of the param")
    # All that follows, so that a value may begin with a dash.
    parser.add_argument("value", metavar="VALUE", nargs=argparse.REMAINDER, help="new value")
    parser.usage = "longboat set [-h] FILE NAME VALUE"


def main(args: argparse.Namespace, console: Console) -> int:
    import shlex

    from longboat.spec.param_editing import change

    values = args.value[1:] if args.value[:1] == ["--"] else args.value
    if len(values) != 1:
        fix = shlex.join(["longboat", "set", args.file, args.name, " ".join(values) or "VALUE"])
        raise LongboatError(f"{args.name} needs one value, not {len(values)}", f"`{fix}`")
    value = values[0]
    done = change(args.file, args.name, value)
    places = "1 place" if done.count == 1 else f"{done.count} places"
    console.print(f"set {args.name} to {value or 'nothing'} (was {done.old or 'nothing'}), used in {places}")
    file = shlex.quote(args.file)
    console.next(f"longboat params {file}", f"longboat plan {file}")
    return OK
