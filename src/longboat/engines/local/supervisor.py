"""The processes between the driver and its agents: a keeper, and a nursery inside the box.

    driver ── keeper ── nursery (pid 1 of the box) ── agents ── ranks

The nursery forks agents from a warm process, which is many times cheaper than executing each,
and is the last parent of whatever an agent leaves behind when it is killed. The keeper stands
outside: when the driver is gone it ends the nursery, and with it the box, and removes the run's
scratch directory. If the keeper is killed as well, the nursery dies with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable, Container, Sequence
from typing import Any

from longboat.engines.local import containment
from longboat.engines.local.containment import BOX, GROUPS, REAPER, Containment
from longboat.engines.local.scratch_dir import remove
from longboat.runtime import run_layout
from longboat.runtime.agent import syscalls
from longboat.runtime.agent.agent import run as run_agent
from longboat.runtime.agent.agent_config import AgentConfig
from longboat.runtime.causes import Cause, CauseKind, signal_name
from longboat.runtime.driver.agent_links import Seat
from longboat.runtime.driver.launcher import AgentGone

FAREWELL = b"."
"""What a driver that ends in order says to the keeper: one that is killed says nothing. That its end was
noticed is not enough to go by: the kernel closes a dying process's files before its children lose their parent."""


class SupervisorLost(OSError):
    """Nobody holds the run's processes any more: they are gone."""


MakePost = Callable[[Seat, Sequence[int]], AgentConfig]


class LocalLauncher:
    """The driver's handle on the tree: a Launcher."""

    def __init__(self, make_post: MakePost, scratch: str, read_only: Sequence[str] = ()) -> None:
        self._read_only = read_only
        self.containment = GROUPS
        self._half = b""
        self._socket: socket.socket
        self._life = self._keeper = -1
        self._launches: dict[Seat, int] = {}
        """How many agents each seat has had: the end of one that was followed by another is no news."""
        self._fenced: set[tuple[Seat, int]] = set()
        """Agents that the driver had killed: the end of one has a known sender."""
        for kind in (BOX, REAPER) if syscalls.LINUX else (GROUPS,):
            if self._start(make_post, scratch, kind):
                self.containment = kind
                return
        raise OSError("the keeper of the run's processes could not be started")

    def launch(self, seat: Seat, ports: Sequence[int]) -> None:
        self._launches[seat] = self._launches.get(seat, 0) + 1
        self._tell({"launch": [*seat], "ports": list(ports), "number": self._launches[seat]})

    def fence(self, seat: Seat) -> None:
        self._fenced.add((seat, self._launches[seat]))
        self._tell({"fence": [*seat]})

    def release(self, seat: Seat) -> None:
        pass  # agents are numbered

    def is_current(self, seat: Seat, agent: str) -> bool:
        return True  # one that was given up is dead: the keeper has seen it

    def fileno(self) -> int:
        return self._socket.fileno()

    def poll(self) -> list[AgentGone]:
        try:
            data = self._socket.recv(1 << 16)
        except ConnectionResetError:  # the same, with words of ours on their way to it
            data = b""
        if not data:
            raise SupervisorLost("the keeper of the run's processes was killed")
        *lines, self._half = (self._half + data).split(b"\n")
        messages = [json.loads(line) for line in lines]
        return [self._gone(each) for each in messages if each["number"] == self._launches[_seat(each["gone"])]]

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # it was killed
            os.write(self._life, FAREWELL)
        os.close(self._life)
        self._socket.close()
        os.waitpid(self._keeper, 0)
        if self.containment is REAPER:
            _end_adopted()

    def _tell(self, message: dict[str, Any]) -> None:
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise SupervisorLost(f"the keeper of the run's processes is gone: {error.strerror}") from None

    def _gone(self, message: dict[str, Any]) -> AgentGone:
        seat, status = _seat(message["gone"]), message["status"]
        if (seat, message["number"]) in self._fenced:
            text = "nothing was heard of the agent for longer than its lease, and it was killed"
        elif status < 0:
            text = f"the agent was killed by signal {-status} ({signal_name(-status)}), sender unknown"
        else:
            text = f"the agent ended with code {status}; the run's driver.log may say why"
        return AgentGone(seat, Cause(CauseKind.AGENT_LOST, text, role=seat[1], rank=seat[2]))

    def _start(self, make_post: MakePost, scratch: str, kind: Containment) -> bool:
        if kind is REAPER:
            syscalls.adopt_orphans()  # the last resort, should the keeper be killed
        ours, theirs = socket.socketpair()
        watch, self._life = os.pipe()

        def keep() -> int:
            ours.close()
            os.close(self._life)
            return _keep(make_post, scratch, kind, theirs, watch, self._read_only)

        self._keeper = syscalls.fork(keep)
        theirs.close()
        os.close(watch)
        self._socket = ours
        if ours.recv(1) == b"\n":
            return True
        self.close()
        return False


