"""The driver's loop: it feeds two pure machines (pipeline, gang) and carries out what they say.

It alone writes the journal. It starts no process itself: a Launcher, which the engine hands in,
brings an agent to a seat and says when one is gone for good. One thread, one selector: agents'
connections, the launcher, signals, and the machines' own deadlines.

SIGINT, SIGTERM and SIGHUP ask the run to stop, with the grace period; a second SIGINT, or SIGQUIT,
ends it at once.
"""

from __future__ import annotations

import selectors
import signal
import socket
import time
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple, Union

from longboat.runtime import pipeline as p
from longboat.runtime import run_layout
from longboat.runtime.agent import syscalls
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.driver import codec
from longboat.runtime.driver.agent_links import AgentLink, AgentLinks, Seat
from longboat.runtime.driver.checkpoints import Checkpoints
from longboat.runtime.driver.dedup import Deduplicator
from longboat.runtime.driver.history import RunHistory, UnfinishedStage
from longboat.runtime.driver.launcher import AgentGone, Launcher, StageNote, Unrecoverable
from longboat.runtime.driver.rank_journal import RankJournal
from longboat.runtime.driver.services import Services, ServiceStages
from longboat.runtime.driver.stage_run import StageRun, rules_of
from longboat.runtime.driver.stop_signals import StopSignals, who
from longboat.runtime.errors import FAILED
from longboat.runtime.gang import gang_events as g
from longboat.runtime.gang.machine import Gang
from longboat.runtime.journal import JournalFull, JournalWriter
from longboat.runtime.plan import Plan, Stage
from longboat.runtime.shapes import MERGE_ROLE, SHAPES


