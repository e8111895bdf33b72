"""List the params of a job file: value, origin, description and number of uses.

Use it to see what you can change with `longboat set` or --set. COUNT is how often the file uses the value. A required
param must get a value before the job can run.

  longboat params job.yaml
  longboat params job.yaml --preset demo --json
"""

from __future__ import annotations

import argparse

from longboat.cli.console import Console
from longboat.cli.job_file import add_job_arguments, file_words, load_job
from longboat.runtime.errors import OK

HEADERS = ("NAME", "VALUE", "SET BY", "DESCRIPTION", "COUNT", "REQUIRED")


def arguments(parser: argparse.ArgumentParser) -> None:
    add_job_arguments(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    form.add_argument("--json", action="store_true", help="print JSON")


def main(args: argparse.Namespace, console: Console) -> int:
    from longboat.cli import table
    from longboat.spec.scalars import written

    job = load_job(args, console)
    if args.json:
        from longboat.runtime.light_dataclasses import asdict

        console.print_json([asdict(param) for param in job.params])
        return OK
    rows = [
        (p.name, written(p.value), p.set_by, p.help, str(p.count), "Yes" if p.required else "No") for p in job.params
    ]
    if args.markdown:
        console.print(table.markdown(HEADERS, rows))
        return OK
    if not rows:
        console.say(f"{job.name} has no params")
        return OK
    console.print(table.render(HEADERS, rows))
    file = file_words(args) or " ."
    console.next(f"longboat set{file} NAME VALUE", f"longboat plan{file_words(args)} --set NAME=VALUE")
    return OK
