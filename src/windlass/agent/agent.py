"""The agent's loop: a connection to the driver, a user's process, and nothing else.

It joins with the seat's name, starts what it is told to, follows the progress, and says how it
ended; its heartbeat says all it is doing, so that nothing depends on one message. One thread, one
select: the driver's socket, and a pipe that signals write to. It never decides about the gang.
SIGTERM to the agent means that its machine goes away: the driver is told.

Ships into strangers' images: standard library only, Python 3.9.
"""

from __future__ import annotations

import collections
import os
import select
import signal
import time
from typing import Any, Deque, Dict, List, Optional, Tuple

from windlass import layout, wire
from windlass.agent import evidence, mpi, stacks, system
from windlass.agent.courier import Courier
from windlass.agent.duty import Duty, Order
from windlass.agent.follow import Follower
from windlass.agent.link import HANDSHAKE, Link
from windlass.agent.ports import HeldPorts
from windlass.agent.post import Post, places_of
from windlass.agent.process import CannotStart, Process
from windlass.buckets.wrapping import wrapped
from windlass.causes import Cause, Kind
from windlass.journal import plain
from windlass.rankenv import Address, World, environment
from windlass.shapes import SHAPES

RETRY = 1.0
"""Seconds between two looks for a driver that is away."""
LOOK = 1.0
"""Seconds for such a look while a process runs under a lease: meanwhile nobody watches it."""
UNSENT_MOST = 10_000
"""Messages kept for a driver that is away; the oldest go first."""
STACKS_WAIT = 0.5
"""How long processes get to write their stacks."""
POLL = (0.02, 0.25)
"""How often a running process's files are looked at: at first, and once it is quiet."""
MPIRUN_PATIENCE = 2.0
"""How long mpirun may take to end by itself after a worker has failed: it never does when one
fails before it has met the others."""


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
        self._cut_off = False
        """The lease ran out: the process was ended because of that."""
        self._courier: Optional[Courier] = None
        self._awaited: Optional[wire.Message] = None
        """The start that waits for what the courier fetches."""
        self._settling = False
        """The process has ended; what it wrote is being carried away."""
        self._ended_at = 0.0
        """When the launcher's process ended, while others are heard first."""
        self._noticed = False
        """This agent's machine goes away."""
        self._followers: List[Tuple[str, int, Follower]] = []
        self._mpi: Optional[mpi.Workers] = None
        self._log = layout.log(post.run_dir, post.stage, post.role, post.rank)
        self._poll = POLL[0]
        self._oom = 0
        self._heartbeat = 0.0
        self._stacks_at = 0.0
        self._stacks_from: Dict[Tuple[str, int], int] = {}
        self._states: List[str] = []
        self._link: Optional[Link] = None
        self._heard = time.monotonic()
        self._try_again = 0.0
        self._unsent: Deque[wire.Message] = collections.deque(maxlen=UNSENT_MOST)

    def serve(self) -> int:
        wake, write = os.pipe()
        for fd in (wake, write):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        system.adopt_orphans()
        if self.post.depot:
            post = self.post
            self._courier = Courier(post.depot, post.token, post.name, post.run_dir, lambda: _ring(write))
        try:
            link: Optional[Link] = Link(self.post, self.duty.seen(time.monotonic(), time.time()))
            self._link = link
            going = self._obey(link.waiting if link else [])
            while going:
                link = self._link
                wait = min(self._poll, self.duty.heartbeat) if self.process else self.duty.heartbeat
                sources: List[Any] = [wake] if link is None else [wake, link.socket]
                ready, _, _ = select.select(sources, [], [], wait)
                if wake in ready and signal.SIGTERM in os.read(wake, 4096):
                    self._noticed = self.post.leaves
                    self._say("notice")
                if link is not None and link.socket in ready:
                    going = self._listen(link)
                self._take_delivery()
                self._watch()
                if self._has_left():
                    break
                self._stay_alive()
                if self._link is None:
                    going = self._find_driver() and going
            return 0
        finally:
            self._clean_up()

    # The driver.

    def _listen(self, link: Link) -> bool:
        try:
            messages = link.receive()
        except (OSError, wire.WireError):
            messages = None
        if messages is None:
            self._lose_driver()
            return True
        self._heard = time.monotonic()
        return self._obey(messages)

    def _obey(self, messages: List[wire.Message]) -> bool:
        for message in messages:
            order = self.duty.order(message, time.monotonic(), time.time())
            if order is Order.START:
                self._prepare(message)
            elif order is Order.KILL:
                self._end(float(message["grace"]))
            elif order is Order.SAY_ENDED and self.duty.exit is not None:
                self._say("exited", **self.duty.exit)
            elif order is Order.STACKS:
                self._ask_for_stacks()
            elif order is Order.BYE:
                return False
        return True

    def _lose_driver(self) -> None:
        """Without a lease the driver's end is ours; with one, train on and look for it."""
        if not self.post.lease:
            raise OSError("the driver is gone")
        if self._link is not None:
            self._link.socket.close()
        self._link = None

    def _find_driver(self) -> bool:
        now = time.monotonic()
        if now < self._try_again:
            return True
        self._try_again = now + RETRY
        try:
            link = Link(self.post, self.duty.seen(now, time.time()), LOOK if self.process else HANDSHAKE)
        except (OSError, wire.WireError):
            return True
        self._link, self._heard = link, time.monotonic()
        unsent, self._unsent = self._unsent, collections.deque(maxlen=UNSENT_MOST)
        for message in unsent:
            self._send(message)
        return self._obey(link.waiting)

    def _say(self, kind: str, **keys: Any) -> None:
        self._send({"is": kind, "life": list(self.duty.life), **keys})

    def _send(self, message: wire.Message) -> None:
        if self._link is None:
            self._unsent.append(message)
            return
        try:
            self._link.send(message)
        except OSError:
            self._unsent.append(message)
            self._lose_driver()

    def _stay_alive(self) -> None:
        now = time.monotonic()
        if self.duty.lapsed(now) and (self.process is not None or self._awaited is not None):
            self._cut_off = True
            self._end(0)
        if now - self._heartbeat >= self.duty.heartbeat and self._link is not None:
            self._heartbeat = now
            self._say("alive", **self.duty.seen(now, time.time()))
        if self.post.lease and now >= self._heard + self.post.lease / 3 and self._link is not None:
            self._lose_driver()  # a connection that died unnoticed: another one may come before the lease is over

    # The user's process.

    def _prepare(self, message: Dict[str, Any]) -> None:
        """Starts the process, where files have to be fetched first once they are here."""
        if self._courier is None:
            self._start(message)
            return
        generation, restart = message["life"]
        self.duty.begun((generation, restart))
        self._cut_off = False
        places = places_of(self.post, generation)
        trees = [*places.inputs.values(), places.output, *self._storage(), *filter(None, [message["resume_from"]])]
        logs = [self._log]
        if message["launcher"] and not message.get("spread"):
            ranks = self.stage.role("worker").ranks
            logs += [layout.log(self.post.run_dir, self.post.stage, "worker", rank) for rank in range(ranks)]
        self._awaited = message
        self._courier.begin(logs, trees, ("begin", message["life"]), places.output)

    def _take_delivery(self) -> None:
        """What the courier has carried: a life can begin, a checkpoint has arrived."""
        for kind, what in self._courier.done() if self._courier is not None else ():
            if kind == "checkpoint":
                self._say("checkpoint", **what)
            elif self._awaited is not None and self._awaited["life"] == what:
                message, self._awaited = self._awaited, None
                self._start(message)

    def _end(self, grace: float) -> None:
        if self.process is not None:
            self.process.end(grace)
        elif self._awaited is not None:
            self._awaited = None
            self._exited(-1, 0, None, asked=True)

    def _carried(self, code: int, asked: bool) -> bool:
        """Whether all that the ended process wrote is where it will be looked for."""
        courier = self._courier
        if courier is None:
            return True
        if not self._settling:
            self._settling = True
            if asked:
                courier.forget_checkpoints()
            else:
                for tree in (layout.output(self.post.run_dir, self.post.stage), *self._storage()):
                    courier.send_tree(tree)
        courier.hurry()
        return courier.settled

    def _storage(self) -> List[str]:
        """Mounts that are directories of the run."""
        return [layout.storage(self.post.run_dir, m.name) for m in self.post.plan.storage if m.kind == "run"]

    def _others_heard(self, ended: Tuple[int, int], process: Process) -> bool:
        """mpirun fails because one of its processes has: where those have agents, they are heard first."""
        alone = self._mpi is not None or self.post.role != SHAPES[self.stage.shape].launcher
        if alone or ended == (0, 0) or process.asked:
            return True
        self._ended_at = self._ended_at or time.monotonic()
        return time.monotonic() >= self._ended_at + MPIRUN_PATIENCE

    def _has_left(self) -> bool:
        """The machine goes away and nothing runs here any more: so does this agent."""
        if not self._noticed or self.process is not None or self._awaited is not None:
            return False
        self._say("left")
        return True

    def _start(self, message: Dict[str, Any]) -> None:
        post = self.post
        generation, restart = message["life"]
        self.duty.begun((generation, restart))
        self._cut_off = False
        peers = {
            role: tuple(Address(host, _three(ports)) for host, ports in addresses)
            for role, addresses in message["peers"].items()
        }
        world = World(generation, message["attempt"], peers, message["round"], message["resume_from"])
        places = places_of(post, generation)
        env = environment(self.stage, post.role, post.rank, restart, world, places, post.base)
        reports = places.report_file
        self._oom = max(evidence.oom_kills(), 0)
        try:
            for file in (reports, places.stacks_file):
                os.makedirs(os.path.dirname(file), exist_ok=True)
            for directory in (places.output, places.checkpoints, *self._storage()):
                os.makedirs(directory, exist_ok=True)
            command, self._mpi = self._command(message, world, restart, env)
            self.process = Process(command, env, post.plan.code or os.getcwd(), self._log)
        except CannotStart as failure:
            self._exited(-1, 0, evidence.of_start(failure, env.get("PATH", "")))
            return
        except mpi.NoMpirun as missing:
            self._exited(-1, 0, Cause(Kind.NOT_FOUND, str(missing), evidence=missing.facts))
            return
        except OSError as error:
            self._exited(-1, 0, _cannot_write(error))
            return
        offset = self.process.log_offset
        start = os.path.getsize(reports) if os.path.exists(reports) else 0
        self._followers = [(post.role, post.rank, Follower(self._log, offset, reports, start))]
        self._poll = POLL[0]
        self._say("started", pid=self.process.outside_pid, log_offset=offset, report_offset=start)

    def _command(
        self, message: Dict[str, Any], world: World, restart: int, env: Dict[str, str]
    ) -> Tuple[Tuple[str, ...], Optional[mpi.Workers]]:
        workers = None
        if self.post.role == message["merge_role"]:
            command = self.stage.merge
        else:
            command = self.stage.role(self.post.role).command
        if message["launcher"] and message.get("spread"):
            command = wrapped(self.post.plan, command)
            return mpi.spread_command(self.post, self.stage, world, restart, command, env), None
        if message["launcher"]:
            workers = mpi.Workers(self.post, self.stage, world, restart)
            command = workers.command(command, env)
        return wrapped(self.post.plan, command), workers

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
        if self._stacks_at and (ended or time.monotonic() >= self._stacks_at):
            self._say_stacks()
        if ended is None or not self._carried(ended[0], process.asked) or not self._others_heard(ended, process):
            return
        code, signum = ended
        if self._mpi is not None:
            self._relay_workers(self._mpi)
            if code != 0 and not process.asked and not self._mpi.fallen:
                for event in self._mpi.left_unsaid():
                    self._say(event.kind, role="worker", rank=event.rank, **event.keys)
            self._relay_progress()
        lines = evidence.tail(self._log, process.log_offset)
        kills = evidence.oom_kills()
        oom = kills - self._oom if kills >= 0 else -1
        cause = evidence.of_exit(code, signum, lines, oom, process.asked, self.post.run_dir)
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
                told = {"role": role, "rank": rank, "record": record, "life": list(self.duty.life)}
                if self._courier is None or record.get("error"):
                    self._say("checkpoint", **told)
                else:
                    self._courier.send(str(record["path"]), ("checkpoint", told))
        return said

    def _relay_workers(self, workers: mpi.Workers) -> None:
        for event in workers.events():
            if event.follower is not None:
                self._followers.append(("worker", event.rank, event.follower))
            self._say(event.kind, role="worker", rank=event.rank, **event.keys)

    def _exited(self, code: int, signum: int, cause: Optional[Cause], asked: bool = False) -> None:
        asked = self.process.asked if self.process else asked
        for role, rank, follower in self._followers:
            follower.close()
            stacks.tidy(self._stacks_of(role, rank))
        stacks.tidy(self._stacks_of(self.post.role, self.post.rank))
        self.process, self._followers, self._mpi, self._settling, self._ended_at = None, [], None, False, 0.0
        if self._cut_off:
            asked, cause = False, Cause(Kind.NODE_LOST, "it was cut off from the driver for longer than its lease")
        if cause is not None:
            self.last_words = f"{self.post.name}, generation {self.duty.life[0]}: {cause.message}"
        ending = {"code": code, "signal": signum, "at": time.time(), "asked": asked, "cause": plain(cause)}
        self.duty.ended(ending)
        if not self._noticed or code == 0:  # else it leaves, and a new life must not be given to it
            self._say("exited", **ending)

    # Stacks of a rank that hangs.

    def _ask_for_stacks(self) -> None:
        """Python processes write their stacks on SIGUSR1; one without a handler would die of it. One that
        is stopped stays so: to wake it for its stacks would be to set it going again."""
        self._states = [f"process {pid} is {stacks.state_of(pid)}" for pid in system.descendants(os.getpid())]
        able = [pid for pid in system.descendants(os.getpid()) if stacks.catches(pid, signal.SIGUSR1)]
        self._stacks_from = {
            (role, rank): stacks.size(self._stacks_of(role, rank)) for role, rank, _ in self._followers
        }
        system.signal_all(able, signal.SIGUSR1)
        self._stacks_at = time.monotonic() + STACKS_WAIT

    def _say_stacks(self) -> None:
        self._stacks_at = 0.0
        for (role, rank), start in self._stacks_from.items():
            states = self._states if (role, rank) == (self.post.role, self.post.rank) else []
            text = stacks.written(self._stacks_of(role, rank), start)
            self._say("stacks", role=role, rank=rank, states=states, text=text)

    def _stacks_of(self, role: str, rank: int) -> str:
        return layout.stacks(self.post.run_dir, self.post.stage, role, rank)

    def _clean_up(self) -> None:
        """Leave no process, whoever ended this loop."""
        signal.set_wakeup_fd(-1)
        if self.process is not None:
            self.process.end(0)
            while self.process.ended() is None:
                time.sleep(0.005)


def _ring(fd: int) -> None:
    try:
        os.write(fd, b"\0")
    except BlockingIOError:
        pass


def _write_down_bug(post: Post) -> None:
    import traceback

    with open(os.path.join(post.run_dir, layout.DRIVER_LOG), "a") as file:
        file.write(f"agent of {post.name}:\n{traceback.format_exc()}")


def _cannot_write(error: OSError) -> Cause:
    import errno

    kind = Kind.DISK_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else Kind.NOT_WRITABLE
    uid, gid = os.geteuid(), os.getegid()
    return Cause(kind, f"cannot write {error.filename}: {error.strerror}", evidence=(f"as uid {uid}, gid {gid}",))


def _three(ports: List[int]) -> Tuple[int, int, int]:
    first, second, third = ports[:3]
    return first, second, third
