"""List the checkpoints of a run, and verify them.

Use it to see what a resumed run can continue from: the newest intact checkpoint of each stage. --verify reads every
file and compares its checksum; if one is damaged, the exit code is 1. For a run in a cluster, it downloads them all.

  longboat checkpoints
  longboat checkpoints mnist --verify

RUN is a run's id, the beginning of one, or a job's name; without it, the newest run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from longboat.cli import engine_options, table
from longboat.cli.console import Console
from longboat.runs import formatting
from longboat.runs.run_files import RunFiles
from longboat.runtime import run_layout, tensors
from longboat.runtime.driver.checkpoints import CompleteCheckpoint, parse_manifest
from longboat.runtime.errors import FAILED, OK, LongboatError
from longboat.runtime.light_dataclasses import asdict, replace


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run (the newest if not given)")
    parser.add_argument("--verify", action="store_true", help="read every file and compare its checksum")
    parser.add_argument("--json", action="store_true", help="print checkpoints and their parts as JSON")
    engine_options.add_place_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    with engine_options.find(args, console, args.run).files() as files:
        listed = [(stage, each) for stage in _stages(files) for each in _checkpoints(files, stage)]
        if args.verify:
            console.say(f"verifying {formatting.size(sum(each.bytes for _, each in listed))} of {files.run}")
            listed = [(stage, replace(each, damage=_damage(files, each))) for stage, each in listed]
    if args.json:
        console.print_json([{"stage": stage, **asdict(each), "bytes": each.bytes} for stage, each in listed])
    elif listed:
        headers = ("STAGE", "STEP", "RANK", "GENERATION", "PARTS", "SIZE", "STATE")
        console.print(table.render(headers, [_row(stage, each, args.verify) for stage, each in listed]))
    else:
        console.say(f"{files.run} has no complete checkpoint")
    if listed and not args.verify:
        console.next(f"longboat checkpoints {files.run} --verify")
    return FAILED if args.verify and any(each.damage for _, each in listed) else OK


def _row(stage: str, each: CompleteCheckpoint, verified: bool) -> Sequence[str]:
    state = f"damaged: {each.damage}" if each.damage else "intact" if verified else "complete"
    numbers = (str(each.step), each.owner or "all", str(each.generation), str(len(each.parts)))
    return (stage, *numbers, formatting.size(each.bytes), state)


def _stages(files: RunFiles) -> list[str]:
    """Stages with a list of checkpoints."""
    if not any(entry.path == "checkpoints/" for entry in files.entries("", 1)):
        return []
    paths = {entry.path for entry in files.entries("checkpoints", 2)}
    stages = [path.split("/")[1] for path in sorted(paths) if path.endswith("/")]
    return [stage for stage in dict.fromkeys(stages) if run_layout.manifest(stage) in paths]


def _checkpoints(files: RunFiles, stage: str) -> list[CompleteCheckpoint]:
    """A stage's checkpoints, the newest first."""
    path = run_layout.manifest(stage)
    data = b"".join(item.source.read() for item in files.items(path) if item.source is not None)
    try:
        listed = parse_manifest(data)
    except ValueError as error:
        raise LongboatError(
            f"{files.run}:{path} is damaged: {error}",
            f"nothing is lost: `longboat run --resume {files.run}` makes it anew from the checkpoints' files",
            FAILED,
        ) from None
    return sorted(listed, key=lambda each: (each.generation, each.step), reverse=True)


def _damage(files: RunFiles, checkpoint: CompleteCheckpoint) -> str:
    """What is wrong with its files; empty if nothing."""
    unseen = {part.name: part for part in checkpoint.parts}
    try:
        for item in files.items(checkpoint.path):
            part = unseen.pop(item.path, None)
            damage = tensors.damage(item.source, part.bytes, part.crc32) if part and item.source else ""
            if damage:
                return f"{item.path}: {damage}"
    except (LongboatError, OSError) as error:
        return str(error)
    return f"{', '.join(unseen)}: missing" if unseen else ""
