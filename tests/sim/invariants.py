"""The promises, checked at every step against the truth, which the simulator knows.

The letters are those that a violation is printed with:
a   no process of one generation runs beside one of another
a'  never two processes at one seat
b   one world for all starts of a generation; its number is recorded before it is used, and never used again
c   success only when all who must finish have exited 0, unasked, in one generation; declared once
d   the cause of a failed generation is a fault of that generation, and the first that is known
e   no agent is launched where one lives
f   who restarts alone restarts alone
g   no more restarts than the rules allow between two checkpoints
h   once it is calm the gang comes to an end, and a stop ends it (checked by the scenario)
i   nothing runs after the end
j   success only when all is heard that the agents of those who must finish have said, where TCP carried it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from longboat.runtime.causes import HOPELESS, Cause, CauseKind
from longboat.runtime.gang import gang_events as g
from longboat.runtime.gang import kill_causes
from longboat.runtime.gang.machine import Gang, Phase
from longboat.runtime.rank_env import Peers
from longboat.runtime.seat import Seat
from tests.sim.agents import SimProcess
from tests.sim.world import Violation, World

if TYPE_CHECKING:
    from tests.sim.engine import Engine

FREE = (CauseKind.PREEMPTED, CauseKind.DRIVER_LOST)
OWN = (CauseKind.USER_ERROR, CauseKind.KILLED, CauseKind.OUT_OF_MEMORY, CauseKind.NOT_FOUND, CauseKind.LOST_RENDEZVOUS)
"""Kinds that a process of the named rank must have ended with."""


class Watcher:
    def __init__(self, world: World, rules: g.GangRules) -> None:
        self.world, self.rules = world, rules
        self.engine: Engine
        self.running: dict[Seat, SimProcess] = {}
        self.by_generation: dict[int, int] = {}
        self.processes: dict[int, dict[Seat, SimProcess]] = {}
        """Generation -> the last process of each seat in it."""
        self._marks: dict[tuple[str, Seat], float] = {}
        """Faults that befell seats, by what they are called as a cause, and when they were last seen."""
        self._heard: dict[Seat, float] = {}
        self._since = 0.0
        self.driver_lost_in: set[int] = set()
        self.disk_full = False
        self.may_stall = False
        self.reported: set[Seat] = set()
        """Seats that the driver knows to report."""
        self.words: dict[str, set[int]] = {}
        """Agent -> the numbers of what drivers have heard of it."""
        self.over: str = ""
        self.generation = 0
        self._lives: set[tuple[Seat, g.Incarnation]] = set()
        self._recorded: list[int] = []
        self._peers: dict[int, Peers] = {}
        self._spent = 0
        self._refilled_late = 0
        """A generation that was given up for want of restarts before a checkpoint brought new ones."""
        self._gang: Gang
        self._beginning = False
        self._first_start = -1.0

    def bad(self, promise: str, text: str) -> None:
        self.world.say(f"VIOLATION ({promise}) {text}")
        raise Violation(promise, text)

    def mark(self, what: str, seat: Seat) -> None:
        """Something befell the seat that may be named as a cause."""
        self._marks[what, seat] = self.world.now

    def marked(self, what: str, seat: Seat) -> bool:
        """It did in this generation, or so shortly before that it is felt in this one."""
        return self._marks.get((what, seat), -1e9) >= self._since - 3 * self.rules.lease

    # The truth.

    def began(self, process: SimProcess) -> None:
        seat, (generation, _) = process.seat, process.incarnation
        self.world.say(f"{process.agent.pod}: process {process.incarnation} begins")
        if self.over:
            self.bad("i", f"{seat} starts {process.incarnation} after the end")
        if seat in self.running:
            self.bad("a'", f"{seat} runs {self.running[seat].incarnation} and starts {process.incarnation}")
        if self.by_generation.get(generation, 0) != len(self.running):
            others = sorted((p.seat, p.incarnation) for p in self.running.values() if p.incarnation[0] != generation)
            self.bad("a", f"{seat} starts {process.incarnation} while these run: {others}")
        if (seat, process.incarnation) in self._lives:
            self.bad("b", f"{seat} lives {process.incarnation} a second time")
        if generation not in self._peers:
            self.bad("b", f"{seat} starts {process.incarnation}, which was never announced")
        self._lives.add((seat, process.incarnation))
        self.running[seat] = process
        self.by_generation[generation] = self.by_generation.get(generation, 0) + 1
        self.processes.setdefault(generation, {})[seat] = process

    def ended(self, process: SimProcess) -> None:
        self.world.say(f"{process.agent.pod}: process {process.incarnation} ends, {process.code}/{process.signal}")
        if self.running.get(process.seat) is process:
            del self.running[process.seat]
        self.by_generation[process.incarnation[0]] -= 1

    # What the driver does.

    def driver_began(self, gang: Gang) -> None:
        self._gang, self._beginning = gang, True
        self.reported.clear()
        self._heard = dict.fromkeys(self.rules.seats, self.world.now)

    def begun(self) -> None:
        self._beginning = False

    def heard(self, seat: Seat) -> None:
        self._heard[seat] = self.world.now

    def driver_paused(self, seconds: float) -> None:
        """The silence of a pause is not the agents'."""
        self._heard = {seat: at + seconds for seat, at in self._heard.items()}

    def checkpoint(self) -> None:
        self._spent = 0
        if self._gang.phase is Phase.ENDING:
            self._refilled_late = self.generation

    def action(self, action: g.Action) -> None:
        if isinstance(action, g.Start):
            self._start(action)
        elif isinstance(action, g.RecordEvent):
            if action.ev == "gen.started":
                self._generation(action.keys["gen"])
            elif action.ev == "gen.ended":
                self._generation_ended(action)
            elif action.ev == "rank.ended" and action.keys.get("restarts_left") is not None:
                self._pay(action.keys["cause"])
        elif isinstance(action, g.Fence):
            if self.world.now < self._heard.get(action.seat, 0.0) + self.rules.lease - 1e-6:
                self.bad(
                    "e", f"{action.seat} is fenced, and was heard {self.world.now - self._heard[action.seat]:.1f} s ago"
                )
            self.mark("agent", action.seat)
        elif isinstance(action, g.Launch):
            self._launch(action.seat)
        elif isinstance(action, g.GangEnded):
            self._over(action)

    def _start(self, action: g.Start) -> None:
        generation = action.incarnation[0]
        if not self._recorded or self._recorded[-1] != generation:
            self.bad("b", f"generation {generation} is started and the journal ends with {self._recorded[-1:]}")
        if self._peers.setdefault(generation, action.peers) != action.peers:
            self.bad("b", f"generation {generation} has two worlds")

    def _generation(self, generation: int) -> None:
        if self._recorded and generation <= self._recorded[-1]:
            self.bad("b", f"generation {generation} after {self._recorded[-1]}")
        if self.running:
            self.bad("a", f"generation {generation} is announced while {sorted(self.running)} run")
        self._recorded.append(generation)
        self._since = self.world.now
        self.generation = generation
        if self._first_start < 0:
            self._first_start = self.world.now

    def _generation_ended(self, record: g.RecordEvent) -> None:
        cause = record.keys["cause"]
        if record.keys["state"] != "failed":
            return
        if cause is None:
            self.bad("d", "a generation failed without a cause")
        self._named(cause, record.keys["gen"])
        self._alone(cause, record.keys["gen"])
        if record.keys.get("again"):
            self._pay(cause)

    def _pay(self, cause: Cause) -> None:
        self._spent += cause.kind not in FREE
        if self._spent > self.rules.restarts:
            self.bad("g", f"{self._spent} restarts, {self.rules.restarts} are allowed; the last for {cause.kind.value}")

    def _named(self, cause: Cause, generation: int) -> None:
        """The cause is something that happened."""
        seat, kind = cause.seat, cause.kind
        where = f"{kind.value} of {seat} in generation {generation}"
        if kind in OWN:
            process = self.processes.get(generation, {}).get(seat)
            if process is None or process.alive or process.cause is None or process.cause.kind is not kind:
                self.bad("d", f"{where} is named, which did not happen")
            elif not self.rules.seats[seat][1]:
                self._first(process, generation, where)
            return
        happened = {
            CauseKind.DRIVER_LOST: generation in self.driver_lost_in,
            CauseKind.AGENT_LOST: self.marked("agent", seat),
            CauseKind.NODE_LOST: self.marked("agent", seat) if cause.rank >= 0 else generation in self.driver_lost_in,
            CauseKind.PREEMPTED: self.marked("notice", seat),
            CauseKind.DISK_FULL: self.disk_full,
            CauseKind.STALLED: self.may_stall,
            CauseKind.TIMED_OUT: self._late(),
        }
        if kind not in happened:
            self.bad("d", f"{where} is no cause that this world has")
        if not happened[kind]:
            self.bad("d", f"{where} is named, which did not happen")

    def _late(self) -> bool:
        """The timeout is over, give or take the time that the first start took to be written down."""
        return bool(self.rules.timeout) and self.world.now >= self._first_start + self.rules.timeout - self.rules.lease

    def _first(self, named: SimProcess, generation: int, where: str) -> None:
        """Nobody whose agent lived to tell failed earlier by itself."""
        for other in self.processes[generation].values():
            failed = not other.alive and other.cause is not None and not other.asked and other.code != 0
            told = other.agent.alive and not self.marked("agent", other.seat)
            if failed and told and not self.rules.seats[other.seat][1] and other.ended_at < named.ended_at - 1e-9:
                if other.consequence and not named.consequence:
                    continue
                self.bad(
                    "d", f"{where} is named, and {other.seat} fell {named.ended_at - other.ended_at:.3f} s earlier"
                )

    def _alone(self, cause: Cause, generation: int) -> None:
        seat = cause.seat
        alone = self.rules.seats.get(seat, (False, False))[1]
        excused = (
            cause.kind in HOPELESS
            or cause.kind not in (*OWN, CauseKind.AGENT_LOST, CauseKind.NODE_LOST)
            or cause.message == kill_causes.moved(seat).message
            or cause.error == "again"
            or generation in self.driver_lost_in
            or generation == self._refilled_late
        )
        if alone and not excused and self._spent < self.rules.restarts and self._gang.budget > 0:
            self.bad("f", f"all end because {seat} fell, which restarts alone ({cause.kind.value})")

    def _launch(self, seat: Seat) -> None:
        pod = self.engine.current(seat)
        if pod is not None and not pod.dead and not pod.told and not self._beginning and pod.cause is None:
            self.bad("e", f"an agent is launched at {seat}, where {pod} lives")

    def _over(self, over: g.GangEnded) -> None:
        if self.over:
            self.bad("c", f"the end is declared twice: {self.over}, {over.state}")
        self.over = over.state
        if self.running:
            self.bad(
                "i", f"{over.state}, and these run: {sorted((p.seat, p.incarnation) for p in self.running.values())}"
            )
        if over.state == "succeeded":
            last = self.processes.get(self.generation, {})
            for seat, (finishes, _) in self.rules.seats.items():
                process = last.get(seat)
                if finishes and (process is None or process.alive or process.code != 0 or process.asked):
                    self.bad("c", f"success, and {seat} did not finish in generation {self.generation}")
                elif finishes and process is not None and not process.agent.misheard:
                    unheard = process.agent.words - self.words.get(process.agent.protocol.name, set())
                    if unheard:
                        self.bad("j", f"success, and nobody has heard {sorted(unheard)} of {seat}")
        elif over.cause is None:
            self.bad("d", f"{over.state} without a cause")
