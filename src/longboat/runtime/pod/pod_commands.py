"""Commands of the CLI inside a run's pods: stream what is new, stop the run, execute a command next to a rank.

The cluster starts them by exec, which also checks that the user may do that. Little is imported: they start at
the same time as the driver and would slow it down.

`read` writes blocks: a line of JSON, then as many bytes as its `n` says. {"path", "at", "n"} is a piece of a
file; {"beat"} says that nothing is new; {"end"} that everything was sent. Logs are sent before the journal
lines that existed when the logs were read, so that a reader never learns of an end before the lines that led
to it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, Tuple

from longboat.runtime import run_layout
from longboat.runtime.kube_client import names
from longboat.runtime.pod import idle_tracker

PIECE = 1 << 20
PAUSE = (0.02, 0.1)
"""Seconds between two looks at the files: while they grow, and after some quiet seconds."""
BEAT = 3.0
PATIENCE = 30.0
"""Seconds that a stop waits for a driver that is starting."""
ANEW = (run_layout.PLAN, run_layout.VERDICT)
"""Files that are replaced (a new inode), not appended to."""


def read(arguments: List[str]) -> int:
    """Stream files. The argument is JSON: {"files": [path], "logs": bool, "follow": bool, "at": {path: offset}}; with
    `-` it is the first line of stdin, because it can be too long for a command line."""
    request: Dict[str, Any] = json.loads(sys.stdin.readline() if arguments[0] == "-" else arguments[0])
    out = sys.stdout.buffer
    offsets: Dict[str, int] = dict(request.get("at", {}))
    written: Dict[str, int] = {}
    over = False
    beat = grown = time.monotonic()
    while True:
        sent = False
        events = os.path.join(names.RUN, run_layout.JOURNAL)
        until = _size(events)
        over = _over()
        for path in _wanted(request):
            if path in ANEW and written.get(path) != _inode(path):
                written[path] = _inode(path)
                offsets[path] = 0
            limit = until if path == run_layout.JOURNAL else _size(os.path.join(names.RUN, path))
            while offsets.get(path, 0) < limit:
                at = offsets.get(path, 0)
                with open(os.path.join(names.RUN, path), "rb") as file:
                    file.seek(at)
                    data = file.read(min(PIECE, limit - at))
                if not data:
                    break
                _block(out, {"path": path, "at": at, "n": len(data)}, data)
                offsets[path] = at + len(data)
                sent = True
        if not request.get("follow") or over and not sent:
            _block(out, {"end": True})
            return 0
        if not sent and time.monotonic() - beat > BEAT:
            _block(out, {"beat": True})
            idle_tracker.note()
        if sent or time.monotonic() - beat > BEAT:
            beat = time.monotonic()
        out.flush()
        if sent:
            grown = time.monotonic()
        else:
            time.sleep(min(max((time.monotonic() - grown) / 50, PAUSE[0]), PAUSE[1]))


def stop(arguments: List[str]) -> int:
    """Stop the run. Arguments: who stops it, and `now` to skip the grace period. Exit code 3: the run has ended."""
    from longboat.runtime import driver_lock

    due = time.monotonic() + PATIENCE
    while True:
        pid = driver_lock.holder(names.RUN)
        if pid <= 0 and _ended():
            return 3
        with open(os.path.join(names.RUN, run_layout.STOP), "w", encoding="utf-8") as file:
            file.write(arguments[0])
        if pid > 0:
            os.kill(pid, signal.SIGQUIT if "now" in arguments[1:] else signal.SIGINT)
        if pid > 0 or time.monotonic() > due:
            return 0  # the next driver reads the file
        time.sleep(0.1)


def _ended() -> bool:
    from longboat.runtime import journal

    return journal.last(names.RUN).get("ev") == "run.ended"


def execute(arguments: List[str]) -> int:
    """Execute a command with the environment and directory of this pod's rank. Arguments: TERM, then the command."""
    from longboat.runtime.agent import syscalls

    return _become([(pid, _environ(pid)) for pid in syscalls.process_tree().get(1, [])], arguments[0], arguments[1:])


def execute_for_rank(arguments: List[str]) -> int:
    """Like `execute`, in a pod with several ranks: the first argument is the rank."""
    from longboat.runtime.agent import syscalls

    tree = syscalls.process_tree()
    ranks = [(pid, _environ(pid)) for agent in tree.get(1, []) for pid in tree.get(agent, [])]
    mine = [(pid, env) for pid, env in ranks if env.get("LONGBOAT_RANK") == arguments[0]]
    return _become(mine, arguments[1], arguments[2:])


def _environ(pid: int) -> Dict[str, str]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = (entry.partition(b"=") for entry in file.read().split(b"\0") if entry)
            return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    except OSError:
        return {}


def _become(ranks: List[Tuple[int, Dict[str, str]]], term: str, command: List[str]) -> int:
    if not ranks:
        sys.stderr.write("error: no process of the rank runs in this pod\n")
        return 1
    pid, env = ranks[0]
    if term:
        env["TERM"] = term
    os.chdir(f"/proc/{pid}/cwd")
    try:
        os.execvpe(command[0], command, env)
    except OSError as error:
        sys.stderr.write(f"error: {command[0]}: {error.strerror}\n")
        return 127


COMMANDS: Mapping[str, Callable[[List[str]], int]] = {
    "read": read,
    "stop": stop,
    "exec": execute,
    "exec-rank": execute_for_rank,
}


def _wanted(request: Mapping[str, Any]) -> List[str]:
    """Paths to send, the journal last."""
    paths = [path for path in request.get("files", ()) if path != run_layout.JOURNAL and _inside(path)]
    if request.get("logs"):
        paths += list(_walk(os.path.join(names.RUN, "logs")))
    return paths + [path for path in request.get("files", ()) if path == run_layout.JOURNAL]


def _inside(path: str) -> bool:
    real = os.path.realpath(os.path.join(names.RUN, path))
    return real.startswith(os.path.realpath(names.RUN) + os.sep)


def _walk(top: str) -> Iterator[str]:
    for folder, folders, files in os.walk(top):
        folders.sort()
        for name in sorted(files):
            if not name.startswith("."):
                yield os.path.relpath(os.path.join(folder, name), names.RUN)


def _over() -> bool:
    """Whether the journal's last line is the end of the run; reads only the end of the file."""
    try:
        with open(os.path.join(names.RUN, run_layout.JOURNAL), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 65536))
            lines = file.read().splitlines()
        return bool(lines) and json.loads(lines[-1]).get("ev") == "run.ended"
    except (OSError, ValueError):
        return False


def _inode(path: str) -> int:
    try:
        return os.stat(os.path.join(names.RUN, path)).st_ino
    except OSError:
        return 0


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _block(out: Any, head: Dict[str, Any], data: bytes = b"") -> None:
    out.write(json.dumps(head).encode() + b"\n" + data)
    out.flush()
