"""The processes between the driver and its agents: a supervisor, and a fork server inside the PID namespace.

    driver ── supervisor ── fork server (pid 1 of the namespace) ── agents ── ranks

The fork server forks agents from a warm process, which is many times cheaper than executing each, and adopts
whatever an agent leaves behind when it is killed. The supervisor is outside the namespace: when the driver is gone,
it kills the fork server, and with it the namespace, and removes the run's scratch directory. If the supervisor is
killed too, the fork server dies with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Container, Sequence
from typing import Any

from longboat.engines.local import containment
from longboat.engines.local.containment import GROUPS, NAMESPACE, REAPER, Containment
from longboat.engines.local.scratch_dir import remove
from longboat.runtime import run_layout
from longboat.runtime.agent import syscalls
from longboat.runtime.agent.agent import run as run_agent
from longboat.runtime.agent.agent_config import AgentConfig
from longboat.runtime.causes import Cause, CauseKind, signal_name
from longboat.runtime.driver.launcher import AgentGone
from longboat.runtime.seat import Seat

FAREWELL = b"."
"""What a driver that exits normally sends to the supervisor; one that is killed sends nothing. The closed pipe alone
does not show which: the kernel closes a dying process's files before its children lose their parent."""


class SupervisorLost(OSError):
    """The supervisor was killed, and the run's processes with it."""


MakeConfig = Callable[[Seat, Sequence[int]], AgentConfig]


class LocalLauncher:
    """Starts and kills agents through the supervisor: the driver's Launcher on this machine."""

    def __init__(self, make_config: MakeConfig, scratch: str, read_only: Sequence[str] = ()) -> None:
        self._read_only = read_only
        self.containment = GROUPS
        self._half = b""
        self._socket: socket.socket
        self._life = self._supervisor = -1
        self._launches: dict[Seat, int] = {}
        """How many agents each seat has had: the exit of one that was already replaced is ignored."""
        self._fenced: set[tuple[Seat, int]] = set()
        """Agents that the driver had killed: who sent that signal is known."""
        for kind in (NAMESPACE, REAPER) if syscalls.LINUX else (GROUPS,):
            if self._start(make_config, scratch, kind):
                self.containment = kind
                return
        raise OSError("cannot start the supervisor of the run's processes")

    def launch(self, seat: Seat, ports: Sequence[int]) -> None:
        self._launches[seat] = self._launches.get(seat, 0) + 1
        self._tell({"launch": [*seat], "ports": list(ports), "number": self._launches[seat]})

    def fence(self, seat: Seat) -> None:
        self._fenced.add((seat, self._launches[seat]))
        self._tell({"fence": [*seat]})

    def release(self, seat: Seat) -> None:
        pass  # agents are numbered

    def is_current(self, seat: Seat, agent: str) -> bool:
        return True  # a replaced agent is dead: the fork server reaped it

    def fileno(self) -> int:
        return self._socket.fileno()

    def poll(self) -> list[AgentGone]:
        try:
            data = self._socket.recv(1 << 16)
        except ConnectionResetError:  # killed before it read what we sent
            data = b""
        if not data:
            raise SupervisorLost("the supervisor of the run's processes was killed")
        *lines, self._half = (self._half + data).split(b"\n")
        messages = [json.loads(line) for line in lines]
        return [self._gone(each) for each in messages if each["number"] == self._launches[Seat(*each["gone"])]]

    def pause(self) -> None:
        """Stop the agents and ranks, then this process, as Ctrl-Z does; continue them when it continues. Supervisor and
        fork server keep running: they end the ranks if this process is killed meanwhile."""
        paused: list[int] = []
        while pids := [pid for pid in self._agents_and_ranks() if pid not in paused]:
            syscalls.signal_all(pids, signal.SIGSTOP)
            paused += pids
        os.kill(os.getpid(), signal.SIGSTOP)
        syscalls.signal_all(paused, signal.SIGCONT)

    def _agents_and_ranks(self) -> list[int]:
        tree = syscalls.process_tree()
        return [pid for fork_server in tree.get(self._supervisor, ()) for pid in syscalls.below(tree, fork_server)]

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # the supervisor was killed
            os.write(self._life, FAREWELL)
        os.close(self._life)
        self._socket.close()
        os.waitpid(self._supervisor, 0)
        if self.containment is REAPER:
            _end_adopted()

    def _tell(self, message: dict[str, Any]) -> None:
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise SupervisorLost(f"the supervisor of the run's processes is gone: {error.strerror}") from None

    def _gone(self, message: dict[str, Any]) -> AgentGone:
        seat, status = Seat(*message["gone"]), message["status"]
        if (seat, message["number"]) in self._fenced:
            text = "nothing was heard of the agent for longer than its lease, and it was killed"
        elif status < 0:
            text = f"the agent was killed by signal {-status} ({signal_name(-status)}), sender unknown"
        else:
            text = f"the agent ended with code {status}; the run's driver.log may say why"
        return AgentGone(seat, Cause(CauseKind.AGENT_LOST, text).at(seat))

    def _start(self, make_config: MakeConfig, scratch: str, kind: Containment) -> bool:
        if kind is REAPER:
            syscalls.adopt_orphans()  # for the case that the supervisor is killed
        ours, theirs = socket.socketpair()
        watch, self._life = os.pipe()

        def supervise() -> int:
            ours.close()
            os.close(self._life)
            return _supervise(make_config, scratch, kind, theirs, watch, self._read_only)

        self._supervisor = syscalls.fork(supervise)
        theirs.close()
        os.close(watch)
        self._socket = ours
        if ours.recv(1) == b"\n":
            return True
        self.close()
        return False


