"""Frames and proofs."""

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


def test_a_proof_holds_for_its_side_nonces_and_subject_alone() -> None:
    proof = wire.proof(b"token", "agent", "n1n2", "train/worker-0")
    assert wire.proven(proof, b"token", "agent", "n1n2", "train/worker-0")
    for token, side, nonces, subject in (
        (b"other", "agent", "n1n2", "train/worker-0"),
        (b"token", "driver", "n1n2", "train/worker-0"),
        (b"token", "agent", "n1n3", "train/worker-0"),
        (b"token", "agent", "n1n2", "train/worker-1"),
    ):
        assert not wire.proven(proof, token, side, nonces, subject)
    assert not wire.proven(None, b"token", "agent", "n1n2", "train/worker-0")
    assert not wire.proven(5, b"token", "agent", "n1n2", "train/worker-0")


def test_the_token_itself_is_not_in_what_is_sent() -> None:
    token = b"a-very-secret-token"
    assert token not in wire.encode({"is": "join", "proof": wire.proof(token, "agent", wire.nonce(), "x")})


def test_nonces_differ() -> None:
    assert len({wire.nonce() for _ in range(100)}) == 100


def test_a_frame_is_plain_json_behind_its_length() -> None:
    data = wire.encode({"is": "a", "n": 1})
    assert struct.unpack(">I", data[:4]) == (len(data) - 4,)
    assert json.loads(data[4:]) == {"is": "a", "n": 1}
