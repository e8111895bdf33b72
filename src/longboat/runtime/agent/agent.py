"""The agent's loop: a driver to obey, a user's process, and nothing else.

It joins with the seat's name, starts what it is told to, follows the progress, and says how it
ended; its heartbeat says all it is doing, so that nothing depends on one message. One thread, one
select: the contact with the driver, and the bell. It never decides about the gang. SIGTERM to the
agent means that its machine goes away: the driver is told. The loop reads the rank's files, and a
disk on the network may keep it waiting: a guard beside it sees to the end of the lease then.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple, Union

from longboat.runtime import run_layout, wire
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
from longboat.runtime.buckets.bucket_mounts import wrapped
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.journal import plain
from longboat.runtime.rank_env import Address, World, environment
from longboat.runtime.shapes import SHAPES

if TYPE_CHECKING:
    from longboat.runtime.agent.mpi import MpiWorkers

POLL = (0.02, 0.25)
"""How often a running process's files are looked at: at first, and once it is quiet."""
MPIRUN_PATIENCE = 2.0
"""How long mpirun may take to end by itself after a worker has failed: it never does when one
fails before it has met the others."""
LATE = 2.0
"""Seconds after which the guard ends what runs beyond its lease: the loop is quicker, unless it hangs."""


def run(config: AgentConfig) -> int:
    """Serve the seat until the driver says goodbye, or is gone for longer than the lease."""
    try:
        return Agent(config).serve()
    except (OSError, wire.WireError):
        return 1  # the driver is gone; what was started dies with this process
    except Exception:
        _write_down_bug(config)
        return 1


