"""The agent's loop: obeys the driver, and runs and watches the user's process.

The agent joins for its seat, starts what the driver orders, follows its progress and reports how it
ended. Each heartbeat carries its full state, so no single message matters. One thread, one select: the
session with the driver, and the wakeup pipe. It never decides about the gang. SIGTERM to the agent means
that its machine is going away: it notifies the driver. The loop reads the rank's files and may block on
a network disk; a guard thread then still ends the process when the lease runs out.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Tuple, Union

from longboat.runtime import debug_log, run_layout, wire
from longboat.runtime import messages as m
from longboat.runtime.agent import exit_causes, stack_dump, syscalls
from longboat.runtime.agent.agent_config import AgentConfig, places_of, storage_of
from longboat.runtime.agent.driver_session import DriverSession
from longboat.runtime.agent.held_ports import HeldPorts
from longboat.runtime.agent.protocol import AgentOrder, AgentProtocol
from longboat.runtime.agent.rank_output import RankOutput
from longboat.runtime.agent.rank_process import CannotStart, ProgramNotFound, RankProcess
from longboat.runtime.agent.stack_request import StackRequest
from longboat.runtime.agent.staging import Staging
from longboat.runtime.agent.wakeup import Wakeup
from longboat.runtime.buckets.bucket_mounts import bucket_mounts, wrapped
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.journal import cause_of, plain
from longboat.runtime.light_dataclasses import replace
from longboat.runtime.rank_env import Address, World, environment
from longboat.runtime.shapes import SHAPES

if TYPE_CHECKING:
    from longboat.runtime.agent.mpi import MpiWorkers

POLL = (0.02, 0.25)
"""Seconds between two looks at a running process's files: at first, and once it is quiet."""
MPIRUN_PATIENCE = 2.0
"""Seconds for mpirun to exit by itself after a worker failed. It never does if the worker fails before it has
connected to the others."""
ACKNOWLEDGED = 20.0
"""Seconds that an agent that leaves waits for a driver to hear what it has to say."""
LATE = 2.0
"""Seconds after the lease when the guard thread kills what still runs: the loop is quicker, unless it hangs."""


def run(config: AgentConfig) -> int:
    """Serve the seat until the driver says goodbye, or is gone for longer than the lease."""
    path = run_layout.agent_log(config.run_dir, config.seat.stage, config.seat.role, config.seat.rank)
    try:
        debug_log.begin(debug_log.level_of(config.base), f"agent {config.seat.name}", path)
        return Agent(config).serve()
    except (OSError, wire.WireError) as error:
        debug_log.warning("the agent stops: %s", error)
        return 1  # the driver is gone; the agent's processes die with it
    except Exception:
        _log_bug(config)
        return 1