class Driver:
    def __init__(
        self,
        plan: Plan,
        run_id: str,
        run_dir: str,
        journal: JournalWriter,
        token: bytes,
        before: RunHistory,
        recover: bool = False,
        left_out: Sequence[str] = (),
        keep: bool = False,
        pods: bool = False,
        services: Optional[Services] = None,
        signals: Optional[StopSignals] = None,
        stop_asked: bool = False,
    ) -> None:
        """recover: the agents of an earlier driver may still be there; take over from it.
        left_out: stages that are not to run. keep: servers go on when all else is done.
        pods: agents are in pods and outlive this driver: SIGTERM ends it alone, for another one will take over; they
        come when there is room for them; and the ranks that a launcher starts have agents too.
        services: who keeps stages up that serve; without, they are gangs.
        signals: if they were caught before. stop_asked: of a driver before, which did not live to see the end.

        Signals that ask for an end are the driver's from here on, so it is made before anybody hears of the run."""
        self._pods = pods
        self.plan = plan
        self.run_id = run_id
        self.run_dir = run_dir
        self.journal = journal
        self._token = token
        taken = before if recover else RunHistory()
        self._unfinished = taken.unfinished
        self._pipeline = p.Pipeline(
            plan,
            passed=frozenset(before.passed),
            attempts=before.attempts,
            retries=taken.retries,
            running=frozenset(self._unfinished),
            refused=frozenset(name for name, left in self._unfinished.items() if left.refused),
            left_out=frozenset(left_out),
            keep=keep,
            kept=taken.serving,
            end=taken.end,
        )
        self._attendant = None if services is None else ServiceStages(services, self._pipeline, journal)
        self._metrics = before.metrics
        for name, values in before.metrics.values.items():
            self._tell_metrics(name, values)
        self._doubles = Deduplicator(before.words)
        self._inherited = before.generations
        self._generations = dict(before.generations)
        self._rounds = dict(before.rounds)
        """Where each stage stands: another attempt goes on there, unless the last one succeeded."""
        self._running: Dict[str, StageRun] = {}
        self._finished: Optional[p.Finished] = None
        self.state = ""
        """How the run ended, once it has."""
        self._selector = selectors.DefaultSelector()
        self._signals = signals or StopSignals(leave_on_term=pods)
        self._selector.register(self._signals.fileno(), selectors.EVENT_READ, self._signals)
        self._links: AgentLinks
        self._launcher: Launcher
        self._stopping = stop_asked
        self._interrupts = 0
        self._starts: Dict[Tuple[str, g.Incarnation, str], bytes] = {}
        self._checkpoints: Dict[str, Checkpoints] = {}
        self._scribe = RankJournal(journal, run_dir)
        self._next_look = 0.0

    def run(self, listener: socket.socket, launcher: Launcher, begun: Optional[Callable[[], None]] = None) -> int:
        """Runs the plan to its end; the exit code. `begun` is called once the first agents are under way."""
        self._launcher = launcher
        self._links = AgentLinks(listener, self._token, self._selector)
        self._selector.register(launcher.fileno(), selectors.EVENT_READ, launcher)
        if self._attendant is not None:
            self._selector.register(self._attendant.services.fileno(), selectors.EVENT_READ, self._attendant)
        try:
            try:
                for name, left in self._unfinished.items():
                    self._take_over(self.plan.stage(name), left)
                if self._stopping:
                    self.stop(who(signal.SIGINT, self.run_dir), now=False)
                self._follow(self._pipeline.begin())
                if begun is not None:
                    begun()
                while self._finished is None:
                    self._turn()
            except JournalFull:
                self._finished = p.Finished("failed", FAILED, self._disk_full())
            finally:
                self._launcher.close()
                self._links.close()
                if self._attendant is not None:
                    self._attendant.services.close()
            return self._conclude(self._finished)
        finally:
            self._signals.close()

    # One turn of the loop.

    def _turn(self) -> None:
        for key, events in self._selector.select(self._patience()):
            if key.data is self._links:
                self._links.accept()
            elif key.data is self._launcher:
                self._launched()
            elif isinstance(key.data, ServiceStages):
                self._follow(key.data.hear())
            elif key.data is self._signals:
                self._signalled()
            else:
                if events & selectors.EVENT_WRITE:
                    self._links.flush(key.data)
                if events & selectors.EVENT_READ:
                    self._hear(key.data)
        now = time.monotonic()
        for run in list(self._running.values()):
            due = run.gang.deadline()
            if due is not None and now >= due:
                self._gang(run, g.Tick())
        if now >= self._next_look:
            self._next_look = now + 1.0
            self._look_around()

    def _launched(self) -> None:
        for news in self._launcher.poll():
            if isinstance(news, StageNote):
                self.journal.write("note", stage=news.stage, level="warning", text=news.text)
            else:
                self._gone(news)

    def _patience(self) -> float:
        now = time.monotonic()
        dues = [due for due in (run.gang.deadline() for run in self._running.values()) if due is not None]
        return max(0.0, min([*dues, self._next_look]) - now)

    def _look_around(self) -> None:
        self._links.sweep()
        for run in self._running.values():
            if run.swept < run.gang.generation:
                run.swept = run.gang.generation
                self._checkpoints_of(run.stage).sweep(run.swept)
        free = run_layout.free_bytes(self.run_dir)
        if self.journal.full or free is not None and free < run_layout.LEAST_FREE:
            for run in list(self._running.values()):
                self._gang(run, g.Fault(self._disk_full()))

    def _disk_full(self) -> Cause:
        free = run_layout.free_bytes(self.run_dir)
        facts = () if free is None else (f"{syscalls.size(free)} are free where the run is kept",)
        return Cause(CauseKind.DISK_FULL, f"the disk of {self.run_dir} is full", evidence=facts)

    # Signals.

    def _signalled(self) -> None:
        """Ctrl-C twice means at once, as whoever presses it sees what it does; a stop that somebody else repeats does
        not, lest a script takes the time away that ranks need to save."""
        for number in self._signals.received():
            self._stopping = True
            self._interrupts += number == signal.SIGINT and not self._pods
            self.stop(who(number, self.run_dir), now=self._interrupts > 1 or number == signal.SIGQUIT)

    def stop(self, by: str, now: bool) -> None:
        cause = Cause(CauseKind.STOPPED, f"stopped by {by}")
        self.journal.write("stopping", by=by, now=now)
        steps = self._pipeline.stop(cause)
        for run in list(self._running.values()):
            run.halted = True
            self._gang(run, g.StopRequest(cause, now))
        self._follow(steps)

    # The pipeline's wishes.

    def _follow(self, steps: Sequence[p.Step]) -> None:
        for step in steps:
            if isinstance(step, p.BeginStage):
                self._begin(step.stage, step.attempt)
            elif isinstance(step, p.HaltStage):
                self._halt(step)
            elif isinstance(step, p.GateVerdict):
                self._scribe.verdict(step)
            elif isinstance(step, p.StageEnded):
                if step.state == "succeeded":
                    self._rounds.pop(step.stage, None)
                self.journal.write(
                    "stage.ended", stage=step.stage, state=step.state, attempts=step.attempts, cause=step.cause
                )
            elif isinstance(step, p.StageReady):
                self.journal.write("stage.ready", stage=step.stage, **self._scribe.serving(step.stage))
            elif isinstance(step, p.Serving):
                self.journal.write("run.serving")
                if self._attendant is not None:
                    self._attendant.services.settled()
            elif isinstance(step, p.Finished):
                self._finished = step

    def _halt(self, step: p.HaltStage) -> None:
        if self._attendant is not None and self._attendant.halt(step.stage):
            return
        run = self._running.get(step.stage)
        if run is not None and not run.halted:
            run.halted = True
            why = "a gate refused what it serves" if step.again else "another stage failed"
            self._gang(
                run, g.StopRequest(Cause(CauseKind.STOPPED, f"stopped because {'all is done' if step.done else why}"))
            )

    def _begin(self, name: str, attempt: int) -> None:
        stage = self.plan.stage(name)
        self.journal.write("stage.started", stage=name, attempt=attempt)
        if stage.kind == "serve" and self._attendant is not None:
            self._attendant.begin(name)
            return
        round_, merging = self._rounds.get(name, (1, False))
        self._form(StageRun(stage, attempt, self._new_gang(stage, merging), round_, merging))

    def _take_over(self, stage: Stage, left: UnfinishedStage) -> None:
        if stage.kind == "serve" and self._attendant is not None:
            self._attendant.begin(stage.name)
            return
        gang = self._new_gang(stage, left.merging, left.open, left.restarts_left)
        run = StageRun(stage, left.attempt, gang, left.round, left.merging)
        if not left.decided:
            self._form(run)
            return
        self._running[stage.name] = run  # its gang was done with; only to say so was left
        self._gang_over(run, g.GangEnded(left.decided, left.cause))

    def _form(self, run: StageRun) -> None:
        self._running[run.stage.name] = run
        self._rounds[run.stage.name] = run.round, run.merging
        here = self._still_here(run)
        actions = run.gang.begin(time.monotonic())
        self._carry_out(run, [each for each in actions if not (isinstance(each, g.Launch) and each.seat in here)])
        for seat, told in here.items():
            self._gang(run, codec.seen(seat, {**told, "running": False}))

    def _still_here(self, run: StageRun) -> Dict[g.Seat, Mapping[str, Any]]:
        """Agents of the attempt before that were not sent away, and what they said; nothing runs below them."""
        said = {seat: self._links.told((run.stage.name, *seat)) for seat in run.gang.members}
        return {
            seat: told
            for seat, told in said.items()
            if told is not None and self._launcher.is_current((run.stage.name, *seat), told["agent"])
        }

    def _new_gang(self, stage: Stage, merging: bool, recover: bool = False, budget: Optional[int] = None) -> Gang:
        rules = rules_of(stage, merging, self._pods)
        return Gang(rules, self._generations.get(stage.name, 0), time.monotonic(), recover, budget)

    # The gang's wishes.

    def _gang(self, run: StageRun, event: g.GangEvent) -> None:
        self._carry_out(run, run.gang.handle(event, time.monotonic()))

    def _carry_out(self, run: StageRun, actions: Sequence[g.Action]) -> None:
        for action in actions:
            self._do(run, action)

    def _do(self, run: StageRun, action: g.Action) -> None:
        name = run.stage.name
        if isinstance(action, g.Launch):
            self._launcher.launch((name, *action.seat), action.keep.ports if action.keep else ())
        elif isinstance(action, g.Start):
            self._links.send((name, *action.seat), self._start_message(run, action))
        elif isinstance(action, (g.Kill, g.DumpStacks)):
            self._links.send((name, *action.seat), codec.order(action))
        elif isinstance(action, g.Fence):
            self._launcher.fence((name, *action.seat))
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
            run.first_fall = ""
            resume, step = self._checkpoints_of(run.stage).resume("", 0, run.round)
            keys.update(attempt=run.attempt, resume_step=step if resume else None)
            run.stacks.clear()
            keys.update(round=run.round if run.stage.rounds > 1 else None, merging=run.merging or None)
        if record.ev == "gen.ended":
            self._scribe.end_observed(run, keys["gen"], keys["state"])
            owners = (f"{role}-{rank}" for role, rank in run.gang.members)
            self._checkpoints_of(run.stage).tidy(keys["gen"], owners)
        cause = keys.get("cause")
        if isinstance(cause, Cause):
            keys["cause"] = self._scribe.explained(run, cause)
        self.journal.write(record.ev, stage=name, **keys)

    def _start_message(self, run: StageRun, action: g.Start) -> bytes:
        resume, _ = self._checkpoints_of(run.stage).resume(*action.seat, run.round)
        key = (run.stage.name, action.incarnation, resume)
        if key not in self._starts:
            merge_role, launcher = MERGE_ROLE if run.merging else "", bool(SHAPES[run.stage.shape].launcher)
            told = (run.attempt, run.round, resume, merge_role, launcher, self._pods)
            self._starts[key] = codec.start(action, *told)
        return self._starts[key]

    def _checkpoints_of(self, stage: Stage) -> Checkpoints:
        if stage.name not in self._checkpoints:
            inherited = self._inherited.get(stage.name, 0)
            self._checkpoints[stage.name] = Checkpoints(self.run_dir, stage, inherited)
        return self._checkpoints[stage.name]

    def _gang_over(self, run: StageRun, over: g.GangEnded) -> None:
        del self._running[run.stage.name]
        self._go_on(run, over)
        following = self._running.get(run.stage.name)
        for seat in run.gang.members:
            if following is None or seat not in following.gang.members:
                self._links.dismiss((run.stage.name, *seat), codec.BYE)
                self._launcher.release((run.stage.name, *seat))

    def _go_on(self, run: StageRun, over: g.GangEnded) -> None:
        """With the next round, or as the pipeline says: with another attempt, perhaps."""
        if over.state == "succeeded" and run.stage.merge and self._finished is None:
            if not run.merging:
                self._form(StageRun(run.stage, run.attempt, self._new_gang(run.stage, True), run.round, True))
                return
            if run.round < run.stage.rounds:
                self._form(StageRun(run.stage, run.attempt, self._new_gang(run.stage, False), run.round + 1))
                return
        cause = self._scribe.explained(run, over.cause) if over.cause is not None else None
        self._follow(self._pipeline.stage_over(run.stage.name, over.state, cause))

    # What agents say.

    def _hear(self, link: AgentLink) -> None:
        for message in self._links.read(link):
            if link.seat is not None:  # else it was dismissed by what it said before this
                self._heard(link.seat, message)

    def _heard(self, seat: Seat, message: Mapping[str, Any]) -> None:
        stage, role, rank = seat
        run = self._running.get(stage)
        if run is None or (role, rank) not in run.gang.members:
            self._links.send(seat, codec.BYE)
            return
        if self._doubles.again(stage, message):
            return
        kind = message["is"]
        if kind in ("join", "alive"):
            self._seen(run, seat, message)
        elif kind in ("exited", "notice", "left"):
            if kind == "left":
                self._links.remember(seat, None)
            self._gang(run, codec.event(kind, (role, rank), message, time.time()))
        elif kind == "started":
            self._scribe.started(run, role, rank, message)
        elif kind == "report":
            self._reported(run, (role, rank), message)
        elif kind == "checkpoint":
            self._checkpointed(run, message)
        elif kind == "stacks":
            self._scribe.stacks(run, message["role"], message["rank"], message)
        elif kind == "observed_start":
            run.observed.add(message["rank"])
            self._scribe.started(run, message["role"], message["rank"], message)
        elif kind == "observed_end":
            self._scribe.observed_end(run, message, self._stopping)

    def _seen(self, run: StageRun, seat: Seat, message: Mapping[str, Any]) -> None:
        if not self._launcher.is_current(seat, message["agent"]):
            self._links.dismiss(seat, codec.BYE)
            return
        if message.get("owes"):
            return  # what it has to say comes first, and then all this again as a heartbeat
        self._links.remember(seat, dict(message))
        self._gang(run, codec.seen(seat[1:], message))
        if run.gang.renews(seat[1:]):
            self._links.send(seat, codec.answer(message))

    def _checkpointed(self, run: StageRun, message: Mapping[str, Any]) -> None:
        """A part of a checkpoint is on disk, or could not be written."""
        role, rank, record = message["role"], message["rank"], message["record"]
        generation = message["incarnation"][0]
        if generation != run.gang.generation:
            return
        found, problem = None, record.get("error")
        try:
            if not problem:
                found = self._checkpoints_of(run.stage).part(role, rank, generation, run.round, record)
        except OSError as error:
            problem = error.strerror
        if problem:
            self._scribe.no_checkpoint(run, f"{role}-{rank}", record["step"], problem)
        if found is None:
            return
        self._scribe.checkpoint(run, found, record.get("seconds"))
        self._gang(run, g.CheckpointComplete())

    def _reported(self, run: StageRun, seat: g.Seat, message: Mapping[str, Any]) -> None:
        role, rank, points = message["role"], message["rank"], message["points"]
        self._scribe.report(run, message)
        step = max((int(point.get("step", -1)) for point in points), default=-1)
        self._tell_metrics(run.stage.name, self._metrics.take(run.stage.name, (role, rank), points))
        if run.stage.kind == "serve" and any("ready" in point for point in points):
            run.ready.add(rank)
        self._gang(run, g.Progress(seat, message["incarnation"][0], step))
        if run.stage.kind == "serve" and len(run.ready) == run.stage.ranks:
            self._follow(self._pipeline.stage_ready(run.stage.name))

    def _tell_metrics(self, stage: str, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._pipeline.metric(stage, name, value)

    def _gone(self, gone: Union[AgentGone, Unrecoverable]) -> None:
        stage, role, rank = gone.seat
        for message in self._links.drain(gone.seat):
            self._heard(gone.seat, message)
        run = self._running.get(stage)
        if run is not None and (role, rank) in run.gang.members:
            lost = isinstance(gone, AgentGone)
            self._gang(run, g.AgentLost((role, rank), gone.cause, time.time()) if lost else g.Fault(gone.cause))

    def _conclude(self, finished: Optional[p.Finished]) -> int:
        finished = finished or p.Finished("failed", FAILED, Cause(CauseKind.INTERNAL, "the driver ended too early"))
        self.state = finished.state
        try:
            self.journal.write("run.ended", state=finished.state, code=finished.code, cause=finished.cause)
        except JournalFull:
            pass
        return finished.code
