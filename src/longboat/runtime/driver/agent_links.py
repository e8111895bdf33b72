"""The driver's connections to its agents: accept, authenticate, read, write.

A connection that has not authenticated within a few seconds is closed; until then nothing it sends is
believed. A peer that does not read never blocks the driver: unsent bytes are kept for later.
"""

from __future__ import annotations

import os
import selectors
import socket
from typing import Callable, Dict, List, Optional

from longboat.runtime import debug_log, wire
from longboat.runtime.messages import AgentState
from longboat.runtime.seat import Seat

HANDSHAKE = 10.0


class AgentLink:
    """One connection to an agent."""

    def __init__(self, sock: socket.socket, handshake: wire.ServerHandshake, opened: float) -> None:
        self.socket = sock
        self.handshake = handshake
        self.seat: Optional[Seat] = None
        self.state: Optional[AgentState] = None
        self.opened = opened
        self.decoder = wire.Decoder(wire.STRANGER_LIMIT)
        self.unsent = bytearray()


class AgentLinks:
    """All connections, by seat."""

    def __init__(
        self, listener: socket.socket, token: bytes, selector: selectors.BaseSelector, clock: Callable[[], float]
    ) -> None:
        self._clock = clock
        self._listener = listener
        self._token = token
        self._selector = selector
        self._open: Dict[int, AgentLink] = {}
        self._seated: Dict[Seat, AgentLink] = {}
        listener.setblocking(False)
        self._listening = False
        self._listen()

    def accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # out of file descriptors: the rest is accepted once some are closed
                self._selector.unregister(self._listener)
                self._listening = False
                return
            sock.setblocking(False)
            if sock.family != socket.AF_UNIX:
                wire.lively(sock)
            link = AgentLink(sock, wire.ServerHandshake(self._token, wire.DRIVER), self._clock())
            debug_log.debug("accepted connection %d", sock.fileno())
            self._open[sock.fileno()] = link
            self._selector.register(sock, selectors.EVENT_READ, link)
            self._write(link, wire.encode(link.handshake.hello()))

    def read(self, link: AgentLink) -> List[wire.Message]:
        """Messages of a connection; a join only once it is authenticated. Closes connections that misbehave or end."""
        received: List[wire.Message] = []
        if self._open.get(link.socket.fileno()) is not link:
            return received
        while True:
            try:
                data = link.socket.recv(1 << 18)
            except BlockingIOError:
                return received
            except OSError:
                data = b""
            if not data:
                self._close(link)
                return received
            try:
                messages = link.decoder.feed(data)
                received += [m for m in messages if link.seat is not None or self._admit(link, m)]
            except (wire.WireError, ValueError) as error:
                debug_log.warning("refused connection %d: %r", link.socket.fileno(), error)
                self._close(link)
                return received

    def flush(self, link: AgentLink) -> None:
        self._write(link, b"")

    def send(self, seat: Seat, message: bytes) -> bool:
        link = self._seated.get(seat)
        if link is None:
            return False
        self._write(link, message)
        return True

    def remember(self, seat: Seat, message: Optional[AgentState]) -> None:
        """Store the last state that the seat's agent sent; None: it is leaving."""
        link = self._seated.get(seat)
        if link is not None:
            link.state = message

    def state(self, seat: Seat) -> Optional[AgentState]:
        """The last state that the seat's agent sent; None if no agent is connected."""
        link = self._seated.get(seat)
        return None if link is None else link.state

    def dismiss(self, seat: Seat, message: bytes) -> None:
        """Send an agent its last message. What it sends from now on no longer counts for the seat."""
        if self.send(seat, message):
            self._seated.pop(seat).seat = None

    def drain(self, seat: Seat) -> List[wire.Message]:
        """The last messages of an agent that is gone; closes its connection."""
        link = self._seated.get(seat)
        if link is None:
            return []
        messages = self.read(link)
        self._close(link)
        return messages

    def sweep(self) -> None:
        """Close connections that never authenticated; accept new ones again."""
        late = self._clock() - HANDSHAKE
        for link in [x for x in self._open.values() if x.seat is None and x.opened < late]:
            debug_log.warning("no handshake on connection %d after %g s", link.socket.fileno(), HANDSHAKE)
            self._close(link)
        self._listen()

    def close(self) -> None:
        for link in list(self._open.values()):
            self._close(link)
        if self._listening:
            self._selector.unregister(self._listener)
        address = self._listener.getsockname()
        self._listener.close()
        if isinstance(address, str) and address:
            try:
                os.unlink(address)
            except OSError:
                pass

    def _listen(self) -> None:
        if not self._listening:
            self._selector.register(self._listener, selectors.EVENT_READ, self)
            self._listening = True

    def _admit(self, link: AgentLink, message: wire.Message) -> bool:
        welcome = link.handshake.welcome(message)
        seat = Seat.parse(message["name"])
        old = self._seated.get(seat)
        if old is not None:
            self._close(old)
        link.seat, link.decoder.limit = seat, wire.LIMIT
        self._seated[seat] = link
        debug_log.info("%s joined on connection %d", seat.name, link.socket.fileno())
        self._write(link, wire.encode(welcome))
        return True

    def _write(self, link: AgentLink, data: bytes) -> None:
        link.unsent += data
        while link.unsent:
            try:
                sent = link.socket.send(link.unsent)
            except BlockingIOError:
                break
            except OSError:
                link.unsent.clear()
                return
            del link.unsent[:sent]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.unsent else 0)
        if self._selector.get_key(link.socket).events != wanted:
            self._selector.modify(link.socket, wanted, link)

    def _close(self, link: AgentLink) -> None:
        fd = link.socket.fileno()
        if self._open.get(fd) is not link:
            return
        del self._open[fd]
        debug_log.info("closed connection %d of %s", fd, link.seat.name if link.seat else "no agent")
        if link.seat is not None and self._seated.get(link.seat) is link:
            del self._seated[link.seat]
        self._selector.unregister(link.socket)
        link.socket.close()
