"""The driver's door, with real sockets: who may come in, and what does not bring it down."""

from __future__ import annotations

import resource
import selectors
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from longboat.runtime import wire
from longboat.runtime.driver.agent_links import HANDSHAKE, AgentLink, AgentLinks
from longboat.runtime.seat import Seat

TOKEN = b"the token of this run"
SEAT = Seat("train", "worker", 0)


class Door:
    """Links behind a real socket, turned by hand."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(self.path)
        listener.listen()
        self.selector = selectors.DefaultSelector()
        self.now = 100.0
        self.links = AgentLinks(listener, TOKEN, self.selector, lambda: self.now)

    def turn(self) -> list[wire.Message]:
        """Everything that is ready now is handled; what was heard."""
        heard: list[wire.Message] = []
        while ready := self.selector.select(0.05):
            for key, events in ready:
                if isinstance(key.data, AgentLinks):
                    self.links.accept()
                elif isinstance(key.data, AgentLink):
                    if events & selectors.EVENT_WRITE:
                        self.links.flush(key.data)
                    if events & selectors.EVENT_READ:
                        heard += self.links.read(key.data)
        return heard


class Caller:
    def __init__(self, door: Door) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(door.path)
        self.socket.settimeout(5)
        self.decoder = wire.Decoder()
        door.turn()
        self.hello = self.hear()

    def hear(self) -> Any:
        while True:
            data = self.socket.recv(65536)
            if not data:
                return None
            for message in self.decoder.feed(data):
                return message

    def say(self, **message: Any) -> None:
        self.socket.sendall(wire.encode(message))

    def join(self, token: bytes = TOKEN, service: str = wire.DRIVER, **changed: str) -> wire.ClientHandshake:
        handshake = wire.ClientHandshake(token, service, SEAT.name)
        self.say(**{**handshake.join(self.hello), **changed})
        return handshake


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    it = Door(tmp_path / "s")
    yield it
    it.links.close()
    assert not Path(it.path).exists()
    it.selector.close()


def test_an_agent_with_the_token_is_let_in_and_sees_that_the_driver_has_it_too(door: Door) -> None:
    agent = Caller(door)
    handshake = agent.join()
    agent.say(**{"is": "alive"})
    assert [message["is"] for message in door.turn()] == ["join", "alive"]
    handshake.check(agent.hear())
    assert door.links.send(SEAT, wire.encode({"is": "start"}))
    assert agent.hear() == {"is": "start"}


def test_a_wrong_token_and_a_proof_for_another_seat_service_or_connection_are_refused(door: Door) -> None:
    wrong, seat, service, old = (Caller(door) for _ in range(4))
    wrong.join(token=b"guessed")
    seat.join(name="train/worker-1")
    service.join(service=wire.FILE_SERVER)
    old.hello = wrong.hello
    old.join()
    assert door.turn() == []
    assert [caller.hear() for caller in (wrong, seat, service, old)] == [None] * 4
    assert not door.links.send(SEAT, b"")


def test_an_agent_with_the_token_and_a_name_that_is_not_a_seat_is_refused(door: Door) -> None:
    caller = Caller(door)
    caller.say(**wire.ClientHandshake(TOKEN, wire.DRIVER, "launcher").join(caller.hello))
    assert door.turn() == []
    assert caller.hear() is None


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\2{}",
        struct.pack(">I", wire.STRANGER_LIMIT + 1),
        struct.pack(">I", 100_000) + b"[" * 100_000,
        b"\0\0\0\5hello",
        wire.encode({"is": "join"}),
        wire.encode({"is": "join", "name": "a/b-1", "nonce": 1}),
        wire.encode({"is": "join", "name": "a/b-c", "nonce": "x", "proof": "y"}),
        wire.encode({"is": "join", "name": "a/b-1", "nonce": "x", "proof": "\u00e9"}),
        wire.encode({"is": "join", "name": [{}, [], 1], "nonce": "x", "proof": "y"}),
        wire.encode({"is": "join", "name": float("inf"), "nonce": "x", "proof": 5}),
        wire.encode({"is": "exited", "code": 0}),
    ],
)
def test_garbage_closes_its_own_connection_and_no_other(door: Door, data: bytes) -> None:
    good = Caller(door)
    good.join()
    door.turn()
    good.hear()
    bad = Caller(door)
    bad.socket.sendall(data)
    assert door.turn() == []
    assert bad.hear() is None
    assert door.links.send(SEAT, wire.encode({"is": "still"}))
    assert good.hear() == {"is": "still"}


def test_an_agent_that_is_let_in_may_say_more_than_a_stranger(door: Door) -> None:
    agent = Caller(door)
    agent.join()
    door.turn()
    said = threading.Thread(target=agent.say, kwargs={"is": "report", "fill": "x" * (wire.STRANGER_LIMIT + 1)})
    said.start()
    heard: list[wire.Message] = []
    while not heard:
        heard = door.turn()
    said.join()
    assert [message["is"] for message in heard] == ["report"]


def test_the_newer_agent_of_a_seat_replaces_the_older_one(door: Door) -> None:
    old, new = Caller(door), Caller(door)
    old.join()
    door.turn()
    old.hear()
    new.join()
    door.turn()
    new.hear()
    assert old.hear() is None
    door.links.send(SEAT, wire.encode({"is": "for the new one"}))
    assert new.hear() == {"is": "for the new one"}


def test_who_does_not_prove_himself_in_time_is_put_out(door: Door) -> None:
    silent, agent = Caller(door), Caller(door)
    agent.join()
    door.turn()
    agent.hear()
    door.now += HANDSHAKE + 1
    door.links.sweep()
    assert silent.hear() is None
    assert door.links.send(SEAT, wire.encode({"is": "x"}))


def test_an_agent_that_does_not_read_holds_nobody_up_and_loses_nothing(door: Door) -> None:
    slow = Caller(door)
    slow.join()
    door.turn()
    slow.hear()
    for number in range(200):
        door.links.send(SEAT, wire.encode({"is": "n", "number": number, "fill": "x" * 10_000}))
    got: list[int] = []
    while len(got) < 200:
        for key, events in door.selector.select(0):
            if events & selectors.EVENT_WRITE:
                door.links.flush(key.data)
        data = slow.socket.recv(1 << 20)
        got += [message["number"] for message in slow.decoder.feed(data)]
    assert got == list(range(200))


def test_the_last_words_of_an_agent_that_is_gone_are_heard(door: Door) -> None:
    agent = Caller(door)
    agent.join()
    door.turn()
    agent.say(**{"is": "exited", "code": 3})
    agent.socket.close()
    assert door.links.drain(SEAT) == [{"is": "exited", "code": 3}]
    assert door.links.drain(SEAT) == []


def test_who_comes_when_there_are_no_more_files_waits_and_is_let_in_later(door: Door) -> None:
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    caller.connect(door.path)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        door.links.accept()
        assert door.selector.select(0.05) == [], "nobody looks again and again"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    door.links.sweep()
    door.turn()
    caller.settimeout(5)
    assert wire.Decoder().feed(caller.recv(65536))[0]["is"] == "hello"
    caller.close()
