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
from longboat.runtime.agent.agent_config import Post, places_of, storage_of
from longboat.runtime.agent.driver_session import Contact
from longboat.runtime.agent.held_ports import HeldPorts
from longboat.runtime.agent.protocol import Duty, Order
from longboat.runtime.agent.rank_output import Follower
from longboat.runtime.agent.rank_process import CannotStart, NotFound, Process
from longboat.runtime.agent.stack_request import Inquiry
from longboat.runtime.agent.staging import Delivery
from longboat.runtime.agent.wakeup import Bell
from longboat.runtime.buckets.bucket_mounts import wrapped
from longboat.runtime.causes import Cause, Kind
from longboat.runtime.journal import plain
from longboat.runtime.rank_env import Address, World, environment
from longboat.runtime.shapes import SHAPES

if TYPE_CHECKING:
    from longboat.runtime.agent.mpi import Workers

POLL = (0.02, 0.25)
"""How often a running process's files are looked at: at first, and once it is quiet."""
MPIRUN_PATIENCE = 2.0
"""How long mpirun may take to end by itself after a worker has failed: it never does when one
fails before it has met the others."""
LATE = 2.0
"""Seconds after which the guard ends what runs beyond its lease: the loop is quicker, unless it hangs."""


def run(post: Post) -> int:
    """Serve the seat until the driver says goodbye, or is gone for longer than the lease."""
    try:
        return Agent(post).serve()
    except (OSError, wire.WireError):
        return 1  # the driver is gone; what was started dies with this process
    except Exception:
        _write_down_bug(post)
        return 1


