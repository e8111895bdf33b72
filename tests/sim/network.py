"""Connections between agents and driver, as bad as a network can be.

Frames are the real encoder's bytes and go through the real decoder. Besides what TCP allows (delay, a connection that
breaks with frames in it, one that is dead and does not say so) single frames are lost, doubled and overtaken: the
protocol must stand more than it will meet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from longboat.runtime import wire
from tests.sim.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sim.agents import SimAgent


@dataclass(frozen=True)
class Weather:
    """Probabilities for each frame."""

    delay: float = 0.0
    """Held up, by up to `delay_most` seconds."""
    delay_most: float = 2.0
    loss: float = 0.0
    double: float = 0.0
    overtake: float = 0.0
    tear: float = 0.0
    """The connection breaks."""


@dataclass
class Node:
    """A machine, and what of its network is cut."""

    name: str
    cut_up: bool = False
    """Nothing gets from it to the driver."""
    cut_down: bool = False
    lag: float = 0.0
    """Seconds by which all that the driver says to it is late."""
    cut_off: bool = False
    """The engine can neither see it nor act on it."""
    held: list[Callable[[], None]] = field(default_factory=list)
    """Frames that TCP will send again once the cut is mended."""


class Connection:
    """One connection; either end may think that it is up when it is not."""

    def __init__(
        self, world: World, weather: Weather, agent: SimAgent, receive: Callable[[Connection, wire.Message], None]
    ) -> None:
        self.world = world
        self.weather = weather
        self.agent = agent
        self.node = agent.pod.node
        self.torn = False
        self._receive = receive
        self._up = wire.Decoder()
        self._down = wire.Decoder()
        self._last = [0.0, 0.0]

    def to_driver(self, data: bytes) -> None:
        self._send(0, data)

    def to_agent(self, data: bytes) -> None:
        self._send(1, data)

    def _send(self, way: int, data: bytes) -> None:
        if self.torn:
            return
        world, weather = self.world, self.weather
        if self.node.cut_down if way else self.node.cut_up:
            self._held_up(way, data)
            return
        at = world.now + 0.0005 + 0.004 * world.chance() + self.node.lag * way
        fifo = True
        if not world.calm:
            dice = world.chance()
            if dice < weather.loss:
                world.fault("message lost")
                self._misheard(way)
                return
            dice -= weather.loss
            if dice < weather.double:
                world.fault("message doubled")
                self._arrive_at(way, at + world.between(0, weather.delay_most), data, False)
            dice -= weather.double
            if 0 <= dice < weather.delay:
                world.fault("message delayed")
                at += world.between(0.01, weather.delay_most)
            dice -= weather.delay
            if 0 <= dice < weather.overtake:
                world.fault("message overtaken")
                at += world.between(0.01, weather.delay_most)
                fifo = False
                self._misheard(way)
            dice -= weather.overtake
            if 0 <= dice < weather.tear:
                world.fault("connection torn")
                self.tear()
                return
        self._arrive_at(way, at, data, fifo)

    def _arrive_at(self, way: int, at: float, data: bytes, fifo: bool) -> None:
        if fifo:
            at = self._last[way] = max(at, self._last[way] + 1e-6)
        self.world.after(at - self.world.now, self._arrive, way, data)

    def _held_up(self, way: int, data: bytes) -> None:
        """In a cut: lost with the connection, or sent again when the cut is mended."""
        self._misheard(way)
        if self.world.chance() < 0.5:
            self.node.held.append(lambda: self._send(way, data))

    def _misheard(self, way: int) -> None:
        self.agent.misheard = self.agent.misheard or not way

    def _arrive(self, way: int, data: bytes) -> None:
        if self.torn:
            return
        if way:
            for message in self._down.feed(data):
                self.agent.receive(self, message)
        else:
            for message in self._up.feed(data):
                self._receive(self, message)

    def tear(self) -> None:
        """Both ends learn of it, the agent perhaps only by silence."""
        if not self.torn:
            self.torn = True
            if self.world.chance() < 0.8:
                self.world.after(self.world.between(0, 0.5), self.agent.torn, self)