def _supervise(
    make_config: MakeConfig,
    scratch: str,
    kind: Containment,
    link: socket.socket,
    watch: int,
    read_only: Sequence[str],
) -> int:
    """The supervisor's main: waits until the driver or the fork server exits, then ends the rest."""
    os.setsid()
    _default_signals()
    if kind is NAMESPACE:
        containment.unshare()
    else:
        syscalls.adopt_orphans()
    supervisor = os.getpid()

    def serve_forks() -> int:
        os.close(watch)
        return _serve_forks(make_config, kind, link, supervisor, read_only)

    fork_server = syscalls.fork(serve_forks)
    link.close()
    wake = _wake_on_child()
    while os.waitpid(fork_server, os.WNOHANG)[0] == 0:
        ready, _, _ = select.select([watch, wake], [], [])
        if watch in ready:
            os.kill(fork_server, signal.SIGKILL)
            os.waitpid(fork_server, 0)
            break
        os.read(wake, 4096)
    if kind is not NAMESPACE:
        _end_orphans()
    if os.read(watch, len(FAREWELL)) != FAREWELL:
        remove(scratch)
    return 0


def _end_orphans() -> None:
    """Kills every remaining descendant of the supervisor, including detached ones."""
    while True:
        syscalls.signal_all(syscalls.descendants(os.getpid()), signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def _end_adopted() -> None:
    """Kills the run's processes that the driver adopted; its own children share its session, ranks never do."""
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


def _serve_forks(
    make_config: MakeConfig, kind: Containment, link: socket.socket, supervisor: int, read_only: Sequence[str]
) -> int:
    """The fork server's main."""
    if kind is NAMESPACE:
        syscalls.die_with_parent(0)  # a parent outside the namespace has no PID in it
        syscalls.outer_proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        containment.mount_private(read_only)
    else:
        syscalls.die_with_parent(supervisor)
        syscalls.adopt_orphans()
    ForkServer(make_config, link).serve()
    return 1


class ForkServer:
    """Forks agents, and kills what a dead agent left behind."""

    def __init__(self, make_config: MakeConfig, link: socket.socket) -> None:
        self._make_config = make_config
        self._link = link
        self._agents: dict[int, tuple[Seat, int]] = {}
        self._exited: list[tuple[Seat, int, int]] = []
        self._unsent = bytearray(b"\n")
        """Sent when the driver reads: it may be writing to us, and if both block on a write, neither continues."""

    def serve(self) -> None:
        wake = _wake_on_child()
        half = b""
        while True:
            sources: list[Any] = [self._link, wake]
            targets = [self._link] if self._unsent else []
            ready, able, _ = select.select(sources, targets, [], 0.02 if self._exited else None)
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
                    self._handle(json.loads(line))
            self._reap()

    def _handle(self, message: dict[str, Any]) -> None:
        if "launch" in message:
            self._launch(Seat(*message["launch"]), message["ports"], message["number"])
        else:
            for pid, (seat, _) in self._agents.items():
                if seat == Seat(*message["fence"]):
                    os.kill(pid, signal.SIGKILL)

    def _launch(self, seat: Seat, ports: Sequence[int], number: int) -> None:
        fork_server = os.getpid()

        def serve() -> int:
            signal.set_wakeup_fd(-1)
            syscalls.die_with_parent(fork_server)
            self._link.close()
            return _run_agent(self._make_config(seat, ports))

        self._agents[syscalls.fork(serve)] = (seat, number)

    def _reap(self) -> None:
        """Reaps children. An agent counts as gone only when nothing that it started is left: a child of this process
        that is not an agent can only come from an agent that died."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            agent = self._agents.pop(pid, None)
            if agent is not None:
                self._exited.append((*agent, os.waitstatus_to_exitcode(status)))
        if not self._exited:
            return
        strays = _strays(os.getpid(), self._agents)
        if strays:
            syscalls.signal_all(strays, signal.SIGKILL)
            return
        for seat, number, status in self._exited:
            message = {"gone": [*seat], "number": number, "status": status}
            self._unsent += json.dumps(message).encode() + b"\n"
        self._exited = []


def _run_agent(config: AgentConfig) -> int:
    try:
        return run_agent(config)
    except Exception:
        import traceback

        with open(os.path.join(config.run_dir, run_layout.DRIVER_LOG), "a", encoding="utf-8") as file:
            file.write(traceback.format_exc())
        return 1


def _strays(root: int, agents: Container[int]) -> list[int]:
    """Descendants of the fork server that are not below a living agent."""
    tree = syscalls.process_tree()
    strays = []
    for child in tree.get(root, ()):
        if child not in agents:
            strays += [child, *syscalls.below(tree, child)]
    return strays


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
