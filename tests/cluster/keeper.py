"""The first process of a cluster's box: it starts programs when asked, and the kernel ends them all when it ends.

The box is a set of namespaces: processes, mounts and network. Every daemon, container, mount, bridge and packet rule of
the cluster is made inside it, so killing this one process leaves none of them. It knows nothing of Kubernetes.

Requests come over a socket, one JSON object per connection:
`{"do": "spawn", "name": …, "argv": […], "env": {…}, "log": …}`, `{"do": "send", "name": …, "number": 9}`,
`{"do": "wait", "name": …, "timeout": …}`, `{"do": "programs"}`. So does the answer; `error` in it says what went wrong.
"""

import fcntl
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Programs write here by habit. In the box they see the machine's files, and what they write is gone with the box.
_LAYERED = ("/etc", "/var")


class Keeper:
    """Named programs and how they ended."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pids: dict[str, int] = {}
        self._ended: dict[int, int] = {}

    def spawn(self, name: str, argv: list[str], env: dict[str, str], log: str) -> dict[str, Any]:
        with self._changed:
            if self._alive(name):
                return {"error": f"{name} already runs"}
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            try:
                actions = [(os.POSIX_SPAWN_DUP2, nothing, 0), (os.POSIX_SPAWN_DUP2, output, 1)]
                actions += [(os.POSIX_SPAWN_DUP2, output, 2)]
                program = shutil.which(argv[0], path=env.get("PATH")) or argv[0]
                pid = os.posix_spawn(program, argv, env, file_actions=actions, setsid=True)
                self._forget(pid)
                self._pids[name] = pid
            except OSError as error:
                return {"error": f"{argv[0]}: {error.strerror}"}
            finally:
                os.close(output)
                os.close(nothing)
            return {"pid": self._pids[name]}

    def _forget(self, pid: int) -> None:
        """The kernel gives numbers anew: a program that had this one before is over, and its end is not another's."""
        self._ended.pop(pid, None)
        self._pids = {name: known for name, known in self._pids.items() if known != pid}

    def send(self, name: str, number: int) -> dict[str, Any]:
        with self._changed:
            if self._alive(name):
                os.kill(self._pids[name], number)
            return {}

    def wait(self, name: str, timeout: float) -> dict[str, Any]:
        """Its exit status, or None while it runs."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alive(name), timeout)
            return {"status": self._ended.get(self._pids.get(name, 0))}

    def programs(self) -> dict[str, Any]:
        with self._changed:
            return {
                "programs": {name: {"pid": pid, "status": self._ended.get(pid)} for name, pid in self._pids.items()}
            }

    def _alive(self, name: str) -> bool:
        return name in self._pids and self._pids[name] not in self._ended

    def reap(self) -> None:
        """For ever. Orphans of containers come here too; only named programs are remembered."""
        while True:
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                time.sleep(0.05)
                continue
            with self._changed:
                if pid in self._pids.values():
                    self._ended[pid] = os.waitstatus_to_exitcode(status)
                self._changed.notify_all()

    def serve(self, listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rwb") as stream:
            request = json.loads(stream.readline())
            verbs: dict[str, Callable[..., dict[str, Any]]] = {
                "spawn": self.spawn,
                "send": self.send,
                "wait": self.wait,
                "programs": self.programs,
            }
            try:
                reply = verbs[request.pop("do")](**request)
            except (OSError, KeyError, TypeError) as error:
                reply = {"error": f"the keeper cannot do that: {error!r}"}
            stream.write(json.dumps(reply).encode() + b"\n")


def furnish(home: str) -> None:
    """Make the box's mounts its own. `unshare` cut them off from the machine's already.

    Only below `home` and /tmp can the machine's files be written from inside: nothing can be left behind elsewhere.
    """
    layers = [
        f"mount -t overlay -o lowerdir={path},upperdir=/run/box{path}/new,workdir=/run/box{path}/work overlay {path}"
        for path in _LAYERED
    ]
    kept = shlex.quote(home)
    script = [
        "mount --make-rshared /",  # among themselves the box's mounts must spread: containers ask for it
        "mount -t proc proc /proc",
        "mount -t tmpfs -o mode=755 tmpfs /run",
        f"mkdir -p /run/box/home {' '.join(f'/run/box{path}/new /run/box{path}/work' for path in _LAYERED)}",
        f"mount --bind {kept} /run/box/home",
        *layers,
        f"mount --bind /run/box/home {kept}",
        "mount --bind /tmp /tmp",
        "mount -o remount,bind,ro /",
        "ip link set lo up",
    ]
    subprocess.run(["sh", "-ec", "\n".join(script)], check=True)


def main() -> None:
    directory, lock = Path(sys.argv[1]), int(sys.argv[2])
    # The inherited descriptor alone holds the lock, so no program started here may get it.
    fcntl.fcntl(lock, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    # Still the machine's /proc: the pid as the machine knows it.
    outside = os.readlink("/proc/self")
    (directory / "box.pid.new").write_text(outside)
    (directory / "box.pid.new").rename(directory / "box.pid")
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    furnish(sys.argv[3])
    keeper = Keeper()
    listener = socket.socket(socket.AF_UNIX)
    here = os.open(directory, os.O_PATH)
    listener.bind(f"/proc/self/fd/{here}/box.sock.new")  # by descriptor: socket paths may not be long
    os.close(here)
    listener.listen(64)
    (directory / "box.sock.new").rename(directory / "box.sock")  # whoever sees it is answered
    threading.Thread(target=keeper.serve, args=(listener,), daemon=True).start()
    keeper.reap()


if __name__ == "__main__":
    main()
