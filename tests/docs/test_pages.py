"""Every command that README and docs show is run, in the order shown, in an empty directory.

A fenced block with `title="NAME"` is a file. A block `console` holds commands behind `$ `, which must exit 0, or with
what `exit=N` says. What a page shows of their output is not compared: run ids and times differ.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
MAKE = re.compile(r"^make\b")


@dataclass(frozen=True)
class Step:
    """A file to write (`name`) or a command to run."""

    text: str
    name: str = ""
    code: int = 0


def steps(page: Path) -> list[Step]:
    found = []
    for block in BLOCK.finditer(page.read_text()):
        info, body = block["info"], block["body"]
        if title := re.search(r'title="([^"]+)"', info):
            found.append(Step(body, title[1]))
        elif info.startswith("console"):
            code = re.search(r"exit=(\d+)", info)
            commands = [line[2:] for line in body.splitlines() if line.startswith("$ ")]
            found += [Step(command, code=int(code[1]) if code else 0) for command in commands]
    return found


def test_there_are_pages_with_commands() -> None:
    assert sum(not step.name for page in PAGES for step in steps(page)) > 20


@pytest.fixture
def group() -> Iterator[int]:
    """A process group for all that a page starts: what a step leaves in the background ends with the test."""
    leader = subprocess.Popen(["sleep", "infinity"], process_group=0)
    yield leader.pid
    os.killpg(leader.pid, signal.SIGKILL)
    leader.wait()


@pytest.mark.parametrize("page", [p for p in PAGES if steps(p)], ids=lambda page: page.name)
def test_every_command_of_a_page_works(page: Path, tmp_path: Path, group: int) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "LONGBOAT_HOME": str(tmp_path / "home")}
    place = tmp_path / "work"
    place.mkdir()
    for step in steps(page):
        if step.name:
            (place / step.name).write_text(step.text)
        elif not MAKE.match(step.text):  # the README's two make commands are what runs this test
            done = subprocess.run(
                step.text,
                shell=True,
                cwd=place,
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
                process_group=group,
            )
            told = f"$ {step.text}\n{done.stdout}{done.stderr}"
            assert done.returncode == step.code, told
            assert "Traceback (most recent call last)" not in done.stderr, told