def _keep(
    make_post: MakePost,
    scratch: str,
    kind: Containment,
    link: socket.socket,
    watch: int,
    read_only: Sequence[str],
) -> int:
    """The keeper: holds the driver's end of life in one hand and the nursery in the other."""
    os.setsid()
    _default_signals()
    if kind is BOX:
        containment.unshare()
    else:
        syscalls.adopt_orphans()
    keeper = os.getpid()

    def nurse() -> int:
        os.close(watch)
        return _nurse(make_post, kind, link, keeper, read_only)

    nursery = syscalls.fork(nurse)
    link.close()
    wake = _wake_on_child()
    while os.waitpid(nursery, os.WNOHANG)[0] == 0:
        ready, _, _ = select.select([watch, wake], [], [])
        if watch in ready:
            os.kill(nursery, signal.SIGKILL)
            os.waitpid(nursery, 0)
            break
        os.read(wake, 4096)
    if kind is not BOX:
        _end_orphans()
    if os.read(watch, len(FAREWELL)) != FAREWELL:
        remove(scratch)
    return 0


def _end_orphans() -> None:
    """For the keeper: ends whatever is left below it, also what had left its own parents behind."""
    while True:
        syscalls.signal_all(syscalls.descendants(os.getpid()), signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def _end_adopted() -> None:
    """The same for the driver, which has children of its own: those share its session, ranks never do."""
    mine = os.getsid(0)
    while strays := [pid for pid in syscalls.descendants(os.getpid()) if _session(pid) not in (0, mine)]:
        syscalls.signal_all(strays, signal.SIGKILL)
        for pid in strays:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.002)


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def _nurse(make_post: MakePost, kind: Containment, link: socket.socket, keeper: int, read_only: Sequence[str]) -> int:
    if kind is BOX:
        syscalls.die_with_parent(0)  # a parent outside the box has no number inside it
        syscalls.outer_proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        containment.furnish(read_only)
    else:
        syscalls.die_with_parent(keeper)
        syscalls.adopt_orphans()
    ForkServer(make_post, link).serve()
    return 1


class ForkServer:
    """Forks agents, and clears away what a dead one has left."""

    def __init__(self, make_post: MakePost, link: socket.socket) -> None:
        self._make_post = make_post
        self._link = link
        self._agents: dict[int, tuple[Seat, int]] = {}
        self._fallen: list[tuple[Seat, int, int]] = []
        self._unsent = bytearray(b"\n")
        """Sent when the driver reads: it may be writing to us, and one of the two must not wait."""

    def serve(self) -> None:
        wake = _wake_on_child()
        half = b""
        while True:
            sources: list[Any] = [self._link, wake]
            targets = [self._link] if self._unsent else []
            ready, able, _ = select.select(sources, targets, [], 0.02 if self._fallen else None)
            if able:
                del self._unsent[: self._link.send(self._unsent, socket.MSG_DONTWAIT)]
            if wake in ready:
                os.read(wake, 4096)
            if self._link in ready:
                data = self._link.recv(1 << 16)
                if not data:
                    return
                *lines, half = (half + data).split(b"\n")
                for line in lines:
                    self._obey(json.loads(line))
            self._reap()

    def _obey(self, message: dict[str, Any]) -> None:
        if "launch" in message:
            self._launch(_seat(message["launch"]), message["ports"], message["number"])
        else:
            for pid, (seat, _) in self._agents.items():
                if seat == _seat(message["fence"]):
                    os.kill(pid, signal.SIGKILL)

    def _launch(self, seat: Seat, ports: Sequence[int], number: int) -> None:
        nursery = os.getpid()

        def serve() -> int:
            signal.set_wakeup_fd(-1)
            syscalls.die_with_parent(nursery)
            self._link.close()
            return _served(self._make_post(seat, ports))

        self._agents[syscalls.fork(serve)] = (seat, number)

    def _reap(self) -> None:
        """Takes in the dead. An agent counts as gone only when nothing that it started is left:
        a child of this process that is no agent can only come from an agent that died."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            agent = self._agents.pop(pid, None)
            if agent is not None:
                self._fallen.append((*agent, os.waitstatus_to_exitcode(status)))
        if not self._fallen:
            return
        strays = _strays(os.getpid(), self._agents)
        if strays:
            syscalls.signal_all(strays, signal.SIGKILL)
            return
        for seat, number, status in self._fallen:
            message = {"gone": [*seat], "number": number, "status": status}
            self._unsent += json.dumps(message).encode() + b"\n"
        self._fallen = []


def _served(post: AgentConfig) -> int:
    try:
        return run_agent(post)
    except Exception:
        with open(os.path.join(post.run_dir, run_layout.DRIVER_LOG), "a", encoding="utf-8") as file:
            file.write(traceback.format_exc())
        return 1


def _strays(root: int, agents: Container[int]) -> list[int]:
    """Descendants of the nursery that stand below no living agent."""
    tree = syscalls.process_tree()
    found = []
    for child in tree.get(root, ()):
        if child not in agents:
            found += [child, *syscalls.below(tree, child)]
    return found


def _seat(words: Sequence[Any]) -> Seat:
    stage, role, rank = words
    return stage, role, rank


def _wake_on_child() -> int:
    """A descriptor that becomes readable when a child ends."""
    wake, write = os.pipe()
    for fd in (wake, write):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return wake


def _default_signals() -> None:
    signal.set_wakeup_fd(-1)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_DFL)
