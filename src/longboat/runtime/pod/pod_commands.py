"""What a laptop asks of a run, inside its pods: streams of what is new, a stop, a command beside a rank.

It is started by an exec of the cluster, so whoever may do that has proven to be allowed. It imports
little: it is started together with the driver, and each takes the other's time.

`read` writes blocks: a line of JSON, and as many bytes as its `n` says. {"path", "at", "n"} is
a piece of a file; {"beat"} says that nothing is new; {"end"} that all was sent. Logs are sent
before the journal's lines that were there when they were looked at, so that a reader never
learns of an end before the words that led to it.
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
"""How often files are looked at: while they grow, and once they have been quiet for some seconds."""
BEAT = 3.0
PATIENCE = 30.0
"""Seconds that a stop waits for a driver that is about to come."""
ANEW = (run_layout.PLAN, run_layout.VERDICT)
"""Files that are not appended to but written anew, under another inode."""


def read(words: List[str]) -> int:
    """One word of JSON: {"files": [path], "logs": bool, "follow": bool, "at": {path: offset}}. `-`: it is the first
    line of the input, for a word can be too long for a command line."""
    asked: Dict[str, Any] = json.loads(sys.stdin.readline() if words[0] == "-" else words[0])
    out = sys.stdout.buffer
    offsets: Dict[str, int] = dict(asked.get("at", {}))
    written: Dict[str, int] = {}
    over = False
    beat = grown = time.monotonic()
    while True:
        sent = False
        events = os.path.join(names.RUN, run_layout.JOURNAL)
        until = _size(events)
        over = _over()
        for path in _wanted(asked):
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
        if not asked.get("follow") or over and not sent:
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


def stop(words: List[str]) -> int:
    """Who asks, and `now` for a stop without grace. Exit code 3: the run has ended."""
    from longboat.runtime import driver_lock

    due = time.monotonic() + PATIENCE
    while True:
        pid = driver_lock.holder(names.RUN)
        if pid <= 0 and _ended():
            return 3
        with open(os.path.join(names.RUN, run_layout.STOP), "w", encoding="utf-8") as file:
            file.write(words[0])
        if pid > 0:
            os.kill(pid, signal.SIGQUIT if "now" in words[1:] else signal.SIGINT)
        if pid > 0 or time.monotonic() > due:
            return 0  # whoever drives next finds it written down
        time.sleep(0.1)


def _ended() -> bool:
    from longboat.runtime import journal

    return journal.last(names.RUN).get("ev") == "run.ended"


def beside(words: List[str]) -> int:
    """The terminal's kind, then a command: executed with the environment and directory of the rank in this pod."""
    from longboat.runtime.agent import syscalls

    return _beside([(pid, _environ(pid)) for pid in syscalls.process_tree().get(1, [])], words[0], words[1:])


def beside_rank(words: List[str]) -> int:
    """The same in a pod with several ranks: the first word says which."""
    from longboat.runtime.agent import syscalls

    tree = syscalls.process_tree()
    ranks = [(pid, _environ(pid)) for agent in tree.get(1, []) for pid in tree.get(agent, [])]
    return _beside([each for each in ranks if each[1].get("LONGBOAT_RANK") == words[0]], words[1], words[2:])


def _environ(pid: int) -> Dict[str, str]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = (entry.partition(b"=") for entry in file.read().split(b"\0") if entry)
            return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    except OSError:
        return {}


def _beside(ranks: List[Tuple[int, Dict[str, str]]], term: str, command: List[str]) -> int:
    if not ranks:
        sys.stderr.write("no process of the rank runs here\n")
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


WORDS: Mapping[str, Callable[[List[str]], int]] = {
    "read": read,
    "stop": stop,
    "beside": beside,
    "beside-rank": beside_rank,
}


def _wanted(asked: Mapping[str, Any]) -> List[str]:
    """The journal comes last."""
    found = [path for path in asked.get("files", ()) if path != run_layout.JOURNAL and _inside(path)]
    if asked.get("logs"):
        found += list(_walk(os.path.join(names.RUN, "logs")))
    return found + [path for path in asked.get("files", ()) if path == run_layout.JOURNAL]


def _inside(path: str) -> bool:
    real = os.path.realpath(os.path.join(names.RUN, path))
    return real.startswith(os.path.realpath(names.RUN) + os.sep)


def _walk(top: str) -> Iterator[str]:
    for folder, folders, found in os.walk(top):
        folders.sort()
        for name in sorted(found):
            if not name.startswith("."):
                yield os.path.relpath(os.path.join(folder, name), names.RUN)


def _over() -> bool:
    """The journal's last line says so; only its end is read."""
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
