"""Write a job file: copy a recipe, or start from your own script.

Use it to begin: a recipe is a complete job that runs as it is.

longboat init                      list the recipes
longboat init NAME [DIR]           copy a recipe into the directory DIR (default: NAME)
longboat init --from train.py      write job.yaml for your script
"""

from __future__ import annotations

import argparse
import os
import shlex

from longboat.cli.console import Console
from longboat.runtime.errors import OK, LongboatError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="recipe to copy (without it, list them)")
    parser.add_argument("directory", nargs="?", metavar="DIR", help="target directory, new or empty (default: NAME)")
    parser.add_argument("--from", dest="script", metavar="SCRIPT", help="write a job file that runs this script")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="with --from: the job file (default: job.yaml beside it)"
    )
    parser.add_argument("--force", action="store_true", help="with --from: replace the job file if it exists")
    parser.add_argument("--json", action="store_true", help="print the list of recipes as JSON")


def main(args: argparse.Namespace, console: Console) -> int:
    if args.script is not None:
        if args.name is not None:
            raise LongboatError("both a recipe and --from were given", "use one of them")
        return _around(args.script, args.output, args.force, console)
    if args.output is not None or args.force:
        raise LongboatError("-o and --force need --from SCRIPT", "longboat init --from train.py -o job.yaml")
    if args.name is not None:
        return _copy(args.name, args.directory or args.name, console)
    return _list(args.json, console)


def _list(as_json: bool, console: Console) -> int:
    from longboat import recipes

    known = recipes.every()
    if as_json:
        from longboat.runtime.light_dataclasses import asdict

        console.print_json([asdict(recipe) for recipe in known])
        return OK
    from longboat.cli import table

    rows = [(r.name, ", ".join(r.shapes), ", ".join(r.extras) or "-", r.about) for r in known]
    console.print(table.render(("RECIPE", "SHAPE", "NEEDS", "ABOUT"), rows))
    console.next(
        "longboat init NAME [DIR]         copy one", "longboat init --from train.py    start from your own script"
    )
    return OK


def _copy(name: str, target: str, console: Console) -> int:
    from longboat import recipes
    from longboat.install_hint import install_command

    recipe = recipes.find(name)
    for path in recipes.copy(recipe, target):
        console.print(os.path.join(target, path))
    job = shlex.quote(os.path.join(target, "job.yaml"))
    missing = [extra for extra in recipe.extras if not _importable(extra)]
    install = [install_command(*missing)] if missing else []
    console.next(*install, f"longboat plan {job}", f"longboat run {job}{_demo(recipe.path)}")
    return OK


def _importable(extra: str) -> bool:
    from importlib.util import find_spec

    return find_spec({"mpi": "mpi4py"}.get(extra, extra)) is not None


def _demo(path: str) -> str:
    with open(os.path.join(path, "job.yaml"), encoding="utf-8") as file:
        return " --preset demo" if "\n  demo:" in file.read() else ""


def _around(script: str, output: str | None, force: bool, console: Console) -> int:
    from longboat import job_scaffold

    target = output or os.path.join(os.path.dirname(script), "job.yaml")
    guess = job_scaffold.read(script)
    text = job_scaffold.job_file(guess, os.path.dirname(target) or ".")
    try:
        with open(target, "w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise LongboatError(
            f"{target} already exists", "choose another name with -o, or replace it with --force"
        ) from None
    except OSError as error:
        raise LongboatError(f"cannot write {target}: {error.strerror}") from error
    console.print(target)
    job = shlex.quote(target)
    console.say(f"shape {guess.shape}: {guess.reason}")
    console.next(f"longboat plan {job}", f"longboat run {job}")
    return OK
