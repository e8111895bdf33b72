"""Report of what a command removed and kept: a line each as it happens, or all as JSON at the end."""

from __future__ import annotations

from longboat.cli.console import Console


class RemovalReport:
    def __init__(self, console: Console, json: bool) -> None:
        self._console, self._json = console, json
        self._gone: list[dict[str, object]] = []
        self._kept: list[dict[str, object]] = []
        self._refused: list[dict[str, object]] = []

    def gone(self, what: str, more: str = "", verb: str = "removed", **facts: object) -> None:
        self._gone.append({"what": what, **facts})
        if not self._json:
            self._console.print(f"{verb} {what}{more}")

    def stays(self, what: str, command: str) -> None:
        self._kept.append({"what": what, "command": command})
        if not self._json:
            self._console.say(f"kept {what}; to delete it:\n  {command}")

    def refused(self, what: str, why: str) -> None:
        """For JSON only; on the terminal the error message says it."""
        self._refused.append({"what": what, "why": why})

    def close(self) -> None:
        if self._json:
            self._console.print_json({"removed": self._gone, "kept": self._kept, "refused": self._refused})
