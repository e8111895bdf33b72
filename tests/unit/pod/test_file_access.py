"""What a pod answers when a laptop asks for files: the shipped program itself, as an exec of the cluster starts it."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from longboat import zipapp
from longboat.runtime import filetree
from longboat.runtime.pod import file_access, idle_tracker


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ship") / "longboat.pyz"
    path.write_bytes(zipapp.build())
    return path


def ask(program: Path, word: str, given: bytes = b"", **asked: object) -> subprocess.CompletedProcess[bytes]:
    words = [sys.executable, "-S", "-E", str(program), word, json.dumps(asked)]
    return subprocess.run(words, input=given, capture_output=True, check=False)


def test_files_are_listed_given_and_taken(program: Path, tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "a").mkdir(parents=True)
    (top / "a" / "data").write_bytes(bytes(range(256)) * 5000)
    listed = ask(program, "list", top=str(top), path="", depth=2)
    assert [json.loads(line) for line in listed.stdout.splitlines()] == [["a/", 1280000, 0], ["a/data", 1280000, 1]]
    given = ask(program, "get", top=str(top), path="a")
    filetree.store(filetree.unpack(io.BytesIO(given.stdout)), str(tmp_path / "copy"))
    assert (tmp_path / "copy" / "data").read_bytes() == (top / "a" / "data").read_bytes()
    taken = ask(program, "put", given.stdout, top=str(top), path="b/", name="again")
    assert taken.stdout == b"b/again\n"
    assert (top / "b" / "again" / "data").read_bytes() == (top / "a" / "data").read_bytes()


def test_what_is_not_there_or_not_allowed_is_told_by_exit_code_and_words(program: Path, tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("")
    gone = ask(program, "get", top=str(tmp_path), path="wieghts")
    assert (gone.returncode, gone.stdout) == (file_access.MISSING, b"")
    assert json.loads(gone.stderr) == {"path": "wieghts", "near": "weights", "outside": False}
    outside = ask(program, "put", top=str(tmp_path), path="../x", name="n")
    assert json.loads(outside.stderr)["outside"] is True
    stream = io.BytesIO()
    filetree.pack([filetree.FileItem("", 1, 0o644, 0.0, io.BytesIO(b"x"))], stream)
    refused = ask(program, "put", stream.getvalue(), top=str(tmp_path), path="weights/below", name="n")
    assert refused.returncode == file_access.REFUSED
    assert b"weights: File exists" in refused.stderr


def test_a_helper_ends_by_itself_when_nobody_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_tracker, "USED", str(tmp_path / "used"))
    monkeypatch.setattr(file_access, "IDLE", 0.5)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert file_access.wait([]) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
