"""The agent's loop: a connection to the driver, a user's process, and nothing else.

It joins with the seat's name, starts what it is told to, follows the progress, and says how it
ended. One thread, one select: the driver's socket, and a pipe that SIGCHLD writes to. It never
decides about the gang.

Ships into strangers' images: standard library only, Python 3.9.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Tuple

from windlass import layout, wire
from windlass.agent import evidence, mpi, system
from windlass.agent.follow import Follower
from windlass.agent.ports import HeldPorts
from windlass.agent.process import CannotStart, Process
from windlass.causes import Cause, Kind
from windlass.journal import plain
from windlass.plan import Plan
from windlass.rankenv import Address, Places, World, environment

HEARTBEAT = 1.0
POLL = (0.02, 0.25)
"""How often a running process's files are looked at: at first, and once it is quiet."""


@dataclass(frozen=True)
class Post:
    """Everything an agent knows before it meets the driver."""

    plan: Plan
    run_id: str
    run_dir: str
    stage: str
    role: str
    rank: int
    driver: str
    """Path of the driver's socket, or host:port."""
    token: bytes
    base: Mapping[str, str]
    """Environment that the rank's own stands on; holds the secrets."""
    data: str
    rank_path: str
    python: str
    host: str = "127.0.0.1"
    threads: int = 0
    gpus: Tuple[str, ...] = ()
    mounts: Mapping[str, str] = field(default_factory=dict)
    ports: Tuple[int, ...] = ()
    """Taken again if they can be: a rank that comes back alone must be found where it was."""

    @property
    def name(self) -> str:
        return f"{self.stage}/{self.role}-{self.rank}"


def run(post: Post) -> int:
    """Serve the seat until the driver says goodbye or is gone."""
    ports = HeldPorts(3, post.ports)
    try:
        link = Link(post, ports.numbers)
        return Agent(post, link, Address(post.host, _three(ports.numbers))).serve()
    except (OSError, wire.WireError):
        return 1  # the driver is gone; what was started dies with this process
    except Exception:
        _write_down_bug(post)
        return 1


class Link:
    """The authenticated connection to the driver."""

    def __init__(self, post: Post, ports: List[int]) -> None:
        self._decoder = wire.Decoder()
        self.waiting: List[wire.Message] = []
        """Messages that came together with the end of the handshake."""
        self.socket = _connect(post.driver)
        hello = self._expect("hello")
        ours = wire.nonce()
        nonces = f"{hello['nonce']}{ours}"
        self.send(
            {
                "is": "join",
                "seat": [post.stage, post.role, post.rank],
                "pid": os.getpid(),
                "address": [post.host, ports],
                "nonce": ours,
                "proof": wire.proof(post.token, "agent", nonces, post.name),
            }
        )
        welcome = self._expect("welcome")
        if not wire.proven(welcome.get("proof"), post.token, "driver", nonces, post.name):
            raise wire.WireError("what answered is not this run's driver")

    def send(self, message: wire.Message) -> None:
        self.socket.sendall(wire.encode(message))

    def receive(self) -> Optional[List[wire.Message]]:
        """What has arrived; None when the driver has closed."""
        if self.waiting:
            found, self.waiting = self.waiting, []
            return found
        data = self.socket.recv(1 << 16)
        return self._decoder.feed(data) if data else None

    def _expect(self, kind: str) -> wire.Message:
        messages: Optional[List[wire.Message]] = []
        while messages is not None and not messages:
            messages = self.receive()
        if not messages or messages[0]["is"] != kind:
            raise wire.WireError(f"no {kind} came")
        self.waiting = messages[1:]
        return messages[0]


