"""The driver's loop: feeds two pure state machines (pipeline, gang) with events and carries out their actions.

Only the driver writes the journal. It starts no process itself: the engine's Launcher brings an agent to a
seat and reports when one is gone for good. One thread, one selector: agents' connections, the launcher,
signals, and the deadlines of the state machines.

SIGINT, SIGTERM and SIGHUP stop the run with the grace period; a second SIGINT, or SIGQUIT, stops it at once.
"""

from __future__ import annotations

import selectors
import signal
import socket
import time
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Set, Tuple, Union

from longboat.runtime import debug_log, run_layout
from longboat.runtime import messages as m
from longboat.runtime import pipeline as p
from longboat.runtime.agent import syscalls
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.driver import codec
from longboat.runtime.driver.agent_links import AgentLink, AgentLinks
from longboat.runtime.driver.checkpoints import Checkpoints
from longboat.runtime.driver.dedup import Deduplicator
from longboat.runtime.driver.history import RunHistory, UnfinishedStage
from longboat.runtime.driver.launcher import AgentGone, Launcher, StageNote, Unrecoverable
from longboat.runtime.driver.rank_journal import RankJournal
from longboat.runtime.driver.running_clock import RunningClock
from longboat.runtime.driver.services import Services, ServiceStages
from longboat.runtime.driver.stage_run import StageRun, rules_of
from longboat.runtime.driver.stop_signals import StopSignals, stopped_by
from longboat.runtime.errors import FAILED
from longboat.runtime.gang import gang_events as g
from longboat.runtime.gang.machine import Gang
from longboat.runtime.journal import JournalFull, JournalWriter
from longboat.runtime.light_dataclasses import dataclass
from longboat.runtime.plan import Plan, Stage
from longboat.runtime.seat import Seat
from longboat.runtime.shapes import MERGE_ROLE, SHAPES


@dataclass(frozen=True)
class DriverOptions:
    """How a driver differs from one that runs a whole plan on this machine."""

    recover: bool = False
    """Agents of an earlier driver may still be alive; take over from it."""
    left_out: Sequence[str] = ()
    """Stages that do not run."""
    keep: bool = False
    """Servers keep running when everything else is done."""
    pods: bool = False
    """Agents run in pods and outlive this driver. SIGTERM then ends only this driver, and another one takes over;
    agents may wait for resources; and ranks that a launcher starts have agents too."""
    services: Optional[Services] = None
    """Keeps serve stages running; without it, they are gangs."""
    signals: Optional[StopSignals] = None
    """The stop signals, if they were caught earlier."""
    stop_asked: bool = False
    """An earlier driver was told to stop and did not finish."""


