"""List models: versions, kind, metrics, size, and the run that made them.

Use it to find a model to serve or to ask. Checksums are compared by `longboat serve`, or here with --check.

  longboat models                 models of all runs, the newest run first
  longboat models mnist           models of a run
  longboat models ./models        all models below a directory
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from longboat.cli import table
from longboat.cli.console import Console, next_lines
from longboat.runs import formatting
from longboat.runs.store import Store
from longboat.runtime import bundle as bundles
from longboat.runtime.errors import FAILED, OK, LongboatError
from longboat.runtime.light_dataclasses import dataclass


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("place", nargs="?", metavar="DIR|RUN", help="directory or run to search (default: all runs)")
    parser.add_argument(
        "--check", action="store_true", help="compare files with their checksums; exit 1 if one differs"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


@dataclass(frozen=True)
class Row:
    """One version of a model."""

    name: str
    version: int
    path: str
    bundle: bundles.Bundle | None
    problem: str = ""


def main(args: argparse.Namespace, console: Console) -> int:
    rows = [row for directory in _directories(args.place, console) for row in _rows(directory, args.check)]
    if args.json:
        console.print_json([_json(row) for row in rows])
    elif rows:
        headers = ("MODEL", "VERSION", "KIND", "METRICS", "SIZE", "RUN", "WHERE")
        console.print(table.render(headers, [_cells(row) for row in rows], columns=console.columns))
    broken = [row for row in rows if row.problem]
    for row in broken:
        console.say(f"damaged: {row.problem}")
    if not args.json:
        console.say("\n".join(_next(rows, args.place)))
    return FAILED if broken and args.check else OK


def _directories(place: str | None, console: Console) -> list[Path]:
    """The directories to search."""
    store = Store(console.home)
    if place is None:
        return [store.root / name / "output" for name in store.ids()]
    path = Path(place).expanduser()
    if path.is_dir():
        return [path.absolute()]
    try:
        return [store.find(place) / "output"]
    except LongboatError as error:
        raise LongboatError(f"{place} is neither a directory nor a run", error.hint) from None


def _rows(root: Path, check: bool) -> list[Row]:
    rows: list[Row] = []
    for directory, names, files in os.walk(root):
        names[:] = sorted(name for name in names if not name.startswith("."))
        if "bundle.json" not in files:
            continue
        names[:] = []
        version, model = os.path.basename(directory), os.path.basename(os.path.dirname(directory))
        number = int(version) if version.isdecimal() else 0
        try:
            rows.append(Row(model, number, directory, bundles.read(directory, verify=check)))
        except LongboatError as error:
            rows.append(Row(model, number, directory, None, error.message))
    return sorted(rows, key=lambda row: (os.path.dirname(row.path), row.version))


def _cells(row: Row) -> tuple[str, ...]:
    if row.bundle is None:
        return row.name, str(row.version), "damaged", "", "", "", row.path
    bundle = row.bundle
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in bundle.metrics.items())
    run = bundle.provenance.get("run", "")
    return row.name, str(row.version), bundle.kind, metrics, formatting.size(bundle.size), run, row.path


def _json(row: Row) -> dict[str, Any]:
    document: dict[str, Any] = {"name": row.name, "version": row.version, "path": row.path}
    if row.bundle is None:
        return {**document, "problem": row.problem}
    bundle = row.bundle

    def ends(tensors: tuple[bundles.Tensor, ...]) -> list[dict[str, Any]]:
        return [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape)} for t in tensors]

    return {
        **document,
        "kind": bundle.kind,
        "title": bundle.title,
        "inputs": ends(bundle.inputs),
        "outputs": ends(bundle.outputs),
        "metrics": dict(bundle.metrics),
        "size": bundle.size,
        "provenance": dict(bundle.provenance),
    }


def _next(rows: list[Row], place: str | None) -> list[str]:
    loadable = [row for row in rows if row.bundle is not None]
    if loadable:
        model = os.path.dirname(loadable[-1].path)
        where = os.path.relpath(model) if not os.path.relpath(model).startswith("..") else model
        return next_lines([f"longboat serve {where}", f"longboat predict {where}"])
    if rows:
        return []
    where = f"in {place}" if place else "in any run"
    return [f"no models {where}", *next_lines(["longboat run JOB.yaml"] if place is None else [])]
