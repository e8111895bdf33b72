"""MPI with a pod for each worker: mpirun reaches workers through their agents, without SSH or root.

The worker's agent runs `serve_worker` as the rank's process: it waits for the launcher, which proves that
it holds the run's token, and executes what mpirun wants on that host (its daemon). The daemon executes
`run_rank`, which runs the user's command with the rank's environment and log. `serve_worker` exits like
the rank, so the gang sees each MPI process like any other rank.

    mpirun ── remote_shell HOST COMMAND ── serve_worker (in the worker's pod) ── mpirun's daemon ── run_rank ── command

This file is all three programs (`python -S -E mpi_remote.py PROGRAM DIRECTORY ...`).
"""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
from typing import Any, Dict, List, Mapping, Optional

if __name__ == "__main__":  # executed as a file: the package is three directories up
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from longboat.runtime import wire
from longboat.runtime.agent import syscalls
from longboat.runtime.agent.file_transfer import FileStream
from longboat.runtime.agent.rank_process import open_log
from longboat.runtime.rank_env import with_pid

SETTINGS, EXIT, RUN_RANK, REMOTE_SHELL = "settings.json", "exit", "run-rank", "remote-shell"
KEPT = ("PMI_", "PMIX_", "PMI", "OMPI_", "PRTE_", "HYDI_", "HYDRA_", "MPI_", "MPIR_", "MPICH_", "FI_", "UCX_", "OPAL_")
"""Prefixes of variables that mpirun sets for its processes; all others are the rank's."""
PATIENCE = 120.0
ENDED = 1.0
"""Seconds by which ranks that mpirun killed report later than those that failed."""
NAME = "mpi-worker"
PROGRAM = (sys.executable, "-S", "-E", os.path.abspath(__file__))


def prepare(directory: str, settings: Mapping[str, Any]) -> None:
    """Write the settings and programs of one incarnation; only this user can read them."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    _write(os.path.join(directory, SETTINGS), json.dumps(settings), 0o600)
    for program in (RUN_RANK, REMOTE_SHELL):
        arguments = [*PROGRAM, program, directory]
        _write(os.path.join(directory, program), f'#!/bin/sh\nexec {shlex.join(arguments)} "$@"\n', 0o700)


# In the worker's pod.


def serve_worker(directory: str) -> int:
    """Wait for the launcher, execute what it requests, and exit like the rank."""
    settings = _settings(directory)
    server = socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET)
    if server.family == socket.AF_INET6:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        server.setsockopt(socket.SOL_SOCKET, option, 1)
    server.bind(("", int(settings["port"])))
    server.listen(4)
    while True:
        peer, _ = server.accept()
        peer.settimeout(30.0)
        stream = FileStream(wire.lively(peer))
        try:
            stream.welcome(bytes.fromhex(settings["token"]), wire.MPI_WORKER)
            command = str(stream.receive()["command"])
        except (OSError, wire.WireError, KeyError, ValueError):
            stream.close()  # not the launcher
            continue
        peer.settimeout(None)
        code = _execute(stream, command)
        return _exit_code(directory, code)


def _exit_code(directory: str, code: int) -> int:
    """The rank's exit code. A rank that mpirun killed waits a moment, so that ranks that failed report first."""
    rank_code: Optional[int] = None
    try:
        with open(os.path.join(directory, EXIT), encoding="utf-8") as file:
            rank_code = int(file.read())
    except (OSError, ValueError):
        pass  # mpirun killed run_rank before it could write the code
    if rank_code is not None and rank_code not in (128 + signal.SIGTERM, 128 + signal.SIGKILL):
        return rank_code
    from longboat.runtime.agent import exit_causes, tracebacks

    settings = _settings(directory)
    if tracebacks.last(exit_causes.tail(settings["log"], int(settings["begins"]))) is not None:
        return 1
    time.sleep(ENDED)
    return rank_code or code or 1


