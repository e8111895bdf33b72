"""The agents' side: user processes with a fate, and agents that obey the real `Duty`.

What the agent (`runtime.agent.agent`) does with sockets and processes, simulated ones do here; its habits are
kept: one thread that does not watch its process while it looks for the driver, a heartbeat that says all, messages
kept for a driver that is away or may not have heard them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from longboat.runtime import wire
from longboat.runtime.agent.outbox import Outbox
from longboat.runtime.agent.protocol import AgentOrder, AgentProtocol
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.gang.gang_events import Incarnation
from longboat.runtime.journal import plain
from longboat.runtime.messages import RankExit
from longboat.runtime.seat import Seat
from tests.sim.network import Connection
from tests.sim.world import World

if TYPE_CHECKING:
    from tests.sim.engine import Pod
    from tests.sim.invariants import Watcher

LOOK = 1.5
"""The longest that an agent is busy with looking for the driver."""


@dataclass(frozen=True)
class Fate:
    """What a process will do if it is let."""

    seconds: float
    """Until it ends; negative: it never does."""
    code: int = 0
    signal: int = 0
    cause: Cause | None = None
    reports: float = 0.0
    """Seconds between reports; 0: none."""
    silent_after: float = -1.0
    """It hangs from then on."""
    checkpoint_after: float = -1.0
    deaf: bool = False
    """Ignores SIGTERM."""
    handlers: float = 0.0
    """Seconds that exit handlers run after an uncaught exception ended the program."""


class SimProcess:
    def __init__(
        self, world: World, agent: SimAgent, incarnation: Incarnation, fate: Fate, ended: Callable[[SimProcess], None]
    ) -> None:
        self.world, self.agent, self.incarnation, self.fate = world, agent, incarnation, fate
        self.seat = agent.seat
        self.alive = True
        self.asked = False
        self.code, self.signal = -1, 0
        self.cause: Cause | None = None
        self.ended_at = 0.0
        """When it ended, or when its program failed if exit handlers ran after that."""
        self.failed_at = -1.0
        self.consequence = False
        self._ended = ended
        self._doomed = 0.0
        if fate.seconds >= 0:
            world.after(fate.seconds, self._end_itself)

    def _end_itself(self) -> None:
        fate = self.fate
        if fate.handlers and self.alive and not self.asked:
            self.failed_at = self.world.now
            self.agent.exception(self)
            self.world.after(fate.handlers, self.die, fate.code, fate.signal, fate.cause)
        else:
            self.die(fate.code, fate.signal, fate.cause)

    def die(self, code: int, signal: int, cause: Cause | None) -> None:
        if self.alive:
            self.alive = False
            self.code, self.signal, self.cause = code, signal, cause
            self.ended_at = self.world.now
            if self.failed_at >= 0:
                self.code, self.signal, self.cause = self.fate.code, 0, self.fate.cause
                self.ended_at, self.asked = self.failed_at, False
            self._ended(self)

    def end(self, grace: float) -> None:
        """As Process.end: SIGTERM, then SIGKILL."""
        self.asked = True
        world = self.world
        if grace > 0 and not self.fate.deaf and self.fate.silent_after < 0:
            polite = world.chance() < 0.5
            world.after(world.between(0, grace), self.die, 0 if polite else -1, 0 if polite else 15, None)
        else:
            world.after(grace + world.between(0, 0.05), self.die, -1, 9, None)


class SimAgent:
    """One incarnation of an agent in a pod."""

    def __init__(self, world: World, pod: Pod, watcher: Watcher, lease: float) -> None:
        self.world, self.pod, self.watcher = world, pod, watcher
        self.seat: Seat = pod.seat
        self.alive = True
        self.rate = 1.0 + (0.0 if world.calm else world.between(-0.02, 0.02))
        self._zero, self._base = world.now, world.between(0, 1000)
        self.protocol = AgentProtocol(f"{world.rng.getrandbits(64):016x}", pod.address, lease, self.clock())
        self.process: SimProcess | None = None
        self.connection: Connection | None = None
        self._joining: Connection | None = None
        self._busy_until = 0.0
        self._heard = self.clock()
        self._cut_off = False
        self._lease = lease
        self._outbox = Outbox()
        self._owes = False
        self.words: set[int] = set()
        """Numbers of what it has said and some driver must hear."""
        self.misheard = False
        """A connection lost a message and went on, or changed their order: no TCP does."""
        world.after(world.between(0, 0.05), self._turn)

    def clock(self) -> float:
        """Its own monotonic clock."""
        return self._base + (self.world.now - self._zero) * self.rate

    def jump(self, seconds: float) -> None:
        self._base += seconds

    # The loop.

    def _turn(self) -> None:
        if not self.alive:
            return
        world = self.world
        now = self.clock()
        if self.protocol.lapsed(now) and self.process is not None and self.process.alive:
            if not self._cut_off:
                world.say(f"{self.pod}: its lease has run out")
                self.watcher.mark("agent", self.seat)
            self._cut_off = True
            self.process.end(0)
        if self.connection is not None and now >= self._heard + self._lease / 3:
            self.connection = None
        if self.connection is not None:
            self._say("alive", **self.protocol.seen(now, world.now))
        elif self._joining is None:
            self._look()
        world.after(self.protocol.heartbeat, self._turn)

    def _look(self) -> None:
        """A look for the driver: nothing else is done until it answers or patience is over."""
        self._joining = self.pod.dial(self)
        self._busy_until = self.world.now + self.world.between(0.5, LOOK)
        self.world.after(self._busy_until - self.world.now, self._looked, self._joining)
        self._owes = bool(self._outbox)
        seen = {**self.protocol.seen(self.clock(), self.world.now), "owes": self._owes}
        self._joining.to_driver(wire.encode({"is": "join", "name": self.seat.name, **seen}))

    def _looked(self, connection: Connection) -> None:
        if self._joining is connection:
            self._joining = None
            self._reap()

    def torn(self, connection: Connection) -> None:
        if self.connection is connection:
            self.connection = None
        if self._joining is connection:
            self._joining = None

    # What the driver says.

    def receive(self, connection: Connection, message: wire.Message) -> None:
        if not self.alive:
            return
        if message["is"] == "welcome":
            if self._joining is connection:
                self._welcomed(connection)
            return
        if connection is not self.connection:
            return
        self._heard = self.clock()
        if message["is"] == "alive":
            self._outbox.heard(message)
        order = self.protocol.order(message, self.clock(), self.world.now)
        if order is AgentOrder.START:
            self._start(tuple(message["incarnation"]))
        elif order is AgentOrder.KILL and self.process is not None:
            self.process.end(float(message["grace"]))
        elif order is AgentOrder.SAY_ENDED and self.protocol.exit is not None:
            self._say("exited", **self.protocol.exit)
        elif order is AgentOrder.BYE:
            self.pod.say_goodbye(self)

    def _welcomed(self, connection: Connection) -> None:
        self.connection, self._joining, self._heard = connection, None, self.clock()
        for message in self._outbox.take():
            self._send(message)
        if self._owes:
            self._say("alive", **self.protocol.seen(self.clock(), self.world.now))
        self._reap()

    def _say(self, kind: str, **keys: Any) -> None:
        self._send({"is": kind, "incarnation": list(self.protocol.incarnation), **keys})

    def _send(self, message: wire.Message) -> None:
        message = self._outbox.numbered(message)
        if "word" in message:
            self.words.add(message["word"])
        if self.connection is not None:
            self.connection.to_driver(wire.encode(message))
        self._outbox.keep(message, self.connection is not None)

    def notice(self) -> None:
        self.protocol.warned()

    # The user's process.

    def _start(self, incarnation: Incarnation) -> None:
        self.protocol.begun(incarnation)
        self._cut_off = False
        fate = self.pod.fate(self, incarnation)
        self.process = process = SimProcess(self.world, self, incarnation, fate, self._process_ended)
        self.watcher.began(process)
        if fate.reports:
            self.world.after(self.world.between(0, fate.reports), self._report, process, 1)
        if fate.checkpoint_after >= 0:
            self.world.after(fate.checkpoint_after, self._checkpoint, process)

    def _report(self, process: SimProcess, step: int) -> None:
        age = step * process.fate.reports
        if not process.alive or not self.alive or 0 <= process.fate.silent_after <= age:
            return
        self._say("report", role=self.seat.role, rank=self.seat.rank, points=[{"step": step}])
        self.world.after(process.fate.reports, self._report, process, step + 1)

    def _checkpoint(self, process: SimProcess) -> None:
        if process.alive and self.alive:
            self._say("checkpoint", role=self.seat.role, rank=self.seat.rank, record={"step": 1})

    def exception(self, process: SimProcess) -> None:
        """Sees that an exception is ending the process, now or a moment later."""
        cause, at = plain(process.fate.cause), self.world.now
        self.protocol.failing = {"code": process.fate.code, "signal": 0, "at": at, "asked": False, "cause": cause}

    def _process_ended(self, process: SimProcess) -> None:
        self.watcher.ended(process)
        self.pod.process_ended(process)
        self.world.after(self.world.between(0, 0.05), self._reap)

    def _reap(self) -> None:
        """Sees that the process has ended; not while it looks for the driver."""
        process = self.process
        if not self.alive or process is None or process.alive or self._joining is not None:
            return
        self.process = None
        asked, cause = process.asked, process.cause
        if self._cut_off and process.failed_at < 0:
            asked, cause = False, Cause(CauseKind.NODE_LOST, "it lost the driver for longer than its lease")
            process.cause, process.asked = cause, False
        ending = self.protocol.ended(
            RankExit(code=process.code, signal=process.signal, at=process.ended_at, asked=asked, cause=plain(cause))
        )
        self._say("exited", **ending)

    def die(self) -> None:
        """The agent ends, and its process with it a moment later."""
        self.alive = False
        self.connection = self._joining = None
        if self.process is not None and self.process.alive:
            self.process.asked = True
            self.world.after(self.world.between(0, 0.2), self.process.die, -1, 9, None)
