"""Copies a rank's files between its pod and the driver's file server, where they share no disk.

Runs as a thread of the agent: the loop that keeps the lease must never wait for a disk or a network. It
sends every byte of the ranks' logs, sends checkpoints and reports when one has arrived (only then does it
exist), and fetches the files that a new incarnation needs. A local log starts with a hole as long as what
earlier pods sent, so offsets are the same as in the run's log.

What it cannot send it keeps and retries: the driver may be away. A file that it cannot read, or that the
file server cannot store, is skipped with a line on stderr, because a retry would not help. Links to files
are sent as files; links to directories are not followed. Each incarnation claims its paths on the file
server: once another agent has claimed them for a later one, what is left here is rejected and discarded.
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

from longboat.runtime import atomic_file, wire
from longboat.runtime.agent.file_transfer import PIECE, FileClient, FileRefused, StaleIncarnation
from longboat.runtime.gang.gang_events import NO_INCARNATION, Incarnation

PAUSE = (0.02, 0.25)
"""Seconds between two looks at the logs: while they grow, and while they are quiet."""
RETRY = 0.5
LOOK = 2.0
"""Seconds between two looks for new TensorBoard files."""
EVENTS = ".tfevents."
"""Part of the name of a TensorBoard file, which is only ever appended to."""
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
"""Errors of a disk, never of a connection: files cannot be stored here."""
KEPT = 2
"""Checkpoints whose local copy is kept."""


class FileSync:
    """The thread that sends and fetches a rank's files."""

    def __init__(self, address: str, token: bytes, name: str, run_dir: str, wake: Callable[[], None]) -> None:
        self._address, self._token, self._name, self._run_dir, self._wake = address, token, name, run_dir, wake
        self._lock = threading.Lock()
        self._wakeup = threading.Event()
        self._jobs: Deque[Tuple[str, Callable[[FileClient], None], Any]] = collections.deque()
        self._busy = False
        self._tails: Dict[str, int] = {}
        self._known: Dict[str, Tuple[int, int]] = {}
        self._done: List[Any] = []
        self._sent_steps: List[str] = []
        self._board, self._next_look = "", 0.0
        self._incarnation = NO_INCARNATION
        threading.Thread(target=self._work, daemon=True).start()

    # Requests of the agent; none of them blocks.

    def begin(
        self,
        logs: Sequence[str],
        trees: Sequence[str],
        token: Any,
        board: str = "",
        incarnation: Incarnation = NO_INCARNATION,
    ) -> None:
        """Prepare an incarnation: continue its logs, fetch directories of the run, then report the token as done. If
        they cannot be stored here, report ("unable", (what the token is about, the error)) instead. board: directory
        of TensorBoard files, which are sent as they grow."""

        def fetch(client: FileClient) -> None:
            client.claim(incarnation)
            self._incarnation = incarnation
            for log in logs:
                self._adopt(client, log)
            for tree in trees:
                self._fetch(client, tree)
            self._board = board

        self._put("begin", fetch, token)

    def send(self, path: str, token: Any) -> None:
        """Send a finished file of a checkpoint; done once the file server has it."""
        self._put("checkpoint", lambda client: self._send(client, path), token)

    def send_tree(self, path: str) -> None:
        self._put("tree", lambda client: self._send_tree(client, path), None)

    def forget_checkpoints(self) -> None:
        """Drop checkpoints that are not being sent yet: the incarnation was killed for another rank's failure."""
        with self._lock:
            self._jobs = collections.deque(job for job in self._jobs if job[0] != "checkpoint")

    def done(self) -> List[Any]:
        """Tokens of the requests finished since the last call."""
        with self._lock:
            tokens, self._done = self._done, []
            return tokens

    @property
    def settled(self) -> bool:
        """Nothing is left to send or fetch."""
        with self._lock:
            if self._jobs or self._busy or self._done:
                return False
            tails = list(self._tails.items())
        return all(_size(path) <= sent for path, sent in tails)

    def hurry(self) -> None:
        self._wakeup.set()

    # The thread.

    def _put(self, kind: str, job: Callable[[FileClient], None], token: Any) -> None:
        with self._lock:
            self._jobs.append((kind, job, token))
        self._wakeup.set()

    def _work(self) -> None:
        client: Optional[FileClient] = None
        pause = PAUSE[0]
        while True:
            try:
                if client is None:
                    client = FileClient(self._address, self._token, self._name)
                    if self._incarnation != NO_INCARNATION:
                        client.claim(self._incarnation)
                self._look(client)
                busy = self._tail(client)
                busy = self._job(client) or busy
            except StaleIncarnation as stale:
                self._discard(stale)
                continue
            except (OSError, wire.WireError, ValueError) as error:
                if client is not None:
                    client.close()
                client = None
                sys.stderr.write(f"cannot copy files to or from {self._address}, retrying: {error}\n")
                time.sleep(RETRY)
                continue
            pause = PAUSE[0] if busy else min(pause * 1.5, PAUSE[1])
            if not busy:
                self._wakeup.wait(pause)
                self._wakeup.clear()

    def _job(self, client: FileClient) -> bool:
        with self._lock:
            if not self._jobs:
                return False
            kind, job, token = self._jobs[0]
            self._busy = True
        try:
            job(client)
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

    def _discard(self, stale: StaleIncarnation) -> None:
        """Discard what is left of an incarnation that was replaced; one that begins may still get its files."""
        sys.stderr.write(f"remaining files are not sent: {stale}\n")
        with self._lock:
            self._jobs = collections.deque(job for job in self._jobs if job[0] == "begin")
            self._tails.clear()
        self._board, self._incarnation = "", NO_INCARNATION
        self._wake()

    def _tail(self, client: FileClient) -> bool:
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
                client.append(self._inside(path), sent, data)
                if path.endswith(".log"):
                    _print(data)
                sent += len(data)
                moved = True
                with self._lock:
                    self._tails[path] = sent
        if moved:
            self._wake()
        return moved

    def _look(self, client: FileClient) -> None:
        """Find new TensorBoard files: users watch them while the rank runs."""
        if not self._board or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK
        for folder, _, names in os.walk(self._board):
            for path in (os.path.join(folder, name) for name in names if EVENTS in name):
                with self._lock:
                    known = path in self._tails
                start = 0 if known else client.end(self._inside(path))[0]
                if not known and start <= _size(path):  # a longer one belongs to another rank
                    with self._lock:
                        self._tails[path] = start

    # Jobs.

    def _adopt(self, client: FileClient, path: str) -> None:
        with self._lock:
            if path in self._tails:
                return
        start, last = client.end(self._inside(path))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        with os.fdopen(fd, "wb") as file:
            if os.fstat(fd).st_size < start:  # a hole stands for what is in the run's directory already
                file.seek(start - 1)
                file.write(last)
        with self._lock:
            self._tails[path] = start

    def _fetch(self, client: FileClient, tree: str) -> None:
        for name, size, at in client.list(self._inside(tree)):
            target = os.path.join(self._run_dir, name)
            here = self._known.get(name) == (size, at) and _size(target) == size
            if not here and client.get(name, target):
                self._known[name] = (size, at)

    def _send(self, client: FileClient, path: str) -> None:
        file = _opened(path)
        if file is None:
            return  # removed by the rank meanwhile, or unreadable: it will never be resumed from
        with file:
            try:
                at = client.put(self._inside(path), file)
            except FileRefused as refusal:
                _skipped(path, str(refusal))
                return
            self._known[self._inside(path)] = (os.fstat(file.fileno()).st_size, at)
        step = os.path.dirname(path)
        if step not in self._sent_steps:
            self._sent_steps.append(step)
        while len(self._sent_steps) > KEPT:
            import shutil

            shutil.rmtree(self._sent_steps.pop(0), ignore_errors=True)

    def _send_tree(self, client: FileClient, tree: str) -> None:
        for folder, folders, names in os.walk(tree, onerror=_report_unreadable):
            for name in folders:
                if os.path.islink(os.path.join(folder, name)):
                    _skipped(os.path.join(folder, name), "a link to a directory")
            for name in sorted(names):
                if not atomic_file.is_unfinished(name):
                    self._send_changed(client, os.path.join(folder, name))

    def _send_changed(self, client: FileClient, path: str) -> None:
        file = _opened(path)
        if file is None:
            return
        with file:
            inside, stats = self._inside(path), os.fstat(file.fileno())
            if self._known.get(inside) == (stats.st_size, stats.st_mtime_ns):
                return
            try:
                at = client.put(inside, file)
            except FileRefused as refusal:
                _skipped(path, str(refusal))
                return
        with contextlib.suppress(OSError):  # another user's file: sent again after the next incarnation
            os.utime(path, ns=(at, at))
        self._known[inside] = (stats.st_size, at)

    def _inside(self, path: str) -> str:
        return os.path.relpath(path, self._run_dir)


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _opened(path: str) -> Optional[BinaryIO]:
    """Open a file to send; None if it is gone, not a regular file, or unreadable."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        error.filename = path
        _report_unreadable(error)
        return None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        _skipped(path, "not a regular file")
        return None
    return os.fdopen(fd, "rb")


def _report_unreadable(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError) or os.path.islink(error.filename):
        _skipped(str(error.filename), str(error.strerror))


def _skipped(path: str, why: str) -> None:
    sys.stderr.write(f"{path} is not copied to the run: {why}\n")


def _print(data: bytes) -> None:
    """Print for `kubectl logs`; errors are ignored."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except OSError:
        pass