def _execute(stream: FileStream, command: str) -> int:
    """Run mpirun's daemon and send back its output; it dies with the connection."""
    child = subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    signal.signal(signal.SIGTERM, lambda *_: None)  # the agent signals the daemon as well
    assert child.stdout is not None
    output, sources = child.stdout.fileno(), [child.stdout.fileno(), stream.socket.fileno()]
    try:
        while output in sources:
            ready, _, _ = select.select(sources, [], [])
            if stream.socket.fileno() in ready and not stream.socket.recv(4096):
                _end(child)
                sources.remove(stream.socket.fileno())
            if output in ready:
                data = os.read(output, 1 << 16)
                if not data:
                    sources.remove(output)
                elif stream.socket.fileno() in sources:
                    stream.send("said", n=len(data))
                    stream.socket.sendall(data)
        code = child.wait()
        stream.send("ended", code=code if code >= 0 else 128 - code)
    except OSError:
        _end(child)
        code = child.wait()
    return code if code >= 0 else 128 - code


def _end(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGTERM)
    except ProcessLookupError:
        pass


def run_rank(directory: str, command: List[str]) -> int:
    """Run the user's command with the rank's environment and log, and record its exit code."""
    settings = _settings(directory)
    env: Dict[str, str] = dict(settings["env"])
    env.update((name, value) for name, value in os.environ.items() if name.startswith(KEPT))
    env["LONGBOAT_MPI_SIZE"] = str(settings["size"])
    log = open_log(settings["log"])
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    syscalls.adopt_orphans()
    syscalls.become_relay()  # the daemon signals only this process; an agent that stops the run signals all
    parent, sigterm_sent = os.getpid(), False
    child = os.fork()
    if child == 0:
        try:
            os.setsid()  # signals to the daemon's group are ours to handle
            syscalls.die_with_parent(parent)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.chdir(settings["cwd"])
            os.execvpe(command[0], command, with_pid(env, command, os.getpid()))
        except OSError as error:
            os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        finally:
            os._exit(127)

    def stop(*_: object) -> None:
        nonlocal sigterm_sent
        if not sigterm_sent:
            sigterm_sent = True
            syscalls.ask_to_end(child)

    signal.signal(signal.SIGTERM, stop)
    for signum in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, lambda number, _frame: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
    while True:
        try:
            _, status = os.waitpid(child, 0)
            break
        except InterruptedError:
            continue
    code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    _write(os.path.join(directory, EXIT), str(code), 0o600)
    return code


# In the launcher's pod.


def remote_shell(directory: str, arguments: List[str]) -> int:
    """Stands in for ssh when mpirun calls it: [OPTION ...] HOST COMMAND ..."""
    settings = _settings(directory)
    while arguments and arguments[0].startswith("-"):
        arguments = arguments[1:]
    host, command = arguments[0], " ".join(arguments[1:])
    stream = _connect(host, int(settings["ports"][host]), bytes.fromhex(settings["token"]))
    if stream is None:
        sys.stderr.write(f"no response from {host} within {PATIENCE:g} s\n")
        return 255
    stream.send("launch", command=command)
    while True:
        try:
            message = stream.receive()
        except (OSError, wire.WireError):
            sys.stderr.write(f"the connection to {host} is lost\n")
            return 255
        if message["is"] == "ended":
            return int(message["code"])
        os.write(1, stream.bytes(int(message["n"])))


def _connect(host: str, port: int, token: bytes) -> Optional[FileStream]:
    due = time.monotonic() + PATIENCE
    while time.monotonic() < due:
        try:
            link = socket.create_connection((host, port), timeout=30.0)
            stream = FileStream(wire.lively(link))
            stream.join(token, wire.MPI_WORKER, "launcher")
            link.settimeout(None)
            return stream
        except (OSError, wire.WireError):
            time.sleep(0.1)  # its pod is not ready yet
    return None


def _settings(directory: str) -> Dict[str, Any]:
    with open(os.path.join(directory, SETTINGS), encoding="utf-8") as file:
        settings: Dict[str, Any] = json.load(file)
        return settings


def _write(path: str, text: str, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)


def main(arguments: List[str]) -> int:
    program, directory, rest = arguments[0], arguments[1], arguments[2:]
    if program == NAME:
        return serve_worker(directory)
    return run_rank(directory, rest) if program == RUN_RANK else remote_shell(directory, rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
