"""Files between an agent and the depot beside the driver, over real sockets and two directories."""

from __future__ import annotations

import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from longboat.runtime import wire
from longboat.runtime.agent import exit_causes
from longboat.runtime.agent.file_sync import FileSync
from longboat.runtime.agent.file_transfer import FileClient, StaleIncarnation
from longboat.runtime.causes import CauseKind
from longboat.runtime.pod import file_server
from longboat.runtime.pod.fencing import WriteFence
from longboat.runtime.seat import Seat
from tests.ports import free_port

TOKEN = b"the run's token"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "there").mkdir()
    port = free_port()
    pid = file_server.serve(str(tmp_path / "there"), TOKEN, port)
    yield f"127.0.0.1:{port}"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def until(what: Callable[[], object]) -> None:
    due = time.monotonic() + 60
    while not what():
        assert time.monotonic() < due
        time.sleep(0.01)


def courier(address: str, directory: Path) -> FileSync:
    return FileSync(address, TOKEN, "train/worker-0", str(directory), lambda: None)


def test_a_log_goes_on_where_the_last_pod_left_it(address: str, tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "logs/train").mkdir(parents=True)
    (there / "logs/train/worker-0.log").write_bytes(b"of an earlier pod\n")
    log = here / "logs/train/worker-0.log"
    carrier = courier(address, here)
    carrier.begin([str(log)], [], "begun")
    until(lambda: carrier.done() == ["begun"])
    assert log.stat().st_size == 18, "a place in it is a place in the run's log"
    assert log.read_bytes()[-1:] == b"\n", "whether its last line is whole can be seen here"
    with open(log, "ab") as file:
        file.write(b"of this one\n")
    until(lambda: carrier.settled)
    assert (there / "logs/train/worker-0.log").read_bytes() == b"of an earlier pod\nof this one\n"


def test_a_checkpoint_is_done_only_once_it_has_arrived(address: str, tmp_path: Path) -> None:
    part = tmp_path / "here/checkpoints/train/generation-1/step-1/part"
    part.parent.mkdir(parents=True)
    part.write_bytes(os.urandom(3 << 20))
    carrier = courier(address, tmp_path / "here")
    carrier.send(str(part), "arrived")
    found: list[object] = []

    def arrived() -> bool:
        found.extend(carrier.done())
        return bool(found)

    until(arrived)
    assert found == ["arrived"]
    assert (tmp_path / "there/checkpoints/train/generation-1/step-1/part").read_bytes() == part.read_bytes()


def test_a_new_life_begins_with_what_others_left(address: str, tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "output/prepare").mkdir(parents=True)
    (there / "output/prepare/data").write_text("prepared")
    carrier = courier(address, here)
    carrier.begin([], [str(here / "output/prepare")], "begun")
    until(lambda: carrier.done() == ["begun"])
    assert (here / "output/prepare/data").read_text() == "prepared"
    (here / "output/prepare/more").write_text("added")
    (here / "output/prepare/model.part").write_text("no temporary file of ours")
    carrier.send_tree(str(here / "output/prepare"))
    until(lambda: carrier.settled)
    assert sorted(path.name for path in (there / "output/prepare").iterdir()) == ["data", "model.part", "more"]


