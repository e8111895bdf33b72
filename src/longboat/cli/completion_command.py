"""Print a completion script for your shell.

Use it once, then open a new shell: Tab completes commands, options and files.

bash   longboat completion bash > ~/.local/share/bash-completion/completions/longboat
zsh    longboat completion zsh > "${fpath[1]}/_longboat"
fish   longboat completion fish > ~/.config/fish/completions/longboat.fish
"""

from __future__ import annotations

import argparse

from longboat.cli.console import Console
from longboat.runtime.errors import OK

SHELLS = ("bash", "zsh", "fish")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")


def main(args: argparse.Namespace, console: Console) -> int:
    import shtab

    console.print(shtab.complete(full_parser(), shell=args.shell))
    return OK


def full_parser() -> argparse.ArgumentParser:
    """One parser with all commands below it; every other command builds only its own."""
    import importlib

    import shtab

    from longboat.cli.main import COMMANDS

    parser = argparse.ArgumentParser(prog="longboat")
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(metavar="COMMAND")
    for name, about in COMMANDS.items():
        module = importlib.import_module(f"longboat.cli.{name}_command")
        below = commands.add_parser(name, help=about)
        module.arguments(below)
        for action in below._actions:  # noqa: SLF001 (shtab has no other way in)
            if action.metavar in ("FILE", "SCRIPT", "DIR"):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return parser
