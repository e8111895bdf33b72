"""`python -m longboat.runtime.buckets NAME=URL[:ro] ... -- COMMAND ...`: a rank's command between download and upload.

Fills the mounts from their buckets, runs the command, uploads what it wrote, and exits like the command. A failed
upload is reported, and fails a command that succeeded; for a command that failed, its own cause matters more. Stop
signals reach the command as well; what it wrote until then is still uploaded.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import Any, List, Mapping, NamedTuple, NoReturn

from longboat.runtime.buckets import directory_sync
from longboat.runtime.buckets.bucket_http import PASSING, BucketError
from longboat.runtime.buckets.bucket_mounts import CANNOT, READ_ONLY, REFUSED
from longboat.runtime.rank_env import variable, with_pid


class BucketMount(NamedTuple):
    """A mount that is backed by a bucket."""

    name: str
    url: str
    read_only: bool

    def directory(self, environ: Mapping[str, str]) -> str:
        return environ[f"LONGBOAT_MOUNT_{variable(self.name)}"]


class BucketFailure(NamedTuple):
    """A failed download or upload."""

    code: int
    complaint: str


def main(argv: List[str], environ: Mapping[str, str]) -> int:
    at = argv.index("--")
    mounts = [_parse_mount(text) for text in argv[:at]]
    for mount in mounts:
        code = _report(_transfer(mount, "fetched", "from", directory_sync.fill, environ))
        if code:
            return code
    status = _run(argv[at + 1 :])
    written = [mount for mount in mounts if not mount.read_only]
    failed = [failure for mount in written for failure in _transfer(mount, "sent", "to", directory_sync.send, environ)]
    code = _report(failed)
    if os.WIFSIGNALED(status):
        _die_by(os.WTERMSIG(status))
    return os.WEXITSTATUS(status) or code


def _parse_mount(text: str) -> BucketMount:
    name, _, url = text.partition("=")
    return BucketMount(name, url[: -len(READ_ONLY)], True) if url.endswith(READ_ONLY) else BucketMount(name, url, False)


def _transfer(mount: BucketMount, done: str, to: str, work: Any, environ: Mapping[str, str]) -> List[BucketFailure]:
    """Fill or send a mount; returns the failure, if any."""
    try:
        count = int(work(mount.url, mount.directory(environ), environ))
    except OSError as error:
        hopeless = isinstance(error, BucketError) and error.status and error.status not in PASSING
        complaint = f"error: storage {mount.name} could not be {done}: {error}"
        return [BucketFailure(REFUSED if hopeless else CANNOT, complaint)]
    if count:
        print(f"storage {mount.name}: {count} files {done} {to} {mount.url}", flush=True)
    return []


def _report(failed: List[BucketFailure]) -> int:
    """Print the failures; returns the exit code of the last, 0 without any."""
    for failure in failed:
        print(failure.complaint, file=sys.stderr, flush=True)
    return failed[-1].code if failed else 0


def _run(command: List[str]) -> int:
    """Run the command and wait. Stop signals are not forwarded: the command gets them too."""
    stops = (signal.SIGTERM, signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, stops)
            os.execvpe(command[0], command, with_pid(os.environ, command, os.getpid()))
        except OSError as error:
            os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        finally:
            os._exit(127)
    for number in stops:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, stops)
    while True:
        try:
            return os.waitpid(child, 0)[1]
        except InterruptedError:
            continue


def _die_by(number: int) -> NoReturn:
    with contextlib.suppress(OSError):  # SIGKILL cannot be handled
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
