"""The driver's side: the real gang, the real speech, and a journal on a disk that may be slow.

It does what `runtime.driver.driver.Driver` does with a gang's actions, one after the other, and can be killed between
any two. A new one reads the journal with the real `look_back` and goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from longboat.runtime import wire
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.driver import codec, history
from longboat.runtime.driver.history import UnfinishedStage
from longboat.runtime.gang import gang_events as g
from longboat.runtime.gang.machine import Gang
from longboat.runtime.journal import plain
from longboat.runtime.messages import AgentState
from longboat.runtime.seat import Seat
from tests.sim.engine import Engine
from tests.sim.invariants import Watcher
from tests.sim.network import Connection
from tests.sim.world import World

STOPPED = Cause(CauseKind.STOPPED, "stopped by somebody")
WELCOME = wire.encode({"is": "welcome"})


class SimDriver:
    """One life of the driver, over a journal that outlives it."""

    def __init__(
        self,
        world: World,
        engine: Engine,
        rules: g.GangRules,
        journal: list[dict[str, Any]],
        watcher: Watcher,
        slow_disk: float,
        crash: Callable[[SimDriver], None],
    ) -> None:
        self.world, self.engine, self.rules, self.journal, self.watcher = world, engine, rules, journal, watcher
        self.alive = True
        self.finished = False
        self.crash_in = -1
        """So many actions from now it is killed; -1: not."""
        self._slow_disk = slow_disk
        self._crash = crash
        self._inbox: deque[Callable[[], None]] = deque()
        self._todo: deque[g.Action] = deque()
        self._busy = False
        self._paused = 0.0
        """Seconds in which it did not run: its clock stood still, as `RunningClock` does."""
        self._links: dict[Seat, Connection] = {}
        self._timer = -1.0
        self._starts: dict[tuple[g.Incarnation, int], bytes] = {}
        engine.receive = self.receive
        engine.serve(self._gone)
        self._begin()

    def _begin(self) -> None:
        if not self.journal:
            self._write("stage.started", stage="train", attempt=1)
        left: UnfinishedStage | None = history.look_back(self.journal).unfinished.get("train")
        generation = history.look_back(self.journal).generations.get("train", 0)
        if left is None:
            self._close()
            return
        self.gang = Gang(self.rules, generation, self.now, left.open, left.restarts_left)
        self.watcher.driver_began(self.gang)
        if left.decided:
            self._todo.append(g.GangEnded(left.decided, left.cause))
        else:
            self._todo.extend(self.gang.begin(self.now))
            if any(event["ev"] == "stopping" for event in self.journal):
                self._todo.extend(self.gang.handle(g.StopRequest(STOPPED), self.now))
        self._work()
        self.watcher.begun()

    @property
    def now(self) -> float:
        """The time of its own clock."""
        return self.world.now - self._paused

    # What comes in.

    def receive(self, connection: Connection, message: wire.Message) -> None:
        if not self.alive:
            connection.tear()
            return
        self._soon(lambda: self._heard(connection, message))

    def _gone(self, lost: g.AgentLost) -> None:
        self._soon(lambda: self._lost(lost))

    def _lost(self, lost: g.AgentLost) -> None:
        link = self._links.pop(lost.seat, None)
        if link is not None:
            link.tear()
        self._handle(lost)

    def stop(self, now: bool) -> None:
        def do() -> None:
            self._write("stopping")
            self._handle(g.StopRequest(STOPPED, now))

        self._soon(do)

    def fault(self) -> None:
        self._soon(lambda: self._handle(g.Fault(Cause(CauseKind.DISK_FULL, "the disk is full"))))

    def _soon(self, what: Callable[[], None]) -> None:
        if not self.alive:
            return
        if self._busy:
            self._inbox.append(what)
        else:
            what()

    def _heard(self, connection: Connection, message: Any) -> None:
        seat, kind = connection.agent.seat, message["is"]
        if kind == "join" and not self._admits(connection) or self._links.get(seat) is not connection:
            return
        if self.finished:
            connection.to_agent(codec.BYE)
        elif message.get("owes"):
            pass  # as the driver: what it has to say comes first
        elif kind in ("join", "alive"):
            self.watcher.heard(seat)
            self._handle(codec.heartbeat(seat, message))
            if message.get("notice"):
                self._handle(g.PreemptionNotice(seat))
            self._answer(connection, message)
        elif kind in _HEARD:
            if "word" in message:
                self.watcher.words.setdefault(connection.agent.protocol.name, set()).add(message["word"])
            _HEARD[kind](self, seat, message)

    def _answer(self, connection: Connection, message: AgentState) -> None:
        if not self.finished and self.gang.renews(connection.agent.seat):
            connection.to_agent(codec.answer(message))

    def _admits(self, connection: Connection) -> bool:
        """The door: a connection takes its predecessor's place, unless the engine has given its agent up."""
        agent = connection.agent
        if not agent.alive or connection.torn:
            return False  # a handshake needs both
        connection.to_agent(WELCOME)
        if not self.engine.is_current(agent.pod):
            connection.to_agent(codec.BYE)
            return False
        old = self._links.get(agent.seat)
        if old is not None and old is not connection:
            old.tear()
        self._links[agent.seat] = connection
        return True

    def _reported(self, seat: Seat, message: wire.Message) -> None:
        self.watcher.reported.add(seat)
        self._handle(g.Progress(seat, message["incarnation"][0], max(point["step"] for point in message["points"])))

    def _exited(self, seat: Seat, message: Any) -> None:
        self._handle(codec.exited(seat, codec.incarnation_of(message["incarnation"]), message))

    def _checkpointed(self, seat: Seat, message: wire.Message) -> None:
        if message["incarnation"][0] == self.gang.generation:
            self._write("checkpoint", stage="train")
            self.watcher.checkpoint()
            self._handle(g.CheckpointComplete())

    def _handle(self, event: g.GangEvent) -> None:
        if self.finished:
            return
        world = self.world
        if world.tracing and not isinstance(event, (g.Progress, g.Tick)):
            world.say(f"gang <- {_short(event)}")
        self._todo.extend(self.gang.handle(event, self.now))
        self._work()

    # What the gang wants done.

    def _work(self) -> None:
        while self._todo and self.alive and not self._busy:
            if self.crash_in == 0:
                self._crash(self)
                return
            self.crash_in -= self.crash_in > 0
            action = self._todo.popleft()
            if isinstance(action, g.RecordEvent) and self.world.happens(self._slow_disk):
                self.world.fault("slow disk")
                self._busy = True
                self.world.after(self.world.between(0.05, 0.6 * self.rules.lease), self._written, action)
                return
            self._do(action)
        if self.alive and not self._busy and not self.finished:
            self._set_timer()

    def _written(self, action: g.Action) -> None:
        if not self.alive:
            return
        self._do(action)
        self._go_on()

    def pause(self, seconds: float) -> None:
        """As SIGSTOP and SIGCONT: what comes in meanwhile is read after it."""
        if self.alive and not self._busy and not self.finished:
            self._busy = True
            self.world.after(seconds, self._continue, seconds)

    def _continue(self, seconds: float) -> None:
        if self.alive:
            self._paused += seconds
            self.watcher.driver_paused(seconds)
            self._go_on()

    def _go_on(self) -> None:
        self._busy = False
        self._work()
        while self._inbox and not self._busy and self.alive:
            self._inbox.popleft()()

    def _do(self, action: g.Action) -> None:
        world = self.world
        if world.tracing:
            world.say(f"gang -> {_short(action)}")
        self.watcher.action(action)
        if isinstance(action, g.Launch):
            self.engine.launch(action.seat, action.keep)
        elif isinstance(action, g.Start):
            self._send(action.seat, self._start(action))
        elif isinstance(action, (g.Kill, g.DumpStacks)):
            self._send(action.seat, codec.order(action))
        elif isinstance(action, g.Fence):
            self.engine.fence(action.seat)
        elif isinstance(action, g.RecordEvent):
            self._write(action.ev, stage="train", **action.keys)
        else:
            self._write("stage.ended", stage="train", state=action.state)
            self._close()

    def _start(self, action: g.Start) -> bytes:
        key = (action.incarnation, id(action.peers))
        if key not in self._starts:
            self._starts[key] = codec.start(action, 1, 1, "", "", False)
        return self._starts[key]

    def _send(self, seat: Seat, data: bytes) -> None:
        link = self._links.get(seat)
        if link is not None:
            link.to_agent(data)

    def _write(self, ev: str, **keys: Any) -> None:
        self.journal.append({"ev": ev, **{key: plain(value) for key, value in keys.items() if value is not None}})

    def _close(self) -> None:
        self.finished = True
        for link in self._links.values():
            link.to_agent(codec.BYE)

    # Time.

    def _set_timer(self) -> None:
        due = self.gang.deadline()
        if due is not None and (self._timer < 0 or due < self._timer - 1e-9):
            self._timer = max(due, self.now + 1e-3)
            self.world.after(self._timer - self.now, self._tick, self._timer)

    def _tick(self, timer: float) -> None:
        if not self.alive or self.finished or timer != self._timer:
            return
        if self._busy:
            self._timer = self.now + 0.05
            self.world.after(0.05, self._tick, self._timer)
            return
        self._timer = -1.0
        due = self.gang.deadline()
        if due is not None and self.now >= due:
            self._handle(g.Tick())
        else:
            self._set_timer()

    def die(self) -> None:
        self.alive = False
        self.engine.serve(None)
        self._inbox.clear()
        self._todo.clear()
        for link in self._links.values():
            link.tear()


_HEARD: dict[str, Callable[[SimDriver, Seat, wire.Message], None]] = {
    "report": SimDriver._reported,
    "exited": SimDriver._exited,
    "checkpoint": SimDriver._checkpointed,
}


def _short(value: object) -> str:
    if isinstance(value, g.Start):
        return f"Start({value.seat}, {value.incarnation})"
    if isinstance(value, g.Heartbeat):
        ended = f" exit {value.exit.code}/{value.exit.signal}" if value.exit else ""
        return f"Seen({value.seat}, {value.agent[:4]}, {value.incarnation}{' running' if value.running else ''}{ended})"
    if isinstance(value, g.Exited):
        return (
            f"Exited({value.seat}, {value.incarnation}, {value.code}/{value.signal}{' asked' if value.asked else ''})"
        )
    if isinstance(value, g.RecordEvent):
        cause = value.keys.get("cause")
        told = {key: v for key, v in value.keys.items() if v is not None and key != "cause"}
        return f"Record({value.ev}, {told}{f', {cause.kind.value} {cause.role}-{cause.rank}' if cause else ''})"
    if isinstance(value, g.GangEnded):
        return f"Over({value.state}, {value.cause.kind.value if value.cause else None})"
    return str(value)
