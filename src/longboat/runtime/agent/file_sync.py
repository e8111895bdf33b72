"""Carries a rank's files between its pod and the driver's depot, where they have no disk in common.

A thread of the agent: the loop that keeps the lease must never wait for a disk or a network. It
follows the ranks' logs and sends every byte; sends checkpoints and says when one has arrived, for
only then does it exist; fetches what a new life begins with. A local log begins with a hole as
long as what earlier pods sent, so that a place in it is a place in the run's log.

What it cannot send it keeps and tries again: the driver may be away. What it cannot read, or the depot has no
place for, no second try would mend: that is left out, and said on stderr. Links to files arrive as files; links to
directories are not followed. Every life claims its place in the depot: once another agent has done so for a later one,
nothing of what is left here is taken, and it is dropped.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import os
import stat
import sys
import threading
import time
from typing import Any, BinaryIO, Callable, Deque, Dict, List, Optional, Sequence, Tuple

from longboat.runtime import wire
from longboat.runtime.agent.file_transfer import PIECE, FileClient, FileRefused, StaleIncarnation
from longboat.runtime.gang.gang_events import NO_INCARNATION, Incarnation

PAUSE = (0.02, 0.25)
"""How often logs are looked at: while they grow, and while they are quiet."""
RETRY = 0.5
LOOK = 2.0
"""Seconds between two looks for new files of TensorBoard."""
EVENTS = ".tfevents."
"""In the name of a file of TensorBoard, which is only ever appended to."""
NO_ROOM = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.EIO,
        errno.EEXIST,
        errno.ENOTDIR,
        errno.EISDIR,
    }
)
"""What a disk says and no connection does: files that cannot be kept here."""
KEPT = 2
"""Checkpoints whose local copy is kept."""


class FileSync:
    def __init__(self, address: str, token: bytes, name: str, run_dir: str, wake: Callable[[], None]) -> None:
        self._address, self._token, self._name, self._run_dir, self._wake = address, token, name, run_dir, wake
        self._lock = threading.Lock()
        self._bell = threading.Event()
        self._jobs: Deque[Tuple[str, Callable[[FileClient], None], Any]] = collections.deque()
        self._busy = False
        self._tails: Dict[str, int] = {}
        self._known: Dict[str, Tuple[int, int]] = {}
        self._done: List[Any] = []
        self._sent_steps: List[str] = []
        self._board, self._next_look = "", 0.0
        self._incarnation = NO_INCARNATION
        threading.Thread(target=self._work, daemon=True).start()

    # What the agent asks for; none of it waits.

    def begin(
        self,
        logs: Sequence[str],
        trees: Sequence[str],
        token: Any,
        board: str = "",
        incarnation: Incarnation = NO_INCARNATION,
    ) -> None:
        """Before a life: logs are taken over, trees of the run are fetched; then the token is done. Where they cannot
        be kept that is done instead, as ("unable", what the token is about and the error). board: where files of
        TensorBoard may appear, which are sent as they grow."""

        def fetch(depot: FileClient) -> None:
            depot.claim(incarnation)
            self._incarnation = incarnation
            for log in logs:
                self._adopt(depot, log)
            for tree in trees:
                self._fetch(depot, tree)
            self._board = board

        self._put("begin", fetch, token)

    def send(self, path: str, token: Any) -> None:
        """A finished file of a checkpoint; done once it is in the depot."""
        self._put("checkpoint", lambda depot: self._send(depot, path), token)

    def send_tree(self, path: str) -> None:
        self._put("tree", lambda depot: self._send_tree(depot, path), None)

    def forget_checkpoints(self) -> None:
        """The life is over by order: checkpoints that have not been begun to be sent are not needed."""
        with self._lock:
            self._jobs = collections.deque(job for job in self._jobs if job[0] != "checkpoint")

    def done(self) -> List[Any]:
        """Tokens of what has been carried since the last call."""
        with self._lock:
            found, self._done = self._done, []
            return found

    @property
    def settled(self) -> bool:
        """Nothing is left to carry."""
        with self._lock:
            if self._jobs or self._busy or self._done:
                return False
            tails = list(self._tails.items())
        return all(_size(path) <= sent for path, sent in tails)

    def hurry(self) -> None:
        self._bell.set()

    # The thread.

    def _put(self, kind: str, job: Callable[[FileClient], None], token: Any) -> None:
        with self._lock:
            self._jobs.append((kind, job, token))
        self._bell.set()

    def _work(self) -> None:
        depot: Optional[FileClient] = None
        pause = PAUSE[0]
        while True:
            try:
                if depot is None:
                    depot = FileClient(self._address, self._token, self._name)
                    if self._incarnation != NO_INCARNATION:
                        depot.claim(self._incarnation)
                self._look(depot)
                busy = self._tail(depot)
                busy = self._job(depot) or busy
            except StaleIncarnation as stale:
                self._drop(stale)
                continue
            except (OSError, wire.WireError, ValueError) as error:
                if depot is not None:
                    depot.close()
                depot = None
                sys.stderr.write(f"carrying files broke off, trying again: {error}\n")
                time.sleep(RETRY)
                continue
            pause = PAUSE[0] if busy else min(pause * 1.5, PAUSE[1])
            if not busy:
                self._bell.wait(pause)
                self._bell.clear()

    def _job(self, depot: FileClient) -> bool:
        with self._lock:
            if not self._jobs:
                return False
            kind, job, token = self._jobs[0]
            self._busy = True
        try:
            job(depot)
        except OSError as error:
            if kind == "begin" and error.errno in NO_ROOM:
                error.filename = error.filename or self._run_dir
                self._finish(job, ("unable", (token[1], error)))
            raise
        except StaleIncarnation as stale:
            unable = ("unable", (token[1], OSError(errno.ESTALE, str(stale)))) if kind == "begin" else None
            self._finish(job, unable)
            raise
        finally:
            with self._lock:
                self._busy = False
        self._finish(job, token)
        return True

    def _finish(self, job: Callable[[FileClient], None], token: Any) -> None:
        with self._lock:
            if self._jobs and self._jobs[0][1] is job:
                self._jobs.popleft()
            if token is not None:
                self._done.append(token)
        self._wake()

    def _drop(self, stale: StaleIncarnation) -> None:
        """All that is left of a life whose place is taken; one that begins may still have its own."""
        sys.stderr.write(f"what is left here is not carried: {stale}\n")
        with self._lock:
            self._jobs = collections.deque(job for job in self._jobs if job[0] == "begin")
            self._tails.clear()
        self._board, self._incarnation = "", NO_INCARNATION
        self._wake()

    def _tail(self, depot: FileClient) -> bool:
        moved = False
        with self._lock:
            tails = list(self._tails.items())
        for path, sent in tails:
            size = _size(path)
            while sent < size:
                file = _opened(path)
                if file is None:
                    with self._lock:
                        self._tails[path] = size
                    break
                with file:
                    file.seek(sent)
                    data = file.read(min(PIECE, size - sent))
                if not data:
                    break
                depot.append(self._inside(path), sent, data)
                if path.endswith(".log"):
                    _show(data)
                sent += len(data)
                moved = True
                with self._lock:
                    self._tails[path] = sent
        if moved:
            self._wake()
        return moved

    def _look(self, depot: FileClient) -> None:
        """New files of TensorBoard: whoever looks at them does not want to wait for the rank's end."""
        if not self._board or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK
        for folder, _, names in os.walk(self._board):
            for path in (os.path.join(folder, name) for name in names if EVENTS in name):
                with self._lock:
                    known = path in self._tails
                start = 0 if known else depot.size(self._inside(path))
                if not known and start <= _size(path):  # a longer one is another rank's
                    with self._lock:
                        self._tails[path] = start

    # Jobs.

    def _adopt(self, depot: FileClient, path: str) -> None:
        with self._lock:
            if path in self._tails:
                return
        start = depot.size(self._inside(path))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "ab") as file:
            if os.fstat(file.fileno()).st_size < start:
                file.truncate(start)
        with self._lock:
            self._tails[path] = start

    def _fetch(self, depot: FileClient, tree: str) -> None:
        for name, size, at in depot.list(self._inside(tree)):
            target = os.path.join(self._run_dir, name)
            here = self._known.get(name) == (size, at) and _size(target) == size
            if not here and depot.get(name, target):
                self._known[name] = (size, at)

    def _send(self, depot: FileClient, path: str) -> None:
        file = _opened(path)
        if file is None:
            return  # the rank has removed it meanwhile, or nobody can read it: it will never be chosen
        with file:
            try:
                at = depot.put(self._inside(path), file)
            except FileRefused as refusal:
                _left_out(path, str(refusal))
                return
            self._known[self._inside(path)] = (os.fstat(file.fileno()).st_size, at)
        step = os.path.dirname(path)
        if step not in self._sent_steps:
            self._sent_steps.append(step)
        while len(self._sent_steps) > KEPT:
            import shutil

            shutil.rmtree(self._sent_steps.pop(0), ignore_errors=True)

    def _send_tree(self, depot: FileClient, tree: str) -> None:
        for folder, folders, names in os.walk(tree, onerror=_unread):
            for name in folders:
                if os.path.islink(os.path.join(folder, name)):
                    _left_out(os.path.join(folder, name), "a link to a directory")
            for name in sorted(names):
                if not name.endswith(".part"):
                    self._send_changed(depot, os.path.join(folder, name))

    def _send_changed(self, depot: FileClient, path: str) -> None:
        file = _opened(path)
        if file is None:
            return
        with file:
            inside, found = self._inside(path), os.fstat(file.fileno())
            if self._known.get(inside) == (found.st_size, found.st_mtime_ns):
                return
            try:
                at = depot.put(inside, file)
            except FileRefused as refusal:
                _left_out(path, str(refusal))
                return
        with contextlib.suppress(OSError):  # a file of another user: it is sent again after the next life
            os.utime(path, ns=(at, at))
        self._known[inside] = (found.st_size, at)

    def _inside(self, path: str) -> str:
        return os.path.relpath(path, self._run_dir)


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _opened(path: str) -> Optional[BinaryIO]:
    """A file to be sent; None if it is gone, no regular file, or cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        error.filename = path
        _unread(error)
        return None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        _left_out(path, "not a regular file")
        return None
    return os.fdopen(fd, "rb")


def _unread(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError) or os.path.islink(error.filename):
        _left_out(str(error.filename), str(error.strerror))


def _left_out(path: str, why: str) -> None:
    sys.stderr.write(f"{path} is not carried to the run: {why}\n")


def _show(data: bytes) -> None:
    """For `kubectl logs`; a reader that does not read is not waited for any longer than the kernel does."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except OSError:
        pass
