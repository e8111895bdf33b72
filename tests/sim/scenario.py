"""One seed, one history: a shape, rules, a weather, faults at random times, then calm, and an end that must come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.gang import gang_events as g
from longboat.runtime.seat import Seat
from longboat.runtime.shapes import SHAPES, finishing_roles
from tests.sim.agents import Fate, SimAgent, SimProcess
from tests.sim.driver import SimDriver
from tests.sim.engine import JUMP, Engine, Odds, Pod
from tests.sim.invariants import Watcher
from tests.sim.network import Weather
from tests.sim.world import Violation, World

FORM_TIMEOUT = 120.0
CALM_LIMIT = 400.0
"""Simulated seconds within which a calm world must come to an end."""
STOP_LIMIT = 60.0
"""The same after a stop: the grace, a lease, a fence and its margin, messages said again."""


@dataclass(frozen=True)
class Outcome:
    seed: int
    state: str
    faults: Counter[str]
    steps: int
    seconds: float
    generations: int
    violation: Violation | None = None


class Scenario:
    def __init__(self, seed: int, trace: Callable[[str], None] | None = None, theme: str = "") -> None:
        self.seed = seed
        self.world = world = World(seed, trace)
        rng = world.rng
        self.rules = self._rules()
        self.seats = list(self.rules.seats)
        theme = theme or rng.choice(("all", "all", *THEMES))
        self.weights = THEMES[theme]
        self.on_edge = theme == "edges"
        self.trouble = rng.choice((0.3, 1.0, 1.0, 2.0))
        """How much worse than usual it is."""
        self.until = world.between(5.0, 60.0)
        self.watcher = Watcher(world, self.rules)
        self.watcher.may_stall = bool(self.rules.stall_after)
        mess = rng.choice((0.0, 0.03, 0.1, 0.2))
        self.weather = Weather(
            delay=mess,
            delay_most=rng.choice((0.2, 2.0, 5.0)),
            loss=mess / 2,
            double=mess / 2,
            overtake=mess / 2,
            tear=mess / 10,
        )
        odds = Odds(no_start=0.05 * self.trouble, moved=0.2)
        self.engine = Engine(world, self.weather, odds, self.rules.lease, self.watcher, self._fate, self._process_ended)
        self.watcher.engine = self.engine
        self.slow_disk = rng.choice((0.0, 0.0, 0.05))
        self.journal: list[dict[str, Any]] = []
        self.crashes = rng.choice((0.0, 0.5, 1.0))
        self.stopped_at = -1.0
        self.driver: SimDriver
        self.driven_since = 0.0
        self._errors = 0

    def _rules(self) -> g.GangRules:
        rng = self.world.rng
        few = rng.choice((1, 1, 2, 2, 3, 4, 8)) if rng.random() > 0.01 else 50
        shape = rng.choice(("allreduce", "allreduce", "ps", "ps", "average", "mpi"))
        ranks = {
            "allreduce": {"worker": few},
            "average": {"worker": few},
            "mpi": {"launcher": 1},
            "ps": {
                "chief": rng.choice((0, 1)),
                "worker": few,
                "ps": rng.choice((1, 1, 2)),
                "evaluator": rng.choice((0, 0, 1)),
            },
        }[shape]
        finishes = finishing_roles(shape, ranks)
        return g.GangRules(
            {
                Seat("train", role, rank): (finishes[role], SHAPES[shape].rule(role).alone)
                for role, count in ranks.items()
                for rank in range(count)
            },
            restarts=rng.choice((0, 1, 3, 3, 10, 10, 50)),
            timeout=rng.choice((0.0, 0.0, 0.0, 40.0)),
            stall_after=rng.choice((0.0, 0.0, 6.0)),
            restart_on_stall=rng.choice((True, True, False)),
            grace=rng.choice((0.0, 2.0, 5.0)),
            lease=rng.choice((8.0, 8.0, 15.0)),
            form_timeout=FORM_TIMEOUT,
        )

    # What processes do.

    def _fate(self, agent: SimAgent, incarnation: g.Incarnation) -> Fate:
        world = self.world
        finishes, _ = self.rules.seats[agent.seat]
        seconds = world.between(2.0, 15.0) if finishes else -1.0
        if finishes and self.on_edge:
            seconds += 30.0  # so that it is still there when a lease has run out
        reports = 1.5 if self.rules.stall_after else 0.0
        checkpoint = world.between(1.0, 8.0) if world.chance() < 0.2 else -1.0
        deaf = world.happens(0.1)
        usual = Fate(seconds, 0, 0, None, reports, checkpoint_after=checkpoint, deaf=deaf)
        if not finishes and world.happens(0.03):
            world.fault("service ended")
            return Fate(world.between(0.0, 10.0), reports=reports, deaf=deaf)
        if not world.happens(0.15 * self.trouble):
            return usual
        when = world.between(0.0, 8.0)
        dice = world.chance()
        self._errors += 1
        if dice < 0.5:
            world.fault("process crashed")
            error = "again" if world.chance() < 0.1 else f"error {self._errors}"
            code = world.rng.randint(1, 255)
            cause = Cause(CauseKind.USER_ERROR, "it failed", exit_code=code, error=error)
            handlers = world.between(0.0, 2 * self.rules.lease) if world.chance() < 0.3 else 0.0
            return Fate(when, code, 0, cause, reports, deaf=deaf, handlers=handlers)
        if dice < 0.75:
            world.fault("process killed")
            signal = world.rng.choice((6, 9, 11))
            kind = CauseKind.OUT_OF_MEMORY if signal == 9 and world.chance() < 0.5 else CauseKind.KILLED
            return Fate(when, -1, signal, Cause(kind, "it was killed", signal=signal), reports)
        if dice < 0.78:
            world.fault("process cannot start")
            return Fate(0.0, -1, 0, Cause(CauseKind.NOT_FOUND, "no such command"))
        if self.rules.stall_after or self.rules.timeout:
            world.fault("process hangs")
            return Fate(-1.0, reports=reports, silent_after=when, deaf=deaf)
        return usual

    def _process_ended(self, process: SimProcess) -> None:
        """Those who trained in step with it may fall after it."""
        if process.code == 0 or self.rules.seats[process.seat][1] or process.asked and process.agent.alive:
            return
        world = self.world
        for other in list(self.watcher.running.values()):
            if (
                other.incarnation[0] == process.incarnation[0]
                and not self.rules.seats[other.seat][1]
                and world.happens(0.4)
            ):
                world.fault("peer fell after it")
                if world.chance() < 0.5:
                    cause = Cause(CauseKind.LOST_RENDEZVOUS, "a peer is gone", exit_code=1)
                else:
                    self._errors += 1
                    cause = Cause(CauseKind.USER_ERROR, "connection reset", exit_code=1, error=f"reset {self._errors}")
                world.after(world.between(0.01, 1.0), self._fall_after, other, cause)

    def _fall_after(self, process: SimProcess, cause: Cause) -> None:
        if process.alive:
            process.consequence = cause.kind is CauseKind.LOST_RENDEZVOUS
            process.die(1, 0, cause)

    # Faults at random times.

    def _trouble(self) -> None:
        world = self.world
        if world.calm:
            return
        rng = world.rng
        pods = self.engine.living()
        kind = rng.choices(_KINDS, self.weights)[0]
        if kind == "driver":
            if world.chance() < self.crashes and self.driver.alive and not self.driver.finished:
                self.driver.crash_in = rng.choice((0, 0, 1, 2, 3, 8))
                self.driver._work()
        elif kind == "driver pause":
            self._pause_driver()
        elif kind == "stop":
            if self.stopped_at < 0 and world.chance() < 0.3 and self.driver.alive:
                world.fault("stop asked")
                self.stopped_at = world.now
                self.driver.stop(world.chance() < 0.3)
        elif kind == "disk full":
            if world.chance() < 0.1 and self.driver.alive:
                world.fault("disk full")
                self.watcher.disk_full = True
                self.driver.fault()
        elif pods:
            _FAULTS[kind](self, rng.choice(pods))
        world.after(rng.expovariate(0.4 * self.trouble), self._trouble)

    def _agent_crash(self, pod: Pod) -> None:
        self.world.fault("agent crashed", str(pod))
        self.watcher.mark("agent", pod.seat)
        self.engine.agent_died(pod, None)

    def _agent_restart(self, pod: Pod) -> None:
        """The agent dies and its machine starts another in its place."""
        assert pod.agent is not None
        self.world.fault("agent restarted in place", str(pod))
        self.watcher.mark("agent", pod.seat)
        pod.agent.die()
        self.world.after(self.world.between(0.25, 2.0), self.engine.start_agent, pod)

    def _partition(self, pod: Pod) -> None:
        world = self.world
        ways = world.rng.choice(((True, True), (True, True), (True, False), (False, True)))
        world.fault("partition" if all(ways) else "one-way partition", str(pod))
        self.watcher.mark("agent", pod.seat)
        pod.node.cut_up, pod.node.cut_down = ways
        lease = self.rules.lease
        length = world.rng.choice((1.0, 4.0, lease, 2 * lease, 4 * lease)) * world.between(0.5, 1.5)
        if self.on_edge or world.chance() < 0.3:
            length = lease + world.between(-1.0, 3.0)
        world.after(length, self._mend, pod)
        if self.on_edge or world.chance() < 0.7:
            pod.node.cut_off = True
            longer = world.between(0.0, 2 * lease) if world.chance() < 0.5 else 0.0
            world.after(length + longer, self.engine.regain, pod.node)

    def _lag(self, pod: Pod) -> None:
        """What the driver says comes later and later, and then nothing comes."""
        world = self.world
        world.fault("network slowed down", str(pod))
        self.watcher.mark("agent", pod.seat)
        self._lag_more(pod, world.between(0.1, 0.8) * self.rules.lease)

    def _lag_more(self, pod: Pod, most: float) -> None:
        world = self.world
        if world.calm:
            return
        if pod.node.lag < most:
            pod.node.lag += self.rules.lease / 6
            world.after(2.0, self._lag_more, pod, most)
        else:
            world.after(world.between(0.0, 3.0), self._cut_after_lag, pod)

    def _cut_after_lag(self, pod: Pod) -> None:
        if not self.world.calm:
            self._partition(pod)

    def _mend(self, pod: Pod) -> None:
        self.watcher.mark("agent", pod.seat)
        self.engine.mend(pod.node)

    def _tear(self, pod: Pod) -> None:
        if pod.agent is not None and pod.agent.connection is not None:
            self.world.fault("connection torn", str(pod))
            pod.agent.connection.tear()

    def _jump(self, pod: Pod) -> None:
        """Its monotonic clock jumps, back by no more than the margin covers."""
        jump = self.world.between(-0.2, 3.0)
        if pod.agent is not None and pod.jumped + jump > -JUMP:
            pod.jumped += min(jump, 0.0)
            self.world.fault("clock jumped", str(pod))
            self.watcher.mark("agent", pod.seat)
            pod.agent.jump(jump)

    def _preempt(self, pod: Pod) -> None:
        """Its machine says that it will go away, and goes."""
        if pod.agent is None:
            return
        self.world.fault("preemption notice", str(pod))
        self.watcher.mark("notice", pod.seat)
        self.watcher.mark("agent", pod.seat)
        pod.agent.notice()
        self.world.after(self.world.between(0.5, 15.0), self._preempted, pod)

    def _preempted(self, pod: Pod) -> None:
        self.watcher.mark("notice", pod.seat)  # a paused driver hears of it later
        self.engine.agent_died(pod, Cause(CauseKind.PREEMPTED, "its machine was preempted").at(pod.seat))

    def _kill_process(self, pod: Pod) -> None:
        process = pod.agent.process if pod.agent is not None else None
        if process is not None and process.alive:
            self.world.fault("process killed", str(pod))
            process.die(-1, 9, Cause(CauseKind.KILLED, "it was killed", signal=9))

    # The driver.

    def _new_driver(self) -> None:
        self.driven_since = self.world.now
        self.driver = SimDriver(
            self.world, self.engine, self.rules, self.journal, self.watcher, self.slow_disk, self._driver_crashed
        )

    def _pause_driver(self) -> None:
        length = self.rules.lease * self.world.between(0.1, 3.0)
        if self.driver.alive:
            self.world.fault("driver paused")
            self._driver_away(length)
            self.driver.pause(length)

    def _driver_away(self, seconds: float) -> None:
        """Leases of agents may run out meanwhile."""
        if seconds > self.rules.lease / 2:
            for seat in self.seats:
                self.watcher.mark("agent", seat)

    def _driver_crashed(self, driver: SimDriver) -> None:
        world = self.world
        world.fault("driver crashed")
        self.watcher.driver_lost_in.add(self.watcher.generation)
        driver.die()
        lease = self.rules.lease
        away = world.rng.choice((0.2, 2.0, lease, 3 * lease)) * world.between(0.5, 1.5)
        self._driver_away(away)
        world.after(away, self._new_driver)

    # From the beginning to the end.

    def run(self) -> Outcome:
        world = self.world
        violation = None
        try:
            if world.tracing:
                world.say(f"seats {self.rules.seats}")
                world.say(f"{self.rules.restarts} restarts, {self.weather}")
            self._new_driver()
            world.after(world.between(0.0, 3.0), self._trouble)
            world.run(self.until, self._over)
            self._calm_down()
            world.run(world.now + 60.0, self._over)
            self._kill_the_hung()
            world.run(world.now + CALM_LIMIT, self._over)
            if not self._over():
                self.watcher.bad("h", f"no end {CALM_LIMIT:g} s after the last fault: {self.driver.gang.phase.value}")
            if self.stopped_at >= 0 and world.now > max(self.stopped_at, self.until, self.driven_since) + STOP_LIMIT:
                self.watcher.bad("h", f"the end came {world.now - self.stopped_at:.0f} s after the stop")
            world.run(world.now + 30.0, lambda: False)
        except Violation as found:
            violation = found
        generations = sum(event["ev"] == "gen.started" for event in self.journal)
        return Outcome(self.seed, self.watcher.over, world.faults, world.steps, world.now, generations, violation)

    def _kill_the_hung(self) -> None:
        """A rank that hangs and never reported to this driver is nothing that the gang can notice: somebody ends it."""
        for process in list(self.watcher.running.values()):
            if process.fate.seconds < 0 <= process.fate.silent_after and process.seat not in self.watcher.reported:
                process.die(-1, 9, Cause(CauseKind.KILLED, "it was killed", signal=9))

    def _over(self) -> bool:
        return bool(self.watcher.over)

    def _calm_down(self) -> None:
        world = self.world
        world.say("calm")
        world.calm = True
        self.driver.crash_in = -1
        for pods in self.engine.pods.values():
            for pod in pods:
                self.engine.mend(pod.node)
                self.engine.regain(pod.node)


_FAULTS: dict[str, Callable[[Scenario, Pod], None]] = {
    "agent crash": Scenario._agent_crash,
    "agent restart": Scenario._agent_restart,
    "partition": Scenario._partition,
    "lag": Scenario._lag,
    "tear": Scenario._tear,
    "jump": Scenario._jump,
    "preempt": Scenario._preempt,
    "kill": Scenario._kill_process,
}
_KINDS = (*_FAULTS, "driver", "stop", "disk full", "driver pause")
THEMES: dict[str, tuple[int, ...]] = {
    "all": (3, 2, 3, 1, 4, 3, 2, 5, 4, 1, 1, 2),
    "cuts": (1, 1, 8, 8, 2, 2, 0, 1, 1, 1, 0, 0),
    "driver": (2, 2, 1, 0, 1, 0, 6, 4, 12, 2, 0, 4),
    "edges": (0, 0, 4, 4, 0, 0, 0, 0, 1, 0, 0, 0),
}
"""How often each kind comes, in the order of the kinds. At the edges all cuts last about as long as a lease."""


def simulate(seed: int, trace: Callable[[str], None] | None = None, theme: str = "") -> Outcome:
    """Plays one seed; `theme` chooses what to make much of, else the seed does."""
    return Scenario(seed, trace, theme).run()
