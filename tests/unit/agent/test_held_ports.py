"""Ports that are held for a server that will come."""

from __future__ import annotations

import errno
import socket

import pytest

from longboat.runtime.agent.held_ports import HeldPorts


def server(port: int, *options: int) -> socket.socket:
    it = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    for option in options:
        it.setsockopt(socket.SOL_SOCKET, option, 1)
    try:
        it.bind(("127.0.0.1", port))
        it.listen()
    except OSError:
        it.close()
        raise
    return it


def test_held_ports_are_different_from_each_other_and_from_those_of_others() -> None:
    first, second = HeldPorts(3), HeldPorts(3)
    assert len({*first.numbers, *second.numbers}) == 6
    first.close()
    second.close()


def test_nobody_who_asks_for_any_port_is_given_a_held_one() -> None:
    held = HeldPorts(40)
    others = [socket.socket() for _ in range(400)]
    try:
        for other in others:
            other.bind(("127.0.0.1", 0))
        assert not {other.getsockname()[1] for other in others} & set(held.numbers)
    finally:
        held.close()
        for other in others:
            other.close()


@pytest.mark.parametrize(
    "options",
    [(socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,), (socket.SO_REUSEADDR, socket.SO_REUSEPORT)],
    ids=["SO_REUSEADDR", "SO_REUSEPORT", "both"],
)
def test_a_server_that_shares_may_listen_on_a_held_port_and_is_reached_there(options: tuple[int, ...]) -> None:
    held = HeldPorts(1)
    (port,) = held.numbers
    with server(port, *options) as listening, socket.create_connection(("127.0.0.1", port), 5):
        listening.accept()[0].close()
    held.close()


def test_a_server_that_does_not_share_is_kept_out_so_that_the_port_is_truly_held() -> None:
    held = HeldPorts(1)
    with pytest.raises(OSError, match=r".") as refused:
        server(held.numbers[0])
    assert refused.value.errno == errno.EADDRINUSE
    held.close()
    server(held_number := _free(), socket.SO_REUSEADDR).close()
    assert held_number


def _free() -> int:
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        port: int = any_port.getsockname()[1]
        return port


def test_wanted_ports_are_taken_again_even_while_their_server_still_listens() -> None:
    first = HeldPorts(2)
    wanted = first.numbers
    with server(wanted[0], socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        first.close()
        second = HeldPorts(2, wanted)
        assert second.numbers == wanted
        second.close()


def test_a_wanted_port_that_somebody_else_has_is_replaced_by_another() -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        taken = other.getsockname()[1]
        held = HeldPorts(1, [taken])
        assert held.numbers != [taken]
        held.close()


def test_held_ports_are_not_inherited_by_the_ranks() -> None:
    held = HeldPorts(1)
    assert not held._sockets[0].get_inheritable()
    held.close()