class Agent:
    """The agent of one seat: its session with the driver and its rank's process."""

    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        self.stage = config.plan.stage(config.seat.stage)
        self.process: Optional[RankProcess] = None
        self.termination_message = ""
        """Why the last process failed, for the container's termination message."""
        self._ports = HeldPorts(3, config.ports)
        name = f"{config.agent}.{wire.nonce()}" if config.agent else wire.nonce()
        self.protocol = AgentProtocol(name, [config.host, self._ports.numbers], config.lease, time.monotonic())
        self._session = DriverSession(config)
        self._wakeup = Wakeup()
        self._staging = Staging(config, self._wakeup.ring)
        self._stack_request: Optional[StackRequest] = None
        """Stacks that the driver requested and that are not sent yet."""
        self._cut_off = False
        """The lease ran out, and the process was killed for that."""
        self._leaving = False
        """This agent's machine is going away."""
        self._left_since = 0.0
        """Since when nothing is left to do but to tell the driver."""
        self._dying: Dict[int, float] = {}
        """Processes that an uncaught exception is ending, and when each is killed."""
        self._ended_at = 0.0
        """When mpirun ended, while the workers' agents get time to report first."""
        self._followers: List[Tuple[str, int, RankOutput]] = []
        self._mpi: Optional[MpiWorkers] = None
        self._log = run_layout.log(config.run_dir, config.seat.stage, config.seat.role, config.seat.rank)
        self._poll = POLL[0]
        self._oom = 0
        self._heartbeat = 0.0

    def serve(self) -> int:
        wakeup, session = self._wakeup, self._session
        syscalls.adopt_orphans()
        if self.config.lease:
            threading.Thread(target=self._guard, daemon=True).start()
        try:
            going = self._obey(session.make(self._state()))
            while going:
                wait = min(self._poll, self.protocol.heartbeat) if self.process else self.protocol.heartbeat
                sources: List[Union[Wakeup, DriverSession]] = [wakeup] if session.lost else [wakeup, session]
                ready, _, _ = select.select(sources, [], [], wait)
                if wakeup in ready and signal.SIGTERM in wakeup.signals():
                    debug_log.info("received SIGTERM: this machine is going away")
                    self._leaving = self.config.leaves
                    self.protocol.warned()
                    self._beat()
                if session in ready:
                    going = self._obey(session.receive())
                self._collect_staged()
                self._watch()
                if self._has_left():
                    break
                self._stay_alive()
                if session.lost:
                    going = self._obey(session.look(self._state(), brief=self.process is not None)) and going
            return 0
        finally:
            self._clean_up()

    # The driver.

    def _obey(self, messages: List[Any]) -> bool:
        """Carry out the driver's orders; returns whether to continue."""
        for message in messages:
            order = self.protocol.order(message, time.monotonic(), time.time())
            if message["is"] != "alive":
                debug_log.info("received %s for %s: %s", message["is"], message.get("incarnation"), order.value)
            if order is AgentOrder.START:
                self._begin(message)
            elif order is AgentOrder.KILL:
                self._end(float(message["grace"]))
            elif order is AgentOrder.SAY_ENDED and self.protocol.exit is not None:
                self._send("exited", self.protocol.exit)
            elif order is AgentOrder.STACKS:
                self._stack_request = StackRequest(
                    {(role, rank): self._stacks_of(role, rank) for role, rank, _ in self._followers}
                )
            elif order is AgentOrder.BYE:
                return False
        return True

    def _state(self) -> m.AgentState:
        return self.protocol.seen(time.monotonic(), time.time())

    def _send(self, kind: str, message: Mapping[str, object]) -> None:
        self._session.send({"is": kind, "incarnation": list(self.protocol.incarnation), **message})

    def _of(self, role: str, rank: int) -> m.OfRank:
        return m.OfRank(incarnation=list(self.protocol.incarnation), role=role, rank=rank)

    def _stay_alive(self) -> None:
        now = time.monotonic()
        if self.protocol.lapsed(now) and self._occupied:
            debug_log.warning("the lease ran out; ending the process")
            self._cut_off = True
            self._end(0)
        if self._leaving and self._session.lost and self.process is not None:
            self.process.end(self.stage.grace)  # the driver may come back too late to order it
        if now - self._heartbeat >= self.protocol.heartbeat:
            self._beat()
        self._session.doubt(now)

    def _beat(self) -> None:
        if not self._session.lost:
            self._heartbeat = time.monotonic()
            self._send("alive", self._state())

    def _guard(self) -> None:
        while True:
            time.sleep(self.protocol.heartbeat)
            if self.protocol.lapsed(time.monotonic() - LATE):
                self._cut_off = True
                syscalls.signal_all(syscalls.descendants(os.getpid()), signal.SIGKILL)

    def _has_left(self) -> bool:
        """Whether the agent ends now: its machine is going away and nothing runs any more."""
        if not self._leaving or self._occupied:
            return False
        if not self._left_since:
            self._left_since = time.monotonic()
            self.protocol.leave(self._left_since)
            self._beat()
        waited = time.monotonic() - self._left_since
        return self.protocol.left or self._session.lost and (not self._session.owes or waited > ACKNOWLEDGED)

    @property
    def _occupied(self) -> bool:
        """A process runs, or is about to."""
        return self.process is not None or self._staging.awaited is not None

    # The user's process.

    def _begin(self, start: m.StartOrder) -> None:
        """Begin a new incarnation: its process starts now, or once its files are here."""
        generation, restart = start["incarnation"]
        self.protocol.begun((generation, restart))
        self._cut_off = False
        if start["resume_from"]:
            start = {**start, "resume_from": os.path.join(self.config.run_dir, start["resume_from"])}
        if not self._staging.fetch(start):
            self._start(start)

    def _collect_staged(self) -> None:
        checkpoints, start, problem = self._staging.take()
        for checkpoint in checkpoints:
            self._send("checkpoint", checkpoint)
        if problem is not None:
            self._exited(-1, 0, exit_causes.of_writing(problem))
        if start is not None:
            self._start(start)

    def _end(self, grace: float) -> None:
        if self.process is not None:
            self._relay_progress()
            self._check_exceptions(self.process)  # one that came before the order is a failure
            self.process.end(grace)
        elif self._staging.awaited is not None:
            self._staging.forget()
            self._exited(-1, 0, None, asked=True)

    def _start(self, message: m.StartOrder) -> None:
        config = self.config
        generation, restart = message["incarnation"]
        peers = {
            role: tuple(Address(host, _three(ports)) for host, ports in addresses)
            for role, addresses in message["peers"].items()
        }
        world = World(generation, message["attempt"], peers, message["round"], message["resume_from"])
        places = places_of(config, generation)
        env = environment(self.stage, config.seat.role, config.seat.rank, restart, world, places, config.base)
        reports = places.report_file
        self._oom = max(exit_causes.oom_kills(), 0)
        try:
            for file in (reports, places.stacks_file):
                os.makedirs(os.path.dirname(file), exist_ok=True)
            for directory in (places.output, places.checkpoints, *storage_of(config)):
                os.makedirs(directory, exist_ok=True)
            command, self._mpi = self._command(message, world, restart, env)
            start = os.path.getsize(reports) if os.path.exists(reports) else 0
            self.process = RankProcess(command, env, config.plan.code or os.getcwd(), self._log)
        except CannotStart as failure:
            self._exited(-1, 0, exit_causes.of_start(failure, env.get("PATH", "")))
            return
        except ProgramNotFound as missing:
            self._exited(-1, 0, Cause(CauseKind.NOT_FOUND, str(missing), evidence=missing.facts))
            return
        except OSError as error:
            self._exited(-1, 0, exit_causes.of_writing(error))
            return
        offset = self.process.log_offset
        debug_log.info("started incarnation %s as process %d", self.protocol.incarnation, self.process.outside_pid)
        self._followers = [(config.seat.role, config.seat.rank, RankOutput(self._log, offset, reports, start))]
        self._poll = POLL[0]
        own = self._of(config.seat.role, config.seat.rank)
        pid = self.process.outside_pid
        self._send("started", m.RankStart(**own, pid=pid, log_offset=offset, report_offset=start))

    def _command(
        self, message: m.StartOrder, world: World, restart: int, env: Dict[str, str]
    ) -> Tuple[Tuple[str, ...], Optional[MpiWorkers]]:
        if self.config.seat.role == message["merge_role"]:
            command = self.stage.merge
        else:
            command = self.stage.role(self.config.seat.role).command
        if not message["launcher"]:
            return wrapped(self.config.plan, command), None
        from longboat.runtime.agent import mpi

        if message["spread"]:
            command = wrapped(self.config.plan, command)
            return mpi.spread_command(self.config, self.stage, world, restart, command, env), None
        workers = mpi.MpiWorkers(self.config, self.stage, world, restart)
        return wrapped(self.config.plan, workers.command(command, env)), workers

    def _watch(self) -> None:
        process = self.process
        if process is None:
            return
        process.enforce()
        ended = process.ended()
        if self._mpi is not None:
            self._relay_workers(self._mpi)
            if self._mpi.failed:
                process.expire(MPIRUN_PATIENCE)
        busy = self._relay_progress()
        self._check_exceptions(process)
        self._poll = POLL[0] if busy or process.asked else min(self._poll * 1.5, POLL[1])
        if self._stack_request is not None and (ended or self._stack_request.ready()):
            self._send_stacks(self._stack_request)
        behind = any(follower.behind for _, _, follower in self._followers)
        if ended and not behind and self._staging.settled(process.killed) and self._others_heard(process, *ended):
            self._wind_up(process, *ended)

    def _check_exceptions(self, process: RankProcess) -> None:
        """Report an uncaught exception of the rank's program before its process has ended. Exit handlers of any program
        may wait for peers forever, so it is killed after the grace period."""
        now = time.monotonic()
        for role, rank, follower in self._followers:
            for exception in follower.exceptions:
                debug_log.info("%s-%d: process %d raised an uncaught exception", role, rank, exception.pid)
                self._dying[exception.pid] = now + self.stage.grace
                if exception.fails_rank and self.protocol.failing is None and not process.asked:
                    lines = exit_causes.tail(follower.log, follower.log_offset)
                    cause = exit_causes.of_exit(1, 0, lines, self._oom_kills(), False, self.config.run_dir)
                    assert cause is not None
                    self.protocol.failing = _ending(1, 0, replace(cause, role=role, rank=rank), exception.at)
                    self._heartbeat = 0.0
            follower.exceptions.clear()
        due = [pid for pid, at in self._dying.items() if now >= at]
        if due:
            below = set(syscalls.descendants(os.getpid()))
            syscalls.signal_all([pid for pid in due if pid in below], signal.SIGKILL)
            self._dying = {pid: at for pid, at in self._dying.items() if now < at}

    def _others_heard(self, process: RankProcess, code: int, signum: int) -> bool:
        """Whether the workers had time to report: mpirun fails because one of them did, so they come first."""
        alone = self._mpi is not None or self.config.seat.role != SHAPES[self.stage.shape].launcher
        if alone or (code, signum) == (0, 0) or process.asked:
            return True
        self._ended_at = self._ended_at or time.monotonic()
        return time.monotonic() >= self._ended_at + MPIRUN_PATIENCE

    def _wind_up(self, process: RankProcess, code: int, signum: int) -> None:
        """Report what is left to report and why the process ended; nothing of it runs any more."""
        if self._mpi is not None:
            self._relay_workers(self._mpi)
            if code != 0 and not process.asked and not self._mpi.failed_alone:
                for event in self._mpi.unrecorded_ends():
                    self._send(event.kind, {**self._of("worker", event.rank), **event.keys})
            self._relay_progress()
        lines = exit_causes.tail(self._log, process.log_offset)
        buckets = bool(bucket_mounts(self.config.plan))
        cause = exit_causes.of_exit(code, signum, lines, self._oom_kills(), process.asked, self.config.run_dir, buckets)
        if cause is not None and self._mpi is not None:
            cause = self._mpi.first_cause() or cause
        self._exited(code, signum, cause)

    def _oom_kills(self) -> int:
        """Out-of-memory kills in the rank's cgroup since it started; -1 if they are not counted."""
        kills = exit_causes.oom_kills()
        return kills - self._oom if kills >= 0 else -1

    def _relay_progress(self) -> bool:
        sent = False
        for role, rank, follower in self._followers:
            points, checkpoints = follower.news()
            for begin in range(0, len(points), 1000):
                sent = True
                part = points[begin : begin + 1000]
                self._send("report", m.RankReport(**self._of(role, rank), points=part))
            for record in checkpoints:
                sent = True
                debug_log.info("%s-%d wrote a checkpoint of step %s", role, rank, record.get("step"))
                if "path" in record:
                    record = {**record, "path": os.path.relpath(record["path"], self.config.run_dir)}
                checkpoint = m.CheckpointPart(**self._of(role, rank), record=record)
                if not self._staging.carry(checkpoint):
                    self._send("checkpoint", checkpoint)
        return sent

    def _relay_workers(self, workers: MpiWorkers) -> None:
        for event in workers.events():
            if event.follower is not None:
                self._followers.append(("worker", event.rank, event.follower))
            self._send(event.kind, {**self._of("worker", event.rank), **event.keys})

    def _exited(self, code: int, signum: int, cause: Optional[Cause], asked: bool = False) -> None:
        asked = self.process.asked if self.process else asked
        for role, rank, follower in self._followers:
            follower.close()
            stack_dump.tidy(self._stacks_of(role, rank))
        stack_dump.tidy(self._stacks_of(self.config.seat.role, self.config.seat.rank))
        self.process, self._followers, self._mpi, self._ended_at, self._dying = None, [], None, 0.0, {}
        if self._cut_off:
            asked, cause = False, Cause(CauseKind.NODE_LOST, "it lost the driver for longer than its lease")
        if self.protocol.failing is not None:
            cause = cause_of(self.protocol.failing)
        if cause is not None:
            self.termination_message = (
                f"{self.config.seat.name}, generation {self.protocol.incarnation[0]}: {cause.message}"
            )
        kind = "no cause" if cause is None else cause.kind.value
        debug_log.info("incarnation %s ended: code %d, signal %d, %s", self.protocol.incarnation, code, signum, kind)
        ending = self.protocol.ended(_ending(code, signum, cause, time.time(), asked))
        if not self._leaving or code == 0:  # else the agent ends, and must not get a new incarnation
            self._send("exited", ending)

    # Stacks of a hung rank.

    def _send_stacks(self, request: StackRequest) -> None:
        self._stack_request = None
        for (role, rank), text in request.stacks().items():
            states = request.states if (role, rank) == (self.config.seat.role, self.config.seat.rank) else []
            self._send("stacks", m.RankStacks(**self._of(role, rank), states=states, text=text))

    def _stacks_of(self, role: str, rank: int) -> str:
        return run_layout.stacks(self.config.run_dir, self.config.seat.stage, role, rank)

    def _clean_up(self) -> None:
        """Leave no process behind, however the loop ended."""
        self._wakeup.close()
        if self.process is not None:
            self.process.end(0)
            while self.process.ended() is None:
                time.sleep(0.005)


def _ending(code: int, signum: int, cause: Optional[Cause], at: float, asked: bool = False) -> m.RankExit:
    return {"code": code, "signal": signum, "at": at, "asked": asked, "cause": plain(cause)}


def _log_bug(config: AgentConfig) -> None:
    import traceback

    with open(os.path.join(config.run_dir, run_layout.DRIVER_LOG), "a", encoding="utf-8") as file:
        file.write(f"agent of {config.seat.name}:\n{traceback.format_exc()}")


def _three(ports: List[int]) -> Tuple[int, int, int]:
    first, second, third = ports[:3]
    return first, second, third