class Agent:
    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        self.stage = config.plan.stage(config.stage)
        self.process: Optional[RankProcess] = None
        self.last_words = ""
        """Why its last process failed, for the container's termination message."""
        self._ports = HeldPorts(3, config.ports)
        name = f"{config.agent}.{wire.nonce()}" if config.agent else wire.nonce()
        self.duty = AgentProtocol(name, [config.host, self._ports.numbers], config.lease, time.monotonic())
        self._contact = DriverSession(config)
        self._bell = Wakeup()
        self._delivery = Staging(config, self._bell.ring)
        self._inquiry: Optional[StackRequest] = None
        """Stacks that were asked for and not told yet."""
        self._cut_off = False
        """The lease ran out: the process was ended because of that."""
        self._noticed = False
        """This agent's machine goes away."""
        self._ended_at = 0.0
        """When the launcher's process ended, while others are heard first."""
        self._followers: List[Tuple[str, int, RankOutput]] = []
        self._mpi: Optional[MpiWorkers] = None
        self._log = run_layout.log(config.run_dir, config.stage, config.role, config.rank)
        self._poll = POLL[0]
        self._oom = 0
        self._heartbeat = 0.0

    def serve(self) -> int:
        bell, contact = self._bell, self._contact
        syscalls.adopt_orphans()
        if self.config.lease:
            threading.Thread(target=self._guard, daemon=True).start()
        try:
            going = self._obey(contact.make(self._seen()))
            while going:
                wait = min(self._poll, self.duty.heartbeat) if self.process else self.duty.heartbeat
                sources: List[Union[Wakeup, DriverSession]] = [bell] if contact.lost else [bell, contact]
                ready, _, _ = select.select(sources, [], [], wait)
                if bell in ready and signal.SIGTERM in bell.signals():
                    self._noticed = self.config.leaves
                    self._say("notice")
                if contact in ready:
                    going = self._obey(contact.receive())
                self._take_delivery()
                self._watch()
                if self._has_left():
                    break
                self._stay_alive()
                if contact.lost:
                    going = self._obey(contact.look(self._seen(), brief=self.process is not None)) and going
            return 0
        finally:
            self._clean_up()

    # The driver.

    def _obey(self, messages: List[wire.Message]) -> bool:
        """Whether to go on."""
        for message in messages:
            order = self.duty.order(message, time.monotonic(), time.time())
            if order is AgentOrder.START:
                self._begin(message)
            elif order is AgentOrder.KILL:
                self._end(float(message["grace"]))
            elif order is AgentOrder.SAY_ENDED and self.duty.exit is not None:
                self._say("exited", **self.duty.exit)
            elif order is AgentOrder.STACKS:
                self._inquiry = StackRequest(
                    {(role, rank): self._stacks_of(role, rank) for role, rank, _ in self._followers}
                )
            elif order is AgentOrder.BYE:
                return False
        return True

    def _seen(self) -> wire.Message:
        return self.duty.seen(time.monotonic(), time.time())

    def _say(self, kind: str, **keys: Any) -> None:
        self._contact.send({"is": kind, "incarnation": list(self.duty.incarnation), **keys})

    def _stay_alive(self) -> None:
        now = time.monotonic()
        if self.duty.lapsed(now) and self._occupied:
            self._cut_off = True
            self._end(0)
        if now - self._heartbeat >= self.duty.heartbeat and not self._contact.lost:
            self._heartbeat = now
            self._say("alive", **self.duty.seen(now, time.time()))
        self._contact.doubt(now)

    def _guard(self) -> None:
        while True:
            time.sleep(self.duty.heartbeat)
            if self.duty.lapsed(time.monotonic() - LATE):
                self._cut_off = True
                syscalls.signal_all(syscalls.descendants(os.getpid()), signal.SIGKILL)

    def _has_left(self) -> bool:
        """The machine goes away and nothing runs here any more: so does this agent."""
        if not self._noticed or self._occupied:
            return False
        self._say("left")
        return True

    @property
    def _occupied(self) -> bool:
        """A process runs here, or is about to."""
        return self.process is not None or self._delivery.awaited is not None

    # The user's process.

    def _begin(self, start: wire.Message) -> None:
        """A new life: its process starts at once, or when its files are here."""
        generation, restart = start["incarnation"]
        self.duty.begun((generation, restart))
        self._cut_off = False
        if start["resume_from"]:
            start = {**start, "resume_from": os.path.join(self.config.run_dir, start["resume_from"])}
        if not self._delivery.fetch(start):
            self._start(start)

    def _take_delivery(self) -> None:
        checkpoints, start, problem = self._delivery.take()
        for checkpoint in checkpoints:
            self._say("checkpoint", **checkpoint)
        if problem is not None:
            self._exited(-1, 0, exit_causes.of_writing(problem))
        if start is not None:
            self._start(start)

    def _end(self, grace: float) -> None:
        if self.process is not None:
            self.process.end(grace)
        elif self._delivery.awaited is not None:
            self._delivery.forget()
            self._exited(-1, 0, None, asked=True)

    def _start(self, message: wire.Message) -> None:
        config = self.config
        generation, restart = message["incarnation"]
        peers = {
            role: tuple(Address(host, _three(ports)) for host, ports in addresses)
            for role, addresses in message["peers"].items()
        }
        world = World(generation, message["attempt"], peers, message["round"], message["resume_from"])
        places = places_of(config, generation)
        env = environment(self.stage, config.role, config.rank, restart, world, places, config.base)
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
        self._followers = [(config.role, config.rank, RankOutput(self._log, offset, reports, start))]
        self._poll = POLL[0]
        self._say("started", pid=self.process.outside_pid, log_offset=offset, report_offset=start)

    def _command(
        self, message: wire.Message, world: World, restart: int, env: Dict[str, str]
    ) -> Tuple[Tuple[str, ...], Optional[MpiWorkers]]:
        if self.config.role == message["merge_role"]:
            command = self.stage.merge
        else:
            command = self.stage.role(self.config.role).command
        if not message["launcher"]:
            return wrapped(self.config.plan, command), None
        from longboat.runtime.agent import mpi

        if message.get("spread"):
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
        self._poll = POLL[0] if busy or process.asked else min(self._poll * 1.5, POLL[1])
        if self._inquiry is not None and (ended or self._inquiry.ready()):
            self._say_stacks(self._inquiry)
        behind = any(follower.behind for _, _, follower in self._followers)
        if ended and not behind and self._delivery.settled(process.asked) and self._others_heard(process, *ended):
            self._wind_up(process, *ended)

    def _others_heard(self, process: RankProcess, code: int, signum: int) -> bool:
        """mpirun fails because one of its processes has: where those have agents, they are heard first."""
        alone = self._mpi is not None or self.config.role != SHAPES[self.stage.shape].launcher
        if alone or (code, signum) == (0, 0) or process.asked:
            return True
        self._ended_at = self._ended_at or time.monotonic()
        return time.monotonic() >= self._ended_at + MPIRUN_PATIENCE

    def _wind_up(self, process: RankProcess, code: int, signum: int) -> None:
        """Nothing of it runs any more: tells what is left to tell, and why it ended."""
        if self._mpi is not None:
            self._relay_workers(self._mpi)
            if code != 0 and not process.asked and not self._mpi.fallen:
                for event in self._mpi.left_unsaid():
                    self._say(event.kind, role="worker", rank=event.rank, **event.keys)
            self._relay_progress()
        lines = exit_causes.tail(self._log, process.log_offset)
        kills = exit_causes.oom_kills()
        oom = kills - self._oom if kills >= 0 else -1
        cause = exit_causes.of_exit(code, signum, lines, oom, process.asked, self.config.run_dir)
        if cause is not None and self._mpi is not None:
            cause = self._mpi.first_cause() or cause
        self._exited(code, signum, cause)

    def _relay_progress(self) -> bool:
        said = False
        for role, rank, follower in self._followers:
            points, checkpoints = follower.news()
            for begin in range(0, len(points), 1000):
                said = True
                self._say("report", role=role, rank=rank, points=points[begin : begin + 1000])
            for record in checkpoints:
                said = True
                if "path" in record:
                    record = {**record, "path": os.path.relpath(record["path"], self.config.run_dir)}
                told = {"role": role, "rank": rank, "record": record, "incarnation": list(self.duty.incarnation)}
                if not self._delivery.carry(told):
                    self._say("checkpoint", **told)
        return said

    def _relay_workers(self, workers: MpiWorkers) -> None:
        for event in workers.events():
            if event.follower is not None:
                self._followers.append(("worker", event.rank, event.follower))
            self._say(event.kind, role="worker", rank=event.rank, **event.keys)

    def _exited(self, code: int, signum: int, cause: Optional[Cause], asked: bool = False) -> None:
        asked = self.process.asked if self.process else asked
        for role, rank, follower in self._followers:
            follower.close()
            stack_dump.tidy(self._stacks_of(role, rank))
        stack_dump.tidy(self._stacks_of(self.config.role, self.config.rank))
        self.process, self._followers, self._mpi, self._ended_at = None, [], None, 0.0
        if self._cut_off:
            asked, cause = False, Cause(CauseKind.NODE_LOST, "it was cut off from the driver for longer than its lease")
        if cause is not None:
            self.last_words = f"{self.config.name}, generation {self.duty.incarnation[0]}: {cause.message}"
        ending = {"code": code, "signal": signum, "at": time.time(), "asked": asked, "cause": plain(cause)}
        self.duty.ended(ending)
        if not self._noticed or code == 0:  # else it leaves, and a new life must not be given to it
            self._say("exited", **ending)

    # Stacks of a rank that hangs.

    def _say_stacks(self, inquiry: StackRequest) -> None:
        self._inquiry = None
        for (role, rank), text in inquiry.stacks().items():
            states = inquiry.states if (role, rank) == (self.config.role, self.config.rank) else []
            self._say("stacks", role=role, rank=rank, states=states, text=text)

    def _stacks_of(self, role: str, rank: int) -> str:
        return run_layout.stacks(self.config.run_dir, self.config.stage, role, rank)

    def _clean_up(self) -> None:
        """Leave no process, whoever ended this loop."""
        self._bell.close()
        if self.process is not None:
            self.process.end(0)
            while self.process.ended() is None:
                time.sleep(0.005)


def _write_down_bug(config: AgentConfig) -> None:
    import traceback

    with open(os.path.join(config.run_dir, run_layout.DRIVER_LOG), "a", encoding="utf-8") as file:
        file.write(f"agent of {config.name}:\n{traceback.format_exc()}")


def _three(ports: List[int]) -> Tuple[int, int, int]:
    first, second, third = ports[:3]
    return first, second, third
