"""A cluster, as far as the gang can see it: it brings agents to seats, and tells when one is gone for good.

It outlives the driver. Its promises are those that an engine must keep: `launch` where an agent is on its way or alive
does nothing; an agent that was force-deleted is not let in again (`vouches`); and Lost is told only when every agent
that was ever at the seat is dead, or is unreachable and its lease has run out on its own clock. For the last the
engine waits `margin` after a fence, and the margin covers all by which that clock and the agent's attention may err.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from longboat.runtime import wire
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.gang.gang_events import AgentLost, Incarnation
from longboat.runtime.rank_env import Address
from longboat.runtime.seat import Seat
from tests.sim.agents import LOOK, Fate, SimAgent, SimProcess
from tests.sim.network import Connection, Node, Weather
from tests.sim.world import World

if TYPE_CHECKING:
    from tests.sim.invariants import Watcher

DRIFT = 0.02
JUMP = 0.5
"""How much an agent's clock may jump back, in all."""


def margin(lease: float) -> float:
    """A late look at the lease, a drifting clock that jumped, a kill that takes a moment."""
    return LOOK + 1.0 + lease * 2 * DRIFT + JUMP + 0.5


@dataclass
class Odds:
    """Probabilities of what befalls pods."""

    no_start: float = 0.0
    moved: float = 0.0


@dataclass(eq=False)
class Pod:
    engine: Engine
    seat: Seat
    node: Node
    address: list[Any]
    agent: SimAgent | None = None
    dead: bool = False
    """Nothing of it runs any more."""
    told: bool = False
    """The driver was told so."""
    deleted: bool = False
    """Given up although it could not be reached."""
    died_at: float = 0.0
    cause: Cause | None = None
    jumped: float = 0.0
    incarnations: int = 0

    def __str__(self) -> str:
        return f"{self.seat.rank_name}@{self.node.name}"

    def dial(self, agent: SimAgent) -> Connection:
        return Connection(self.engine.world, self.engine.weather, agent, self.engine.receive)

    def fate(self, agent: SimAgent, incarnation: Incarnation) -> Fate:
        return self.engine.fate(agent, incarnation)

    def process_ended(self, process: SimProcess) -> None:
        self.engine.process_ended(process)

    def say_goodbye(self, agent: SimAgent) -> None:
        self.engine.agent_died(self, None)


