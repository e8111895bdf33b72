"""Damaged checkpoints in real runs: nothing is deleted or skipped in silence, and `longboat checkpoints` shows them."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.local.place import Place

JOB = """
restarts: 0
run: python train.py
"""
TRAIN = """
import os
import numpy as np
import longboat

state = longboat.checkpoint.load()
total, first = (state.arrays["total"], state.step + 1) if state else (np.zeros(1000), 1)
print("begins at step", first, flush=True)
for step in range(first, 41):
    total = total * 2 % 1009 + step
    if step in (10, 20, 30):
        longboat.checkpoint.save({"total": total}, step=step, keep=3, wait=True)
output = os.environ["LONGBOAT_OUTPUT_DIR"]
if not state:
    raise SystemExit("resume me")
with open(os.path.join(output, "total"), "w") as file:
    file.write(str(total[0]))
"""
RESULT = 0.0
for number in range(1, 41):
    RESULT = RESULT * 2 % 1009 + number


@pytest.fixture
def failed(longboat: Place) -> Place:
    """A run that failed at its end, with checkpoints of the steps 10, 20 and 30."""
    assert longboat.run(JOB, train=TRAIN).code == 1
    assert [event["step"] for event in longboat.events("checkpoint")] == [10, 20, 30]
    return longboat


def manifest(place: Place) -> Path:
    return place.dir / "checkpoints/main/manifest.json"


def part(place: Place, step: int) -> Path:
    (path,) = place.dir.glob(f"checkpoints/main/*/step-{step:09d}/*.safetensors")
    return path


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)


def begins(place: Place) -> list[int]:
    log = (place.dir / "logs/main/worker-0.log").read_text()
    return [int(line.split()[-1]) for line in log.splitlines() if line.startswith("begins at")]


def listed(place: Place, *options: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(place("checkpoints", "--json", *options).out)
    return found


def test_a_damaged_manifest_loses_no_checkpoint_and_is_reported(failed: Place) -> None:
    with manifest(failed).open("ab") as file:
        file.write(b"x")
    shown = failed("checkpoints")
    assert (shown.code, "manifest.json is damaged" in shown.err, "--resume" in shown.err) == (1, True, True), shown.err
    said = failed("run", "--resume", "demo")
    assert said.code == 0, said.err
    assert begins(failed) == [1, 31]
    assert float((failed.dir / "output/main/total").read_text()) == RESULT
    (event,) = failed.events("checkpoint.damaged")
    assert (event["path"], event["resume_step"]) == ("checkpoints/main/manifest.json", 30)
    for text in (said.out + said.err, failed("why").out):
        assert "checkpoints/main/manifest.json is damaged: Extra data" in text
        assert "resuming from the checkpoint of step 30" in text
    assert all(part(failed, step).exists() for step in (10, 20, 30))


def test_a_manifest_that_cannot_be_read_stops_the_run_before_it_begins(failed: Place) -> None:
    manifest(failed).rename(failed.dir / "away")
    manifest(failed).mkdir()  # root may read every file
    before = (failed.dir / "events.jsonl").read_bytes()
    said = failed("run", "--resume", "demo")
    assert said.code == 2
    assert f"error: cannot read the list of checkpoints {manifest(failed)}: Is a directory" in said.err
    assert f"hint: make it readable (`ls -l {manifest(failed)}`" in said.err
    assert (failed.dir / "events.jsonl").read_bytes() == before
    manifest(failed).rmdir()
    (failed.dir / "away").rename(manifest(failed))
    assert failed("run", "--resume", "demo").code == 0
    assert begins(failed) == [1, 31]


@pytest.mark.parametrize(("damaged", "resumed"), [((30,), 20), ((20, 30), 10), ((10, 20, 30), None)])
def test_a_flipped_bit_is_a_reported_fallback(failed: Place, damaged: tuple[int, ...], resumed: int | None) -> None:
    for step in damaged:
        flip(part(failed, step))
    assert [each["damage"] for each in listed(failed)] == ["", "", ""]
    shown = failed("checkpoints", "--verify")
    assert shown.code == 1
    assert shown.out.count("damaged: part-00000-of-00001.safetensors: its checksum is") == len(damaged)
    assert shown.out.count("intact") == 3 - len(damaged)
    said = failed("run", "--resume", "demo")
    assert said.code == (0 if resumed else 1), said.err  # from the beginning, it fails at its end as before
    assert begins(failed) == [1, resumed + 1 if resumed else 1]
    events = failed.events("checkpoint.damaged")
    assert [(event["step"], event.get("resume_step")) for event in events] == [(s, resumed) for s in damaged[::-1]]
    assert all("its checksum is" in event["reason"] for event in events)
    start = f"resuming from the checkpoint of step {resumed}" if resumed else "starting from the beginning"
    for text in (said.out + said.err, failed("why").out):
        assert f"step-{damaged[-1]:09d} is damaged: part-00000-of-00001.safetensors: its checksum is" in text
        assert start in text
    if resumed:
        assert float((failed.dir / "output/main/total").read_text()) == RESULT


def test_checkpoints_are_listed_newest_first_for_people_and_for_programs(failed: Place) -> None:
    assert [(each["stage"], each["step"], each["generation"]) for each in listed(failed)] == [
        ("main", 30, 1),
        ("main", 20, 1),
        ("main", 10, 1),
    ]
    assert [each["parts"][0]["bytes"] for each in listed(failed)] == [
        part(failed, step).stat().st_size for step in (30, 20, 10)
    ]
    shown = failed("checkpoints", "demo")
    assert (shown.code, shown.out.split()[:3]) == (0, ["STAGE", "STEP", "RANK"])
    assert shown.out.count("complete") == 3
    assert failed("checkpoints", "--verify").out.count("intact") == 3
    part(failed, 20).unlink()
    shown = failed("checkpoints", "--verify")
    assert (shown.code, "part-00000-of-00001.safetensors: missing" in shown.out) == (1, True)


def test_a_run_without_checkpoints_says_so(longboat: Place) -> None:
    assert longboat.run("run: python train.py", train="print('nothing to save')").code == 0
    shown = longboat("checkpoints", "--verify")
    assert (shown.code, shown.out, "has no complete checkpoint" in shown.err) == (0, "", True)
    assert listed(longboat) == []


def test_no_part_of_a_dead_generation_survives_success(longboat: Place) -> None:
    """The first generation dies with an incomplete checkpoint, and the second ends at once with another."""
    train = """
        import os, signal
        import numpy as np, longboat
        first = os.environ["LONGBOAT_GENERATION"] == "1"
        longboat.checkpoint.save({"w": np.ones(3)}, step=1, shard=(0, 2), wait=True)
        if first:
            os.kill(os.getpid(), signal.SIGKILL)
        longboat.checkpoint.save({"w": np.ones(3)}, step=2, wait=True)
    """
    assert longboat.run("run: python train.py", train=textwrap.dedent(train)).code == 0
    assert [path.parent.name for path in longboat.dir.glob("checkpoints/**/part-*")] == ["step-000000002"]