class Agent:
    def __init__(self, post: Post, link: Link, address: Address) -> None:
        self.post = post
        self.link = link
        self.address = address
        self.stage = post.plan.stage(post.stage)
        self.process: Optional[Process] = None
        self.generation = self.restart = 0
        self._followers: List[Tuple[str, int, Follower]] = []
        self._mpi: Optional[mpi.Workers] = None
        self._log = layout.log(post.run_dir, post.stage, post.role, post.rank)
        self._poll = POLL[0]
        self._oom = 0
        self._heartbeat = 0.0

    def serve(self) -> int:
        wake, write = os.pipe()
        for fd in (wake, write):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        system.adopt_orphans()
        try:
            if self.link.waiting and not self._obey():
                return 0
            while True:
                wait = min(self._poll, HEARTBEAT) if self.process else HEARTBEAT
                ready, _, _ = select.select([self.link.socket, wake], [], [], wait)
                if wake in ready:
                    os.read(wake, 4096)
                if self.link.socket in ready and not self._obey():
                    return 0
                self._watch()
                self._stay_alive()
        finally:
            self._clean_up()

    def _obey(self) -> bool:
        messages = self.link.receive()
        if messages is None:
            return False
        for message in messages:
            if message["is"] == "start":
                self._start(message)
            elif message["is"] == "kill" and self.process and message["gen"] == self.generation:
                self.process.end(float(message["grace"]))
            elif message["is"] == "stacks" and self.process and message["gen"] == self.generation:
                self._dump_stacks()
            elif message["is"] == "bye":
                return False
        return True

    def _start(self, message: Dict[str, Any]) -> None:
        post = self.post
        self.generation, self.restart = int(message["gen"]), int(message["restart"])
        peers = {
            role: tuple(Address(host, _three(ports)) for host, ports in addresses)
            for role, addresses in message["peers"].items()
        }
        world = World(
            self.generation,
            int(message["attempt"]),
            peers,
            int(message["round"]),
            message["resume_from"],
        )
        places = places_of(post, self.generation)
        env = environment(self.stage, post.role, post.rank, self.restart, world, places, post.base)
        env["WINDLASS_STACKS_FILE"] = layout.stacks(post.run_dir, post.stage, post.role, post.rank)
        reports = places.report_file
        self._oom = max(evidence.oom_kills(), 0)
        try:
            for directory in (places.output, places.checkpoints, os.path.dirname(reports)):
                os.makedirs(directory, exist_ok=True)
            os.makedirs(os.path.dirname(env["WINDLASS_STACKS_FILE"]), exist_ok=True)
            command, self._mpi = self._command(message, world, env)
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
        self, message: Dict[str, Any], world: World, env: Dict[str, str]
    ) -> Tuple[Tuple[str, ...], Optional[mpi.Workers]]:
        if self.post.role == message.get("merge_role"):
            return self.stage.merge, None
        command = self.stage.role(self.post.role).command
        if message.get("launcher"):
            workers = mpi.Workers(self.post, self.stage, world, self.restart)
            return workers.command(command, env), workers
        return command, None

    def _watch(self) -> None:
        process = self.process
        if process is None:
            return
        process.enforce()
        ended = process.ended()
        if self._mpi is not None:
            self._relay_workers(self._mpi)
        busy = self._relay_progress()
        self._poll = POLL[0] if busy or process.asked else min(self._poll * 1.5, POLL[1])
        if ended is None:
            return
        code, signum = ended
        if self._mpi is not None:
            self._relay_workers(self._mpi)
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
            points = follower.points()
            for begin in range(0, len(points), 1000):
                said = True
                self._say("report", role=role, rank=rank, points=points[begin : begin + 1000])
        return said

    def _relay_workers(self, workers: mpi.Workers) -> None:
        for event in workers.events():
            if event.follower is not None:
                self._followers.append(("worker", event.rank, event.follower))
            self._say(event.kind, role="worker", rank=event.rank, **event.keys)

    def _exited(self, code: int, signum: int, cause: Optional[Cause]) -> None:
        asked = self.process.asked if self.process else False
        for _, _, follower in self._followers:
            follower.close()
        self.process, self._followers, self._mpi = None, [], None
        self._say("exited", code=code, signal=signum, at=time.time(), asked=asked, cause=plain(cause))

    def _dump_stacks(self) -> None:
        pids = system.descendants(os.getpid())
        asked = [pid for pid in pids if _catches(pid, signal.SIGUSR1)]
        system.signal_all(asked, signal.SIGCONT)
        system.signal_all(asked, signal.SIGUSR1)

    def _say(self, kind: str, **keys: Any) -> None:
        message = {"is": kind, "gen": self.generation, "restart": self.restart}
        message.update(keys)
        self.link.send(message)

    def _stay_alive(self) -> None:
        now = time.monotonic()
        if now - self._heartbeat >= HEARTBEAT:
            self._heartbeat = now
            self.link.send({"is": "alive"})

    def _clean_up(self) -> None:
        """Leave no process, whoever ended this loop."""
        signal.set_wakeup_fd(-1)
        if self.process is not None:
            self.process.end(0)
            while self.process.ended() is None:
                time.sleep(0.005)


def places_of(post: Post, generation: int, role: str = "", rank: int = -1) -> Places:
    """Where things are for a rank of this post's stage; by default the post's own."""
    stage = post.plan.stage(post.stage)
    role, rank = (role, rank) if role else (post.role, post.rank)
    return Places(
        run_id=post.run_id,
        data=post.data,
        output=layout.output(post.run_dir, post.stage),
        checkpoints=layout.checkpoints(post.run_dir, post.stage, generation),
        report_file=layout.reports(post.run_dir, post.stage, role, rank),
        rank_path=post.rank_path,
        python=stage.python or post.python,
        mounts=post.mounts,
        inputs={name: layout.output(post.run_dir, name) for name in earlier(post.plan, post.stage)},
        threads=post.threads,
        gpus=post.gpus,
    )


def earlier(plan: Plan, name: str) -> List[str]:
    """All stages that come before this one, near and far."""
    found: List[str] = []
    for before in plan.stage(name).after:
        for each in [*earlier(plan, before), before]:
            if each not in found and plan.stage(each).kind == "gang":
                found.append(each)
    return found


def _connect(address: str) -> socket.socket:
    if address.startswith("/"):
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.connect(address)
        return link
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=None)


def _write_down_bug(post: Post) -> None:
    import traceback

    with open(os.path.join(post.run_dir, layout.DRIVER_LOG), "a") as file:
        file.write(f"agent of {post.name}:\n{traceback.format_exc()}")


def _cannot_write(error: OSError) -> Cause:
    import errno

    kind = Kind.DISK_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else Kind.NOT_WRITABLE
    uid, gid = os.geteuid(), os.getegid()
    return Cause(kind, f"cannot write {error.filename}: {error.strerror}", evidence=(f"as uid {uid}, gid {gid}",))


def _catches(pid: int, signum: int) -> bool:
    """Has the process a handler for the signal? Without one, sending it would end the process."""
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith("SigCgt:"):
                    return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    except (OSError, ValueError):
        pass
    return False


def _three(ports: List[int]) -> Tuple[int, int, int]:
    first, second, third = ports[:3]
    return first, second, third
