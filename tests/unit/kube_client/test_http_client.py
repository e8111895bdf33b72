"""Answers of every form that a server may give, over a real connection and in pieces of any size."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from longboat.runtime.kube_client.http_client import BadResponse, ConnectionClosed, HttpConnection, quoted

Serve = Callable[..., HttpConnection]

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\none\nt\r\n6;x=1\r\nwo\nthr\r\n2\r\nee\r\n0\r\nX: y\r\n\r\n"
)
SIZED = b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\nnone"
UNTIL_CLOSED = b"HTTP/1.0 200 OK\r\n\r\nall\nof it"


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A server that answers each connection with given bytes, cut into pieces of a given size, and then closes it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def begin(*answers: bytes, piece: int = 1 << 16) -> HttpConnection:
        def run() -> None:
            for answer in answers:
                peer, _ = listener.accept()
                with peer:
                    peer.recv(1 << 16)
                    for at in range(0, len(answer), piece):
                        peer.sendall(answer[at : at + piece])

        threading.Thread(target=run, daemon=True).start()
        address = listener.getsockname()
        return HttpConnection(lambda: socket.create_connection(address, timeout=10), "localhost")

    yield begin
    listener.close()


@pytest.mark.parametrize("piece", [1, 7, 1 << 16])
@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [(CHUNKED, 200, b"one\ntwo\nthree"), (SIZED, 404, b"none"), (UNTIL_CLOSED, 200, b"all\nof it")],
)
def test_an_answer_is_read_whole(serve: Serve, answer: bytes, status: int, body: bytes, piece: int) -> None:
    found = serve(answer, piece=piece).request("GET", "/", None, {})
    assert (found.status, found.read()) == (status, body)


@pytest.mark.parametrize("piece", [1, 7, 1 << 16])
def test_an_answer_is_read_line_by_line(serve: Serve, piece: int) -> None:
    assert list(serve(CHUNKED, piece=piece).request("GET", "/", None, {}).lines()) == [b"one", b"two", b"three"]
    kept = list(serve(CHUNKED, piece=piece).request("GET", "/", None, {}).lines(keep=True))
    assert kept == [b"one\n", b"two\n", b"three"], "the last one has not ended"


def test_a_connection_that_was_closed_meanwhile_says_so_and_can_be_used_again(serve: Serve) -> None:
    connection = serve(SIZED, SIZED)
    assert connection.request("GET", "/", None, {}).read() == b"none"
    with pytest.raises((ConnectionClosed, ConnectionResetError, BrokenPipeError)):
        connection.request("GET", "/", None, {})
    connection.close()
    assert connection.request("GET", "/", None, {}).read() == b"none"


@pytest.mark.parametrize("answer", [b"SSH-2.0-server\r\n\r\n", CHUNKED[:60], SIZED[:-2], b"HTTP/1.1 200 OK\r\nX"])
def test_what_is_cut_off_or_no_http_at_all_is_an_error(serve: Serve, answer: bytes) -> None:
    with pytest.raises(BadResponse):
        serve(answer).request("GET", "/", None, {}).read()


def test_words_are_quoted_for_paths_and_queries() -> None:
    assert quoted("a b/ü=~") == "a%20b%2F%C3%BC%3D~"