@dataclass(eq=False)
class Engine:
    world: World
    weather: Weather
    odds: Odds
    lease: float
    watcher: Watcher
    fate: Callable[[SimAgent, Incarnation], Fate]
    process_ended: Callable[[SimProcess], None]
    receive: Callable[[Connection, wire.Message], None] = lambda _connection, _message: None
    tell: Callable[[AgentLost], None] | None = None
    """The driver's ear; none while there is no driver."""
    pods: dict[Seat, list[Pod]] = field(default_factory=dict)
    _nodes: int = 0

    def current(self, seat: Seat) -> Pod | None:
        pods = self.pods.get(seat)
        return pods[-1] if pods and not pods[-1].deleted else None

    def living(self) -> list[Pod]:
        """Pods with an agent that lives."""
        return [p for pods in self.pods.values() for p in pods if p.agent is not None and p.agent.alive]

    def is_current(self, pod: Pod) -> bool:
        return self.current(pod.seat) is pod and not pod.dead

    def launch(self, seat: Seat, keep: Address | None) -> None:
        world = self.world
        pod = self.current(seat)
        if pod is not None and not pod.dead:
            return
        self._nodes += 1
        moved = keep is None or world.happens(self.odds.moved)
        address = [f"n{self._nodes}", [1, 2, 3]] if moved or keep is None else [keep.host, list(keep.ports)]
        pod = Pod(self, seat, Node(f"n{self._nodes}"), address)
        self.pods.setdefault(seat, []).append(pod)
        world.after(world.between(0.05, 1.0), self._start, pod)

    def _start(self, pod: Pod) -> None:
        if pod.dead or pod.deleted:
            return
        if self.world.happens(self.odds.no_start):
            self.world.fault("agent did not start", str(pod))
            self.agent_died(pod, Cause(CauseKind.AGENT_LOST, "it did not start").at(pod.seat))
            return
        self.start_agent(pod)

    def start_agent(self, pod: Pod) -> None:
        """A first or, after a crash in place, another incarnation of the pod's agent."""
        if not pod.dead and pod.cause is None:
            pod.incarnations += 1
            pod.agent = SimAgent(self.world, pod, self.watcher, self.lease)

    # Death.

    def agent_died(self, pod: Pod, cause: Cause | None) -> None:
        """The pod ends by itself; noticed once its node can be reached and nothing of it is left."""
        if pod.dead or pod.cause is not None:
            return
        pod.cause = cause or Cause(CauseKind.AGENT_LOST, "the agent ended").at(pod.seat)
        pod.died_at = self.world.now
        if pod.agent is not None:
            pod.agent.die()
        self.world.after(0.25, self._notice, pod)

    def _notice(self, pod: Pod) -> None:
        pod.dead = True
        self.world.after(self.world.between(0.0, 0.8), self._say_gone, pod)

    def _say_gone(self, pod: Pod) -> None:
        if pod.told or pod.deleted or pod is not self.pods[pod.seat][-1]:
            return
        if self.tell is None or pod.node.cut_off:
            self.world.after(1.0, self._say_gone, pod)
            return
        if any(not other.dead for other in self.pods[pod.seat]):
            self.world.after(0.5, self._say_gone, pod)
            return
        pod.told = True
        assert pod.cause is not None
        self.world.say(f"engine: {pod} is gone")
        self.tell(AgentLost(pod.seat, pod.cause, pod.died_at))

    def fence(self, seat: Seat) -> None:
        """Kill what can be reached; wait out the lease of what cannot."""
        due = self.world.now + margin(self.lease)
        self.world.after(self.world.between(0.0, 0.3), self._fence, seat, [*self.pods.get(seat, ())], due, self.tell)

    def _fence(self, seat: Seat, pods: list[Pod], due: float, tell: Callable[[AgentLost], None]) -> None:
        if tell != self.tell or pods and pods[-1].told:
            return  # the driver that asked is gone, or knows already
        left = [pod for pod in pods if not pod.dead]
        for pod in left:
            if not pod.node.cut_off and pod.cause is None:
                pod.cause = Cause(CauseKind.NODE_LOST, "it was silent").at(seat)
                pod.died_at = self.world.now
                if pod.agent is not None:
                    pod.agent.die()
                self.world.after(0.25, self._buried, pod)
        if left and self.world.now < due:
            self.world.after(0.3, self._fence, seat, pods, due, tell)
            return
        for pod in left:
            pod.deleted = True
            self.world.say(f"engine: {pod} is given up")
        for pod in pods:
            pod.told = True
        self.world.say(f"engine: nothing is left at {seat.rank_name}")
        tell(
            AgentLost(
                seat,
                Cause(CauseKind.NODE_LOST, "its machine did not answer").at(seat),
                self.world.now,
            )
        )

    def serve(self, tell: Callable[[AgentLost], None] | None) -> None:
        """A driver comes, or goes. A new one is told again of the dead that are still to be seen."""
        self.tell = tell
        if tell is None:
            return
        for pods in self.pods.values():
            pods[-1].told = False
            if pods[-1].dead and not pods[-1].deleted:
                self.world.after(self.world.between(0.0, 0.8), self._say_gone, pods[-1])

    def _buried(self, pod: Pod) -> None:
        pod.dead = True

    def mend(self, node: Node) -> None:
        """The node's way to the driver is whole again."""
        node.cut_up = node.cut_down = False
        node.lag = 0.0
        held, node.held = node.held, []
        for send in held:
            send()

    def regain(self, node: Node) -> None:
        """The engine sees the node again; what was given up there is cleared away some time later."""
        node.cut_off = False
        for pod in [p for pods in self.pods.values() for p in pods if p.node is node and p.deleted and not p.dead]:
            self.world.after(self.world.between(0.0, 6.0), self._clear, pod)

    def _clear(self, pod: Pod) -> None:
        if pod.agent is not None:
            pod.agent.die()
        pod.cause = pod.cause or Cause(CauseKind.NODE_LOST, "cleared away")
        self.world.after(0.25, self._buried, pod)
