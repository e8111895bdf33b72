"""Frames and the handshake."""

from __future__ import annotations

import json
import struct

import pytest

from longboat.runtime import wire


def test_messages_come_out_as_they_went_in_however_the_bytes_are_cut() -> None:
    messages: list[wire.Message] = [
        {"is": "a", "text": "ü\n\0"},
        {"is": "b", "list": [1, 2.5, None]},
        {"is": "c", "x": "y" * 10000},
    ]
    data = b"".join(wire.encode(message) for message in messages)
    for size in (1, 3, 7, len(data)):
        decoder = wire.Decoder()
        found = [message for at in range(0, len(data), size) for message in decoder.feed(data[at : at + size])]
        assert found == messages


def test_text_that_is_no_unicode_does_not_stop_a_message() -> None:
    (message,) = wire.Decoder().feed(wire.encode({"is": "a", "text": "bad \udcff"}))
    assert message["is"] == "a"


@pytest.mark.parametrize("body", [b"{", b"[]", b"3", b'{"no": "kind"}', b'{"is": 5}', b"\xff\xfe", b"[" * 200_000])
def test_a_frame_that_holds_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.Decoder().feed(struct.pack(">I", len(body)) + body)


def test_an_oversized_frame_is_refused_before_it_is_read() -> None:
    decoder = wire.Decoder(limit=100)
    assert decoder.feed(struct.pack(">I", 100)) == []
    with pytest.raises(wire.WireError, match="a frame of 101 bytes is longer than 100"):
        wire.Decoder(limit=100).feed(struct.pack(">I", 101))


def test_a_web_request_is_no_frame() -> None:
    with pytest.raises(wire.WireError):
        wire.Decoder().feed(b"GET / HTTP/1.1\r\n\r\n")


def test_a_handshake_succeeds_for_the_same_token_service_and_name_alone() -> None:
    token, service, name = b"a-very-secret-token", wire.DRIVER, "train/worker-0"
    server, client = wire.ServerHandshake(token, service), wire.ClientHandshake(token, service, name)
    join = client.join(server.hello())
    welcome = server.welcome(join)
    client.check(welcome)
    sent = wire.encode(server.hello()) + wire.encode(join) + wire.encode(welcome)
    assert token not in sent
    wrong: list[wire.Message] = [
        wire.ClientHandshake(b"other", service, name).join(server.hello()),
        wire.ClientHandshake(token, wire.FILE_SERVER, name).join(server.hello()),
        client.join(wire.ServerHandshake(token, service).hello()),
        {**join, "name": "train/worker-1"},
        {**join, "proof": None},
        {**join, "proof": "\u00e9"},
        {**join, "proof": "\ud800"},
        {**join, "proof": welcome["proof"]},
        {**join, "nonce": [[]]},
        {**join, "is": "alive"},
    ]
    for message in wrong:
        with pytest.raises(wire.WireError):
            server.welcome(message)


def test_a_client_trusts_no_server_without_the_token_and_no_echo() -> None:
    client = wire.ClientHandshake(b"token", wire.DRIVER, "train/worker-0")
    server = wire.ServerHandshake(b"token", wire.DRIVER)
    join = client.join(server.hello())
    for answer in (
        {"is": "welcome"},
        {"is": "welcome", "proof": join["proof"]},
        {**server.welcome(join), "is": "start"},
    ):
        with pytest.raises(wire.WireError):
            client.check(answer)


def test_nonces_differ() -> None:
    assert len({wire.nonce() for _ in range(100)}) == 100


def test_a_frame_is_plain_json_behind_its_length() -> None:
    data = wire.encode({"is": "a", "n": 1})
    assert struct.unpack(">I", data[:4]) == (len(data) - 4,)
    assert json.loads(data[4:]) == {"is": "a", "n": 1}