def test_what_cannot_be_sent_is_kept_until_the_depot_is_back(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    port = free_port()
    log = tmp_path / "here/logs/train/worker-0.log"
    carrier = courier(f"127.0.0.1:{port}", tmp_path / "here")
    carrier.begin([str(log)], [], "begun")
    pid = file_server.serve(str(tmp_path / "there"), TOKEN, port)
    until(lambda: carrier.done() == ["begun"])
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with open(log, "ab") as file:
        file.write(b"nobody listens\n")
    pid = file_server.serve(str(tmp_path / "there"), TOKEN, port)
    try:
        until(lambda: carrier.settled)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert (tmp_path / "there/logs/train/worker-0.log").read_bytes() == b"nobody listens\n"


def test_what_is_no_file_is_left_out_and_the_rest_arrives(
    address: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    here, there = tmp_path / "here/output/train", tmp_path / "there/output/train"
    (here / "deep").mkdir(parents=True)
    (here / "aside").symlink_to(here / "deep")
    (here / "dangling").symlink_to("nowhere")
    os.mkfifo(here / "fifo")
    os.mknod(here / "socket", stat.S_IFSOCK | 0o600)
    (here / "deep/model").write_text("weights")
    (here / "latest").symlink_to("deep/model")
    carrier = courier(address, tmp_path / "here")
    carrier.send_tree(str(here))
    until(lambda: carrier.settled)
    assert sorted(str(path.relative_to(there)) for path in there.rglob("*")) == ["deep", "deep/model", "latest"]
    assert (there / "latest").read_text() == "weights"
    told = capfd.readouterr().err
    assert all(f"{here / name} is not copied" in told for name in ("aside", "dangling", "fifo", "socket"))
    assert "cannot be reached" not in told


def test_a_file_that_nobody_may_read_is_left_out(address: str, tmp_path: Path) -> None:
    here = tmp_path / "here/output/train"
    here.mkdir(parents=True)
    (here / "secret").symlink_to("secret")  # a link to itself cannot be read by root either
    part = tmp_path / "here/checkpoints/train/generation-1/step-1/part"
    part.parent.mkdir(parents=True)
    part.symlink_to("part")
    carrier = courier(address, tmp_path / "here")
    carrier.send(str(part), "told")
    carrier.send_tree(str(here))
    until(lambda: carrier.done() == ["told"])
    until(lambda: carrier.settled)


def test_what_the_depot_can_never_take_is_left_out(
    address: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    here, there = tmp_path / "here/output/train", tmp_path / "there/output/train"
    here.mkdir(parents=True)
    (there / "folder").mkdir(parents=True)
    (there / "file").touch()
    (here / "file").mkdir()
    for name in ("file/inside", "folder", "x" * 255, "zulu"):
        (here / name).write_text("content")
    carrier = courier(address, tmp_path / "here")
    carrier.send_tree(str(here))
    until(lambda: carrier.settled)
    assert all((there / name).read_text() == "content" for name in ("x" * 255, "zulu"))
    assert capfd.readouterr().err.count("is not copied to the run") == 2


def test_a_tree_is_listed_however_many_files_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "there/output/train"
    tree.mkdir(parents=True)
    for number in range(2 * file_server.PAGE + 1):
        (tree / f"{number:0200d}").touch()
    (tree / "gone").symlink_to("nowhere")
    monkeypatch.setattr(wire, "LIMIT", 300 * 1024)
    port = free_port()
    pid = file_server.serve(str(tmp_path / "there"), TOKEN, port)
    try:
        client = FileClient(f"127.0.0.1:{port}", TOKEN, "train/worker-0", timeout=20.0)
        found = [name for name, _, _ in client.list("output/train")]
        assert found == [f"output/train/{number:0200d}" for number in range(2 * file_server.PAGE + 1)]
        client.close()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_nothing_is_taken_from_a_life_once_a_later_one_has_claimed_its_place(address: str, tmp_path: Path) -> None:
    log, model = "logs/train/worker-0.log", tmp_path / "model"
    model.write_bytes(b"weights")
    old, new = (FileClient(address, TOKEN, "train/worker-0", timeout=20.0) for _ in range(2))
    old.claim((1, 0))
    old.append(log, 0, b"old\n")
    new.claim((1, 1))
    assert new.end(log)[0] == 4
    new.append(log, 4, b"new\n")
    with pytest.raises(StaleIncarnation):
        old.append(log, 4, b"late")
    with pytest.raises(StaleIncarnation), open(model, "rb") as file:
        old.put("output/train/model", file)
    with pytest.raises(StaleIncarnation):
        FileClient(address, TOKEN, "train/worker-0", timeout=20.0).claim((1, 0))
    assert (tmp_path / "there" / log).read_bytes() == b"old\nnew\n"
    assert list((tmp_path / "there/output/train").iterdir()) == []


def test_a_generation_ends_the_right_to_write_of_those_before_it_at_every_seat_of_its_stage(address: str) -> None:
    old, peer, other = (
        FileClient(address, TOKEN, name) for name in ("train/worker-0", "train/worker-1", "test/worker-0")
    )
    old.claim((1, 0))
    other.claim((1, 0))
    peer.claim((2, 0))
    with pytest.raises(StaleIncarnation):
        old.append("logs/train/worker-0.log", 0, b"late")
    other.append("logs/test/worker-0.log", 0, b"in time")
    old.claim((2, 0))
    old.append("logs/train/worker-0.log", 0, b"in time")


def test_a_depot_that_is_begun_anew_knows_from_the_journal_whose_place_was_taken() -> None:
    claims = WriteFence({"train": 2}, {Seat("train", "worker", 0): (2, 1)})
    for incarnation in ((1, 0), (2, 0)):
        with pytest.raises(StaleIncarnation):
            claims.claim("train/worker-0", incarnation)
    with pytest.raises(StaleIncarnation):
        claims.claim("train/worker-1", (1, 5))
    claims.claim("train/worker-0", (2, 1))
    claims.claim("train/worker-1", (2, 0))


def test_a_courier_whose_place_was_taken_drops_what_is_left_and_carries_a_later_life(
    address: str, tmp_path: Path
) -> None:
    log = tmp_path / "here/logs/train/worker-0.log"
    carrier = courier(address, tmp_path / "here")
    carrier.begin([str(log)], [], "begun", incarnation=(1, 0))
    until(lambda: carrier.done() == ["begun"])
    FileClient(address, TOKEN, "train/worker-0").claim((2, 0))
    with open(log, "ab") as file:
        file.write(b"late\n")
    carrier.send_tree(str(tmp_path / "here/output"))
    until(lambda: carrier.settled)
    carrier.begin([], [], "again", incarnation=(3, 0))
    until(lambda: carrier.done() == ["again"])
    assert not (tmp_path / "there/logs/train/worker-0.log").exists()


def test_a_life_whose_place_was_taken_before_it_began_is_told_so(address: str, tmp_path: Path) -> None:
    FileClient(address, TOKEN, "train/merge-0").claim((2, 0))
    late = courier(address, tmp_path / "late")
    late.begin([], [], ("begin", [1, 0]), incarnation=(1, 0))
    late.begin([], [], ("begin", [2, 0]), incarnation=(2, 0))
    done: list[Any] = []

    def both() -> bool:
        done.extend(late.done())
        return len(done) == 2

    until(both)
    (kind, (incarnation, error)), begun = done
    assert (kind, incarnation, exit_causes.of_writing(error).kind) == ("unable", [1, 0], CauseKind.AGENT_LOST)
    assert begun == ("begin", [2, 0])


def test_a_stranger_gets_nothing(address: str) -> None:
    with pytest.raises((wire.WireError, OSError)):
        FileClient(address, b"another token", "train/worker-0", timeout=5.0)


def test_a_stranger_may_not_say_much(address: str) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as stranger:
        assert stranger.recv(4096)
        stranger.sendall(struct.pack(">I", wire.STRANGER_LIMIT + 1))
        assert stranger.recv(4096) == b"", "and is not waited for"


@pytest.mark.parametrize("path", ["events.jsonl", "../outside", "/etc/passwd", "logs/../events.jsonl"])
def test_nothing_leads_out_of_what_agents_share(address: str, path: str) -> None:
    client = FileClient(address, TOKEN, "train/worker-0", timeout=5.0)
    with pytest.raises((wire.WireError, OSError)):
        client.append(path, 0, b"x")
    client.close()


def test_agents_do_not_wait_for_each_other(address: str, tmp_path: Path) -> None:
    def write(number: int) -> None:
        client = FileClient(address, TOKEN, f"train/worker-{number}")
        for place in range(50):
            client.append(f"logs/train/worker-{number}.log", place * 2, b"%d\n" % (number % 10))
        client.close()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(20):
        assert (tmp_path / f"there/logs/train/worker-{number}.log").read_bytes() == b"%d\n" % (number % 10) * 50


DRIVER = """
import os, signal, sys, time
from longboat.runtime.pod import file_server
from longboat.runtime.seat import Seat
beside = file_server.FileServerProcess(sys.argv[1], b"token", int(sys.argv[2]))
if sys.argv[3] == "close":
    beside.close()
    print("goes on")
else:
    os.kill(beside._pid, signal.SIGKILL)
    time.sleep(60)
"""


@pytest.mark.parametrize(("how", "code", "said"), [("close", 0, "goes on"), ("kill", 1, "its file server ended")])
def test_a_driver_ends_with_its_depot_unless_it_ended_it_itself(tmp_path: Path, how: str, code: int, said: str) -> None:
    command = [sys.executable, "-c", DRIVER, str(tmp_path), str(free_port()), how]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
    assert done.returncode == code
    assert said in done.stdout + done.stderr
