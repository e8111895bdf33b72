"""MPI where each worker has a pod of its own: mpirun reaches workers through their agents, without SSH or root.

The worker's agent runs a berth as the rank's process: it waits for the launcher, which proves that
it holds the run's token, and executes what mpirun wants on that host (its daemon). The daemon in
turn executes `stand`, which becomes the user's command with the rank's own environment and log.
The berth ends as the rank ended, so the gang sees each MPI process like any other rank.

    mpirun ── reach HOST COMMAND ── berth (in the worker's pod) ── mpirun's daemon ── stand ── the user's command

This file is all three programs (`python -S -E berth.py WORD DIRECTORY ...`). Ships into strangers'
images: standard library only, Python 3.9.
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

SETTINGS, EXIT, STAND, REACH = "settings.json", "exit", "stand", "reach"
KEPT = ("PMI_", "PMIX_", "PMI", "OMPI_", "PRTE_", "HYDI_", "HYDRA_", "MPI_", "MPIR_", "MPICH_", "FI_", "UCX_", "OPAL_")
"""Beginnings of variables that mpirun sets for a process of its own; all others are the rank's."""
PATIENCE = 120.0
ENDED = 1.0
"""Seconds by which those whom mpirun ended report after those who failed."""
NAME = "berth"
PROGRAM = (sys.executable, "-S", "-E", os.path.abspath(__file__))


def prepare(directory: str, settings: Mapping[str, Any]) -> None:
    """Lays down what the programs of one life need; only this user can read it."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    _write(os.path.join(directory, SETTINGS), json.dumps(settings), 0o600)
    for word in (STAND, REACH):
        words = [*PROGRAM, word, directory]
        _write(os.path.join(directory, word), f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', 0o700)


# In the worker's pod.


def berth(directory: str) -> int:
    """Waits for the launcher, executes what it asks for, and ends as the rank ended."""
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
            command = _greeted(stream, bytes.fromhex(settings["token"]))
        except (OSError, wire.WireError, KeyError, ValueError):
            stream.close()  # whoever that was
            continue
        peer.settimeout(None)
        code = _executed(stream, command)
        return _as_the_rank(directory, code)


def _as_the_rank(directory: str, code: int) -> int:
    """The rank's own exit code. One that mpirun ended waits a moment: whoever failed by itself is to be heard first."""
    own: Optional[int] = None
    try:
        with open(os.path.join(directory, EXIT), encoding="utf-8") as file:
            own = int(file.read())
    except (OSError, ValueError):
        pass  # mpirun was quicker to end it, and who watched it, than it was itself
    if own is not None and own not in (128 + signal.SIGTERM, 128 + signal.SIGKILL):
        return own
    from longboat.runtime.agent import exit_causes, tracebacks

    settings = _settings(directory)
    if tracebacks.last(exit_causes.tail(settings["log"], int(settings["begins"]))) is not None:
        return 1
    time.sleep(ENDED)
    return own or code or 1


def _greeted(stream: FileStream, token: bytes) -> str:
    ours = wire.nonce()
    stream.send("hello", nonce=ours)
    message = stream.receive()
    nonces = f"{ours}{message['nonce']}"
    if not wire.proven(message.get("proof"), token, "agent", nonces, NAME):
        raise wire.WireError("not the launcher of this run")
    stream.send("welcome", proof=wire.proof(token, "driver", nonces, NAME))
    return str(stream.receive()["command"])


def _executed(stream: FileStream, command: str) -> int:
    """mpirun's daemon, with its output on the way back; it dies with the connection."""
    child = subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    signal.signal(signal.SIGTERM, lambda *_: None)  # the agent asks the daemon as well
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


def stand(directory: str, command: List[str]) -> int:
    """Becomes the user's command in the rank's own environment and log, and writes down how it ended."""
    settings = _settings(directory)
    env: Dict[str, str] = dict(settings["env"])
    env.update((name, value) for name, value in os.environ.items() if name.startswith(KEPT))
    env["LONGBOAT_MPI_SIZE"] = str(settings["size"])
    log = os.open(settings["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    syscalls.adopt_orphans()
    syscalls.become_relay()  # the daemon asks this process alone; an agent that stops the run, all of them
    parent, asked = os.getpid(), False
    child = os.fork()
    if child == 0:
        try:
            os.setsid()  # whoever signals the daemon's group is answered by us
            syscalls.die_with_parent(parent)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.chdir(settings["cwd"])
            os.execvpe(command[0], command, env)
        except OSError as error:
            os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        finally:
            os._exit(127)

    def ask(*_: object) -> None:
        nonlocal asked
        if not asked:
            asked = True
            syscalls.ask_to_end(child)

    signal.signal(signal.SIGTERM, ask)
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


def reach(directory: str, words: List[str]) -> int:
    """What mpirun calls in the place of ssh: [OPTION ...] HOST COMMAND ..."""
    settings = _settings(directory)
    while words and words[0].startswith("-"):
        words = words[1:]
    host, command = words[0], " ".join(words[1:])
    stream = _dialled(host, int(settings["ports"][host]), bytes.fromhex(settings["token"]))
    if stream is None:
        sys.stderr.write(f"{host} does not answer\n")
        return 255
    stream.send("launch", command=command)
    while True:
        try:
            message = stream.receive()
        except (OSError, wire.WireError):
            sys.stderr.write(f"{host} is gone\n")
            return 255
        if message["is"] == "ended":
            return int(message["code"])
        os.write(1, stream.bytes(int(message["n"])))


def _dialled(host: str, port: int, token: bytes) -> Optional[FileStream]:
    due = time.monotonic() + PATIENCE
    while time.monotonic() < due:
        try:
            link = socket.create_connection((host, port), timeout=30.0)
            stream = FileStream(wire.lively(link))
            nonces = f"{stream.receive()['nonce']}{(ours := wire.nonce())}"
            stream.send("berth", nonce=ours, proof=wire.proof(token, "agent", nonces, NAME))
            if wire.proven(stream.receive().get("proof"), token, "driver", nonces, NAME):
                link.settimeout(None)
                return stream
            return None
        except (OSError, wire.WireError):
            time.sleep(0.1)  # its pod has it ready in a moment
    return None


def _settings(directory: str) -> Dict[str, Any]:
    with open(os.path.join(directory, SETTINGS), encoding="utf-8") as file:
        found: Dict[str, Any] = json.load(file)
        return found


def _write(path: str, text: str, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)


def main(words: List[str]) -> int:
    if words[0] == "berth":
        return berth(words[1])
    return stand(words[1], words[2:]) if words[0] == STAND else reach(words[1], words[2:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
