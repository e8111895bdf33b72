"""Runs the command named on the command line; turns errors into a message and an exit code.

A command is a module of this package with two functions: `arguments(parser)` adds its arguments to an argparse parser,
`main(args, console)` does the work and returns the exit code. With TAKES_COMMAND, `args.command` holds the words after
`--`. Only the module of that command is imported; `--help` imports none.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import sys
from types import ModuleType
from typing import NoReturn

from longboat import __version__
from longboat.cli.console import Console
from longboat.runtime.errors import FAILED, INTERRUPTED, OK, WRONG_USE, LongboatError

GROUPS: dict[str, dict[str, str]] = {
    "a job file": {
        "init": "write a job file: copy a recipe, or start from your own script",
        "plan": "show what a run would do, without running it",
        "params": "list the params of a job file",
        "set": "change a param in a job file, keeping its comments",
        "schema": "print the JSON Schema of the job file, for editors",
        "build": "build an image with a job's code and packages, and push it",
        "export": "write the Kubernetes objects of a run as a YAML file",
    },
    "a run": {
        "run": "run a job",
        "attach": "watch a run until it ends",
        "wait": "wait until a run ends, and exit with its exit code",
        "url": "print the address of a run's served model",
        "stop": "stop a run",
        "exec": "run a command beside a rank",
    },
    "results": {
        "status": "list runs, or show one run rank by rank",
        "logs": "print or follow what the ranks wrote",
        "board": "open TensorBoard on a run",
        "why": "explain why a run ended, and what to do next",
        "checkpoints": "list the checkpoints of a run, and verify them",
        "ls": "list the files of a run",
        "cat": "print a file of a run",
        "cp": "copy files out of a run, or into it",
        "rm": "remove runs",
        "prune": "remove old runs",
        "left": "list what runs left in a cluster, and what may cost money",
    },
    "a model": {
        "serve": "serve models over REST and gRPC, with a page to try each",
        "models": "list models, their versions and the runs that made them",
        "predict": "send examples to a model, served or on this machine",
        "bench": "measure the speed and accuracy of a model server",
    },
    "this machine": {
        "doctor": "check what this machine or a cluster can do, and what is missing",
        "completion": "print a completion script for your shell",
    },
}

COMMANDS = {name: about for group in GROUPS.values() for name, about in group.items()}


class _Parser(argparse.ArgumentParser):
    """Reports mistakes like every other part of Longboat: what is wrong, then what to do."""

    def error(self, message: str) -> NoReturn:
        raise LongboatError(message, f"`{self.prog} --help` shows its options")


def parser_of(name: str) -> tuple[argparse.ArgumentParser, ModuleType]:
    """The parser and the module of a command."""
    module = importlib.import_module(f"longboat.cli.{name}_command")
    parser = _Parser(
        prog=f"longboat {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.arguments(parser)
    return parser, module


def help_text() -> str:
    lines = ["longboat: one job file becomes a gang of training processes.", "", "usage: longboat COMMAND [...]", ""]
    for group, commands in GROUPS.items():
        lines += [f"{group}:", *(f"  {name:<11} {about}" for name, about in commands.items()), ""]
    lines += [
        "Use `longboat COMMAND --help` for details, --version for the version.",
        "Exit codes: 0 done, 1 the job failed, 2 wrong use, 3 the gate was not met, 130 interrupted.",
    ]
    return "\n".join(lines)


def main(argv: list[str], console: Console) -> int:
    if not argv or argv[0] in ("-h", "--help", "help") and len(argv) == 1:
        console.print(help_text())
        return OK if argv else WRONG_USE
    if argv[0] in ("-V", "--version"):
        console.print(f"longboat {__version__}")
        return OK
    if argv[0] == "help":
        argv = [argv[1], "--help"]
    name, *rest = argv
    if name not in COMMANDS:
        raise LongboatError(f"unknown command {name!r}", _nearest_command(name))
    parser, module = parser_of(name)
    options, command = _split(rest) if getattr(module, "TAKES_COMMAND", False) else (rest, [])
    args = parser.parse_args(options, argparse.Namespace(command=command))
    if getattr(args, "verbose", False):
        console = console.verbose()
    code: int = module.main(args, console)
    return code


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Splits at the first `--`: the command to run follows it."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


def _nearest_command(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, COMMANDS, n=1)
    if near:
        return f"did you mean `longboat {near[0]}`?"
    if name.endswith((".yaml", ".yml")):
        return f"to run a job file: `longboat run {name}`"
    return "`longboat --help` lists the commands"


def program() -> int:
    """The `longboat` program: uses the real console, and shows no traceback to the user."""
    _open_streams()
    console = Console()
    try:
        code = main(sys.argv[1:], console)
        console.out.flush()
        return code
    except LongboatError as error:
        console.say(f"error: {error.message}" + (f"\n\nhint: {error.hint}" if error.hint else ""))
        return error.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except PermissionError as error:
        if error.filename is None:
            return _bug(error, console)
        console.say(
            f"error: no access to {error.filename}: {error.strerror}\n\n"
            "hint: run the command as the user that owns it, or change its permissions"
        )
        return WRONG_USE
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS):
            return _bug(error, console)
        if error.filename is not None:
            console.say(f"error: cannot write {error.filename}: {error.strerror}")
            return FAILED
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        console.say(f"error: cannot write the output: {error.strerror}")
        return FAILED
    except Exception as error:
        return _bug(error, console)


def _open_streams() -> None:
    """Opens closed standard streams as the null device, so that no socket or log gets their number."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(number, mode, encoding="utf-8"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for characters that the locale cannot write, as on stderr


def _bug(error: Exception, console: Console) -> int:
    import tempfile
    import traceback

    if console.environ.get("LONGBOAT_DEBUG"):
        raise error
    with tempfile.NamedTemporaryFile("w", 1, "utf-8", prefix="longboat-bug-", suffix=".txt", delete=False) as file:
        file.write(f"longboat {__version__} {sys.argv[1:]}\n")
        traceback.print_exception(error, file=file)
    what = f"longboat itself failed: {type(error).__name__}: {error}"
    console.say(
        f"error: {what}\n\nhint: this is a bug; report it with {file.name} and, of a run, its debug logs (run -v)"
    )
    return FAILED
