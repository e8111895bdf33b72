"""The build cache makes each thing once, whoever else builds at the same time, and keeps nothing that is incomplete."""

import os
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.cluster import build_cache, children
from tests.cluster.places import CHECKOUT, cache

BUILD = """
import sys, time
from pathlib import Path
from tests.cluster import build_cache
def make(scratch):
    with open(sys.argv[1], "a") as log:
        log.write("made\\n")
    (scratch / "tool").write_text("half")
    Path(sys.argv[1] + ".began").touch()
    while not Path(sys.argv[1] + ".go").exists():
        time.sleep(0.01)
    (scratch / "tool").write_text("whole")
    return scratch / "tool"
print(build_cache.entry("tools", "tool", ["one"], make).read_text())
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def start_build(tmp_path: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", BUILD, str(tmp_path / "log")]
    return subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)


def until_exists(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.01)


def made(text: str) -> Path:
    def make(scratch: Path) -> Path:
        (scratch / "tool").write_text(text)
        return scratch / "tool"

    return build_cache.entry("tools", "tool", [text], make)


def test_two_builds_at_once_make_an_entry_once(tmp_path: Path) -> None:
    builds = [start_build(tmp_path), start_build(tmp_path)]
    until_exists(tmp_path / "log.began")
    (tmp_path / "log.go").touch()
    assert [build.communicate()[0] for build in builds] == ["whole\n", "whole\n"]
    assert (tmp_path / "log").read_text() == "made\n"


def test_a_killed_build_leaves_no_entry_and_the_next_one_makes_it(tmp_path: Path) -> None:
    build = start_build(tmp_path)
    until_exists(tmp_path / "log.began")
    build.kill()
    build.communicate()
    assert not list((cache() / "tools").glob("*"))
    (tmp_path / "log.go").touch()
    assert start_build(tmp_path).communicate()[0] == "whole\n"
    assert not list((cache() / "scratch").glob("*"))


def test_other_inputs_make_another_entry_and_the_first_one_stays(tmp_path: Path) -> None:
    first, second = made("one"), made("two")
    assert first != second
    assert made("one") == first
    assert (first.read_text(), second.read_text()) == ("one", "two")


def test_the_contents_of_a_file_are_an_input_and_not_its_place(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.write_text("a")
    there.write_text("a")
    assert build_cache.digest([here]) == build_cache.digest([there])
    there.write_text("b")
    assert build_cache.digest([here]) != build_cache.digest([there])
    assert build_cache.digest(["ab", "c"]) != build_cache.digest(["a", "bc"])


def test_an_entry_that_was_not_used_for_a_month_is_removed_by_the_next_build(tmp_path: Path) -> None:
    old, used = made("old"), made("used")
    long_ago = time.time() - (build_cache.UNUSED_DAYS + 1) * 24 * 3600
    os.utime(old, (long_ago, long_ago))
    os.utime(used, (long_ago, long_ago))
    made("used")
    made("new")
    assert not old.exists()
    assert used.exists()


def test_when_one_of_several_threads_fails_the_programs_of_the_others_are_killed(tmp_path: Path) -> None:
    def fail() -> None:
        until_exists(tmp_path / "runs")
        raise ValueError("this is the cause")

    def build() -> None:
        with children.SideBySide() as threads:
            slow.append(threads.start(children.run, "sh", "-c", 'touch "$0"; exec sleep 600', tmp_path / "runs"))
            threads.start(fail)

    slow: list[Future[subprocess.CompletedProcess[str]]] = []
    with pytest.raises(ValueError, match="this is the cause"):
        build()
    assert isinstance(slow[0].exception(), subprocess.CalledProcessError)