class Agent:
    def __init__(self, post: Post) -> None:
        self.post = post
        self.stage = post.plan.stage(post.stage)
        self.process: Optional[Process] = None
        self.last_words = ""
        """Why its last process failed, for the container's termination message."""
        self._ports = HeldPorts(3, post.ports)
        name = f"{post.agent}.{wire.nonce()}" if post.agent else wire.nonce()
        self.duty = Duty(name, [post.host, self._ports.numbers], post.lease, time.monotonic())
        self._contact = Contact(post)
        self._bell = Bell()
        self._delivery = Delivery(post, self._bell.ring)
        self._inquiry: Optional[Inquiry] = None
        """Stacks that were asked for and not told yet."""
        self._cut_off = False
        """The lease ran out: the process was ended because of that."""
        self._noticed = False
        """This agent's machine goes away."""
        self._ended_at = 0.0
        """When the launcher's process ended, while others are heard first."""
        self._followers: List[Tuple[str, int, Follower]] = []
        self._mpi: Optional[Workers] = None
        self._log = run_layout.log(post.run_dir, post.stage, post.role, post.rank)
        self._poll = POLL[0]
        self._oom = 0
        self._heartbeat = 0.0

    def serve(self) -> int:
        bell, contact = self._bell, self._contact
        syscalls.adopt_orphans()
        if self.post.lease:
            threading.Thread(target=self._guard, daemon=True).start()
        try:
            going = self._obey(contact.make(self._seen()))
            while going:
                wait = min(self._poll, self.duty.heartbeat) if self.process else self.duty.heartbeat
                sources: List[Union[Bell, Contact]] = [bell] if contact.lost else [bell, contact]
                ready, _, _ = select.select(sources, [], [], wait)
                if bell in ready and signal.SIGTERM in bell.signals():
                    self._noticed = self.post.leaves
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
            if order is Order.START:
                self._begin(message)
            elif order is Order.KILL:
                self._end(float(message["grace"]))
            elif order is Order.SAY_ENDED and self.duty.exit is not None:
                self._say("exited", **self.duty.exit)
            elif order is Order.STACKS:
                self._inquiry = Inquiry(
                    {(role, rank): self._stacks_of(role, rank) for role, rank, _ in self._followers}
                )
            elif order is Order.BYE:
                return False
        return True

    def _seen(self) -> wire.Message:
        return self.duty.seen(time.monotonic(), time.time())

    def _say(self, kind: str, **keys: Any) -> None:
        self._contact.send({"is": kind, "life": list(self.duty.life), **keys})

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
        generation, restart = start["life"]
        self.duty.begun((generation, restart))
        self._cut_off = False
        if start["resume_from"]:
            start = {**start, "resume_from": os.path.join(self.post.run_dir, start["resume_from"])}
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
        post = self.post
        generation, restart = message["life"]
        peers = {
            role: tuple(Address(host, _three(ports)) for host, ports in addresses)
            for role, addresses in message["peers"].items()
        }
        world = World(generation, message["attempt"], peers, message["round"], message["resume_from"])
        places = places_of(post, generation)
        env = environment(self.stage, post.role, post.rank, restart, world, places, post.base)
        reports = places.report_file
        self._oom = max(exit_causes.oom_kills(), 0)
        try:
            for file in (reports, places.stacks_file):
                os.makedirs(os.path.dirname(file), exist_ok=True)
            for directory in (places.output, places.checkpoints, *storage_of(post)):
                os.makedirs(directory, exist_ok=True)
            command, self._mpi = self._command(message, world, restart, env)
            start = os.path.getsize(reports) if os.path.exists(reports) else 0
            self.process = Process(command, env, post.plan.code or os.getcwd(), self._log)
        except CannotStart as failure:
            self._exited(-1, 0, exit_causes.of_start(failure, env.get("PATH", "")))
            return
        except NotFound as missing:
            self._exited(-1, 0, Cause(Kind.NOT_FOUND, str(missing), evidence=missing.facts))
            return
        except OSError as error:
            self._exited(-1, 0, exit_causes.of_writing(error))
            return
        offset = self.process.log_offset
        self._followers = [(post.role, post.rank, Follower(self._log, offset, reports, start))]
        self._poll = POLL[0]
        self._say("started", pid=self.process.outside_pid, log_offset=offset, report_offset=start)

    def _command(
        self, message: wire.Message, world: World, restart: int, env: Dict[str, str]
    ) -> Tuple[Tuple[str, ...], Optional[Workers]]:
        if self.post.role == message["merge_role"]:
            command = self.stage.merge
        else:
            command = self.stage.role(self.post.role).command
        if not message["launcher"]:
            return wrapped(self.post.plan, command), None
        from longboat.runtime.agent import mpi

        if message.get("spread"):
            command = wrapped(self.post.plan, command)
            return mpi.spread_command(self.post, self.stage, world, restart, command, env), None
        workers = mpi.Workers(self.post, self.stage, world, restart)
        return wrapped(self.post.plan, workers.command(command, env)), workers

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

    def _others_heard(self, process: Process, code: int, signum: int) -> bool:
        """mpirun fails because one of its processes has: where those have agents, they are heard first."""
        alone = self._mpi is not None or self.post.role != SHAPES[self.stage.shape].launcher
        if alone or (code, signum) == (0, 0) or process.asked:
            return True
        self._ended_at = self._ended_at or time.monotonic()
        return time.monotonic() >= self._ended_at + MPIRUN_PATIENCE

    def _wind_up(self, process: Process, code: int, signum: int) -> None:
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
        cause = exit_causes.of_exit(code, signum, lines, oom, process.asked, self.post.run_dir)
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
                    record = {**record, "path": os.path.relpath(record["path"], self.post.run_dir)}
                told = {"role": role, "rank": rank, "record": record, "life": list(self.duty.life)}
                if not self._delivery.carry(told):
                    self._say("checkpoint", **told)
        return said

    def _relay_workers(self, workers: Workers) -> None:
        for event in workers.events():
            if event.follower is not None:
                self._followers.append(("worker", event.rank, event.follower))
            self._say(event.kind, role="worker", rank=event.rank, **event.keys)

    def _exited(self, code: int, signum: int, cause: Optional[Cause], asked: bool = False) -> None:
        asked = self.process.asked if self.process else asked
        for role, rank, follower in self._followers:
            follower.close()
            stack_dump.tidy(self._stacks_of(role, rank))
        stack_dump.tidy(self._stacks_of(self.post.role, self.post.rank))
        self.process, self._followers, self._mpi, self._ended_at = None, [], None, 0.0
        if self._cut_off:
            asked, cause = False, Cause(Kind.NODE_LOST, "it was cut off from the driver for longer than its lease")
        if cause is not None:
            self.last_words = f"{self.post.name}, generation {self.duty.life[0]}: {cause.message}"
        ending = {"code": code, "signal": signum, "at": time.time(), "asked": asked, "cause": plain(cause)}
        self.duty.ended(ending)
        if not self._noticed or code == 0:  # else it leaves, and a new life must not be given to it
            self._say("exited", **ending)

    # Stacks of a rank that hangs.

    def _say_stacks(self, inquiry: Inquiry) -> None:
        self._inquiry = None
        for (role, rank), text in inquiry.stacks().items():
            states = inquiry.states if (role, rank) == (self.post.role, self.post.rank) else []
            self._say("stacks", role=role, rank=rank, states=states, text=text)

    def _stacks_of(self, role: str, rank: int) -> str:
        return run_layout.stacks(self.post.run_dir, self.post.stage, role, rank)

    def _clean_up(self) -> None:
        """Leave no process, whoever ended this loop."""
        self._bell.close()
        if self.process is not None:
            self.process.end(0)
            while self.process.ended() is None:
                time.sleep(0.005)


def _write_down_bug(post: Post) -> None:
    import traceback

    with open(os.path.join(post.run_dir, run_layout.DRIVER_LOG), "a", encoding="utf-8") as file:
        file.write(f"agent of {post.name}:\n{traceback.format_exc()}")


def _three(ports: List[int]) -> Tuple[int, int, int]:
    first, second, third = ports[:3]
    return first, second, third