class Driver:
    """Runs one plan to its end. From its creation on, stop signals are the driver's: create it before the run is
    announced."""

    def __init__(
        self,
        plan: Plan,
        run_dir: str,
        journal: JournalWriter,
        token: bytes,
        before: RunHistory,
        options: DriverOptions,
    ) -> None:
        self._clock = RunningClock()
        self._paused = 0.0
        """Seconds of the pauses that the journal knows of."""
        self._pods = options.pods
        self.plan = plan
        self.run_dir = run_dir
        self.journal = journal
        self._token = token
        recovered = before if options.recover else RunHistory()
        self._unfinished = recovered.unfinished
        self._pipeline = p.Pipeline(
            plan,
            passed=frozenset(before.passed),
            attempts=before.attempts,
            retries=recovered.retries,
            running=frozenset(self._unfinished),
            refused=frozenset(name for name, left in self._unfinished.items() if left.refused),
            left_out=frozenset(options.left_out),
            keep=options.keep,
            kept=recovered.serving,
            end=recovered.end,
        )
        services = options.services
        self._services = None if services is None else ServiceStages(services, self._pipeline, journal)
        self._metrics = before.metrics
        for name, values in before.metrics.values.items():
            self._update_metrics(name, values)
        self._dedup = Deduplicator(before.last_messages)
        self._agents_left: Set[str] = set()
        """Agents that have said that they leave."""
        self._generations = dict(before.generations)
        self._checkpoints = {
            stage.name: Checkpoints(run_dir, stage, before.generations.get(stage.name, 0))
            for stage in plan.stages
            if stage.roles
        }
        self._rounds = dict(before.rounds)
        """Round of each stage: another attempt continues there, unless the last one succeeded."""
        self._running: Dict[str, StageRun] = {}
        self._finished: Optional[p.Finished] = None
        self.state = ""
        """How the run ended; empty while it runs."""
        self._selector = selectors.DefaultSelector()
        self._signals = options.signals or StopSignals(leave_on_term=options.pods)
        self._selector.register(self._signals.fileno(), selectors.EVENT_READ, self._signals)
        self._links: AgentLinks
        self._launcher: Launcher
        self._stopping = options.stop_asked
        self._interrupts = 0
        self._starts: Dict[Tuple[str, g.Incarnation, str], bytes] = {}
        self._rank_journal = RankJournal(journal, run_dir)
        self._next_look = 0.0

    def run(self, listener: socket.socket, launcher: Launcher, begun: Callable[[], None] = lambda: None) -> int:
        """Run the plan to its end; returns the exit code. `begun` is called once the first agents are launched."""
        self._launcher = launcher
        self._links = AgentLinks(listener, self._token, self._selector, self._clock)
        self._selector.register(launcher.fileno(), selectors.EVENT_READ, launcher)
        if self._services is not None:
            self._selector.register(self._services.services.fileno(), selectors.EVENT_READ, self._services)
        try:
            try:
                for name, left in self._unfinished.items():
                    self._take_over(self.plan.stage(name), left)
                if self._stopping:
                    self.stop(stopped_by(signal.SIGINT, self.run_dir), now=False)
                self._follow(self._pipeline.begin())
                begun()
                while self._finished is None:
                    self._turn()
            except JournalFull:
                self._finished = p.Finished("failed", FAILED, self._disk_full())
            finally:
                self._launcher.close()
                self._links.close()
                if self._services is not None:
                    self._services.services.close()
            return self._conclude(self._finished)
        finally:
            self._signals.close()

    # One turn of the loop.

    def _turn(self) -> None:
        for key, events in self._selector.select(self._patience()):
            if key.data is self._links:
                self._links.accept()
            elif key.data is self._launcher:
                self._poll_launcher()
            elif isinstance(key.data, ServiceStages):
                self._follow(key.data.hear())
            elif key.data is self._signals:
                self._signalled()
            else:
                if events & selectors.EVENT_WRITE:
                    self._links.flush(key.data)
                if events & selectors.EVENT_READ:
                    self._read(key.data)
        now = self._clock()
        if self._clock.paused > self._paused:
            seconds, self._paused = self._clock.paused - self._paused, self._clock.paused
            self.journal.write("note", level="warning", text=f"the driver was paused for {seconds:.0f} s")
        for run in list(self._running.values()):
            due = run.gang.deadline()
            if due is not None and now >= due:
                self._gang(run, g.Tick())
        if now >= self._next_look:
            self._next_look = now + 1.0
            self._look_around()

    def _poll_launcher(self) -> None:
        for news in self._launcher.poll():
            if isinstance(news, StageNote):
                self.journal.write("note", stage=news.stage, level="warning", text=news.text)
            else:
                self._gone(news)

    def _patience(self) -> float:
        now = self._clock()
        dues = [due for due in (run.gang.deadline() for run in self._running.values()) if due is not None]
        return max(0.0, min([*dues, self._next_look]) - now)

    def _look_around(self) -> None:
        self._links.sweep()
        for run in self._running.values():
            if run.swept < run.gang.generation:
                run.swept = run.gang.generation
                self._checkpoints[run.stage.name].sweep(run.swept)
        free = run_layout.free_bytes(self.run_dir)
        if self.journal.full or free is not None and free < run_layout.LEAST_FREE:
            for run in list(self._running.values()):
                self._gang(run, g.Fault(self._disk_full()))

    def _disk_full(self) -> Cause:
        free = run_layout.free_bytes(self.run_dir)
        facts = () if free is None else (f"{syscalls.size(free)} free in the run's directory",)
        return Cause(CauseKind.DISK_FULL, f"the disk of {self.run_dir} is full", evidence=facts)

    # Signals.

    def _signalled(self) -> None:
        """Ctrl-C twice stops at once: the user sees what happens. A repeated `longboat stop` does not: a script must
        not take away the time that ranks need to save."""
        for number in self._signals.received():
            self._stopping = True
            self._interrupts += number == signal.SIGINT and not self._pods
            self.stop(stopped_by(number, self.run_dir), now=self._interrupts > 1 or number == signal.SIGQUIT)

    def stop(self, by: str, now: bool) -> None:
        cause = Cause(CauseKind.STOPPED, f"stopped by {by}")
        self.journal.write("stopping", by=by, now=now)
        steps = self._pipeline.stop(cause)
        for run in list(self._running.values()):
            run.halted = True
            self._gang(run, g.StopRequest(cause, now))
        self._follow(steps)

    # Steps of the pipeline.

    def _follow(self, steps: Sequence[p.Step]) -> None:
        for step in steps:
            if isinstance(step, p.BeginStage):
                self._begin(step.stage, step.attempt)
            elif isinstance(step, p.HaltStage):
                self._halt(step)
            elif isinstance(step, p.GateVerdict):
                self._rank_journal.verdict(step)
            elif isinstance(step, p.StageEnded):
                if step.state == "succeeded":
                    self._rounds.pop(step.stage, None)
                self.journal.write(
                    "stage.ended", stage=step.stage, state=step.state, attempts=step.attempts, cause=step.cause
                )
            elif isinstance(step, p.StageReady):
                self.journal.write("stage.ready", stage=step.stage, **self._rank_journal.serving(step.stage))
            elif isinstance(step, p.Serving):
                self.journal.write("run.serving")
                if self._services is not None:
                    self._services.services.settled()
            elif isinstance(step, p.Finished):
                self._finished = step

    def _halt(self, step: p.HaltStage) -> None:
        if self._services is not None and self._services.halt(step.stage):
            return
        run = self._running.get(step.stage)
        if run is not None and not run.halted:
            run.halted = True
            why = "a gate rejected the model that it serves" if step.again else "another stage failed"
            text = f"stopped because {'all other stages are done' if step.done else why}"
            self._gang(run, g.StopRequest(Cause(CauseKind.STOPPED, text)))

    def _begin(self, name: str, attempt: int) -> None:
        stage = self.plan.stage(name)
        self.journal.write("stage.started", stage=name, attempt=attempt)
        if stage.kind == "serve" and self._services is not None:
            self._services.begin(name)
            return
        round_, merging = self._rounds.get(name, (1, False))
        self._form(StageRun(stage, attempt, self._new_gang(stage, merging), round_, merging))

    def _take_over(self, stage: Stage, left: UnfinishedStage) -> None:
        if stage.kind == "serve" and self._services is not None:
            self._services.begin(stage.name)
            return
        gang = self._new_gang(stage, left.merging, left.open, left.restarts_left)
        run = StageRun(stage, left.attempt, gang, left.round, left.merging)
        if not left.decided:
            self._form(run)
            return
        self._running[stage.name] = run  # its gang had ended; only the event is missing
        self._gang_over(run, g.GangEnded(left.decided, left.cause))

    def _form(self, run: StageRun) -> None:
        self._running[run.stage.name] = run
        self._rounds[run.stage.name] = run.round, run.merging
        connected = self._connected_agents(run)
        actions = run.gang.begin(self._clock())
        self._carry_out(run, [a for a in actions if not (isinstance(a, g.Launch) and a.seat in connected)])
        for seat, state in connected.items():
            self._gang(run, codec.heartbeat(seat, {**state, "running": False}))

    def _connected_agents(self, run: StageRun) -> Dict[Seat, m.AgentState]:
        """Agents of the previous attempt that are still connected, and their last state; nothing runs below them."""
        states = {seat: self._links.state(seat) for seat in run.gang.members}
        return {
            seat: state
            for seat, state in states.items()
            if state is not None and self._launcher.is_current(seat, state["agent"])
        }

    def _new_gang(self, stage: Stage, merging: bool, recover: bool = False, budget: Optional[int] = None) -> Gang:
        rules = rules_of(stage, merging, self._pods)
        return Gang(rules, self._generations.get(stage.name, 0), self._clock(), recover, budget)

    # Actions of the gang.

    def _gang(self, run: StageRun, event: g.GangEvent) -> None:
        self._carry_out(run, run.gang.handle(event, self._clock()))

    def _carry_out(self, run: StageRun, actions: Sequence[g.Action]) -> None:
        for action in actions:
            self._do(run, action)

    def _do(self, run: StageRun, action: g.Action) -> None:
        if isinstance(action, (g.Launch, g.Start, g.Kill, g.DumpStacks, g.Fence)):
            debug_log.info("%s to %s", type(action).__name__, action.seat.name)
        if isinstance(action, g.Launch):
            self._launcher.launch(action.seat, action.keep.ports if action.keep else ())
        elif isinstance(action, g.Start):
            self._links.send(action.seat, self._start_message(run, action))
        elif isinstance(action, (g.Kill, g.DumpStacks)):
            self._links.send(action.seat, codec.order(action))
        elif isinstance(action, g.Fence):
            self._launcher.fence(action.seat)
        elif isinstance(action, g.RecordEvent):
            self._record(run, action)
        elif isinstance(action, g.GangEnded):
            self._gang_over(run, action)

    def _record(self, run: StageRun, record: g.RecordEvent) -> None:
        name = run.stage.name
        keys = dict(record.keys)
        if record.ev == "gen.started":
            self._generations[name] = keys["gen"]
            self._starts.clear()
            run.first_failure = ""
            shared = not self._checkpoints[name].per_rank
            step = self._resume_point(run, Seat(name, "", 0), (keys["gen"], 0))[1] if shared else None
            keys.update(attempt=run.attempt, resume_step=step)
            run.stacks.clear()
            keys.update(round=run.round if run.stage.rounds > 1 else None, merging=run.merging or None)
        if record.ev == "gen.ended":
            self._rank_journal.end_observed(run, keys["gen"], keys["state"])
            owners = (seat.rank_name for seat in run.gang.members)
            self._checkpoints[name].tidy(keys["gen"], owners)
        cause = keys.get("cause")
        if isinstance(cause, Cause):
            keys["cause"] = self._rank_journal.explained(run, cause)
        self.journal.write(record.ev, stage=name, **keys)

    def _start_message(self, run: StageRun, action: g.Start) -> bytes:
        resume, _ = self._resume_point(run, action.seat, action.incarnation)
        key = (run.stage.name, action.incarnation, resume)
        if key not in self._starts:
            merge_role, launcher = MERGE_ROLE if run.merging else "", bool(SHAPES[run.stage.shape].launcher)
            arguments = (run.attempt, run.round, resume, merge_role, launcher, self._pods)
            self._starts[key] = codec.start(action, *arguments)
        return self._starts[key]

    def _resume_point(self, run: StageRun, seat: Seat, incarnation: g.Incarnation) -> Tuple[str, Optional[int]]:
        """Directory and step of the checkpoint to resume from; ("", None): from the beginning. Journals what it finds
        damaged."""
        checkpoints = self._checkpoints[run.stage.name]
        path, step = checkpoints.resume(seat.role, seat.rank, run.round, incarnation)
        damaged, checkpoints.damaged = checkpoints.damaged, []
        for file in damaged:
            owner = checkpoints.owner(seat.role, seat.rank)
            self._rank_journal.damaged_checkpoint(run, file, incarnation[0], owner, step if path else None)
        return path, step if path else None

    def _gang_over(self, run: StageRun, over: g.GangEnded) -> None:
        del self._running[run.stage.name]
        if over.state == "succeeded":
            self._checkpoints[run.stage.name].sweep(run.gang.generation + 1)
        self._next_step(run, over)
        following = self._running.get(run.stage.name)
        for seat in run.gang.members:
            if following is None or seat not in following.gang.members:
                self._links.dismiss(seat, codec.BYE)
                self._launcher.release(seat)

    def _next_step(self, run: StageRun, over: g.GangEnded) -> None:
        """Start the next round or the merge, or ask the pipeline, which may start another attempt."""
        if over.state == "succeeded" and run.stage.merge and self._finished is None:
            if not run.merging:
                self._form(StageRun(run.stage, run.attempt, self._new_gang(run.stage, True), run.round, True))
                return
            if run.round < run.stage.rounds:
                self._form(StageRun(run.stage, run.attempt, self._new_gang(run.stage, False), run.round + 1))
                return
        cause = self._rank_journal.explained(run, over.cause) if over.cause is not None else None
        self._follow(self._pipeline.stage_over(run.stage.name, over.state, cause))

    # Messages of agents.

    def _read(self, link: AgentLink) -> None:
        for message in self._links.read(link):
            if link.seat is not None:  # else the message before this one dismissed it
                if message["is"] != "alive":
                    debug_log.debug("%s sent %s", link.seat.name, message["is"])
                self._handle(link.seat, message)

    def _handle(self, seat: Seat, message: Any) -> None:
        run = self._running.get(seat.stage)
        if run is None or seat not in run.gang.members:
            self._links.send(seat, codec.BYE)
            return
        if self._dedup.again(seat.stage, message):
            return
        kind = message["is"]
        if kind in ("join", "alive"):
            self._heartbeat(run, seat, message)
        elif kind == "exited":
            self._gang(run, codec.exited(seat, codec.incarnation_of(message["incarnation"]), message))
        elif kind == "started":
            self._rank_journal.started(run, message)
        elif kind == "report":
            self._reported(run, seat, message)
        elif kind == "checkpoint":
            self._checkpointed(run, message)
        elif kind == "stacks":
            self._rank_journal.stacks(run, message)
        elif kind == "observed_start":
            run.observed.add(message["rank"])
            self._rank_journal.started(run, message)
        elif kind == "observed_end":
            self._rank_journal.observed_end(run, message, self._stopping)

    def _heartbeat(self, run: StageRun, seat: Seat, message: m.AgentState) -> None:
        if not self._launcher.is_current(seat, message["agent"]):
            self._links.dismiss(seat, codec.BYE)
            return
        if message.get("owes"):
            return  # its kept messages come first, then this state again as a heartbeat
        if message.get("left"):
            self._links.send(seat, codec.answer(message))
            if message["agent"] not in self._agents_left:
                self._agents_left.add(message["agent"])
                self._links.remember(seat, None)
                self._gang(run, codec.left(seat, time.time()))
            return
        self._links.remember(seat, message)
        self._gang(run, codec.heartbeat(seat, message))
        if message.get("notice"):
            self._gang(run, g.PreemptionNotice(seat))
        if run.gang.renews(seat):
            self._links.send(seat, codec.answer(message))

    def _checkpointed(self, run: StageRun, message: m.CheckpointPart) -> None:
        """A part of a checkpoint was written, or could not be."""
        role, rank, record = message["role"], message["rank"], message["record"]
        generation = message["incarnation"][0]
        if generation != run.gang.generation:
            return
        checkpoint, problem = None, record.get("error")
        try:
            if not problem:
                checkpoint = self._checkpoints[run.stage.name].part(role, rank, generation, run.round, record)
        except OSError as error:
            problem = error.strerror
        if problem:
            self._rank_journal.no_checkpoint(run, f"{role}-{rank}", record["step"], problem)
        if checkpoint is None:
            return
        self._rank_journal.checkpoint(run, checkpoint, record.get("seconds"))
        self._gang(run, g.CheckpointComplete())

    def _reported(self, run: StageRun, seat: Seat, message: m.RankReport) -> None:
        rank, points = message["rank"], message["points"]
        self._rank_journal.report(run, message)
        step = max((int(point.get("step", -1)) for point in points), default=-1)
        self._update_metrics(run.stage.name, self._metrics.take(Seat(run.stage.name, message["role"], rank), points))
        if run.stage.kind == "serve" and any("ready" in point for point in points):
            run.ready.add(rank)
        self._gang(run, g.Progress(seat, message["incarnation"][0], step))
        if run.stage.kind == "serve" and len(run.ready) == run.stage.ranks:
            self._follow(self._pipeline.stage_ready(run.stage.name))

    def _update_metrics(self, stage: str, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._pipeline.metric(stage, name, value)

    def _gone(self, gone: Union[AgentGone, Unrecoverable]) -> None:
        for message in self._links.drain(gone.seat):
            self._handle(gone.seat, message)
        run = self._running.get(gone.seat.stage)
        if run is not None and gone.seat in run.gang.members:
            lost = isinstance(gone, AgentGone)
            self._gang(run, g.AgentLost(gone.seat, gone.cause, time.time()) if lost else g.Fault(gone.cause))

    def _conclude(self, finished: Optional[p.Finished]) -> int:
        if finished is None:
            finished = p.Finished("failed", FAILED, Cause(CauseKind.INTERNAL, "the driver ended before its stages did"))

        self.state = finished.state
        try:
            self.journal.write("run.ended", state=finished.state, code=finished.code, cause=finished.cause)
        except JournalFull:
            pass
        return finished.code
