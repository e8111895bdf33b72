"""`python -m longboat.runtime.buckets NAME=URL[:ro] ... -- COMMAND ...`: a rank's command between a fetch and a send.

The mounts are filled from their buckets, the command runs, what it wrote is sent, and this program
ends as the command did. What could not be sent is told, and is the end of a command that succeeded; why another one
failed matters more. Whoever asks it to end asks the command as well; what was written until then is still sent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import Any, List, Mapping, NamedTuple, NoReturn

from longboat.runtime.buckets import directory_sync
from longboat.runtime.buckets.bucket_http import PASSING, BucketError
from longboat.runtime.buckets.bucket_mounts import CANNOT, COMPLAINT, READ_ONLY, REFUSED
from longboat.runtime.rank_env import variable


class BucketMount(NamedTuple):
    name: str
    url: str
    read_only: bool

    def directory(self, environ: Mapping[str, str]) -> str:
        return environ[f"LONGBOAT_MOUNT_{variable(self.name)}"]


class BucketFailure(NamedTuple):
    code: int
    complaint: str


def main(argv: List[str], environ: Mapping[str, str]) -> int:
    at = argv.index("--")
    mounts = [_given(word) for word in argv[:at]]
    for mount in mounts:
        code = _complain(_try(mount, "fetched", "from", directory_sync.fill, environ))
        if code:
            return code
    status = _run(argv[at + 1 :])
    written = [mount for mount in mounts if not mount.read_only]
    failed = [failure for mount in written for failure in _try(mount, "sent", "to", directory_sync.send, environ)]
    code = _complain(failed)
    if os.WIFSIGNALED(status):
        _die_by(os.WTERMSIG(status))
    return os.WEXITSTATUS(status) or code


def _given(word: str) -> BucketMount:
    name, _, url = word.partition("=")
    return BucketMount(name, url[: -len(READ_ONLY)], True) if url.endswith(READ_ONLY) else BucketMount(name, url, False)


def _try(mount: BucketMount, done: str, to: str, work: Any, environ: Mapping[str, str]) -> List[BucketFailure]:
    """Nothing when it went well."""
    try:
        count = int(work(mount.url, mount.directory(environ), environ))
    except OSError as error:
        hopeless = isinstance(error, BucketError) and error.status and error.status not in PASSING
        complaint = f"{COMPLAINT}{mount.name} could not be {done}: {error}"
        return [BucketFailure(REFUSED if hopeless else CANNOT, complaint)]
    if count:
        print(f"storage {mount.name}: {count} files {done} {to} {mount.url}", flush=True)
    return []


def _complain(failed: List[BucketFailure]) -> int:
    """The exit code that belongs to the last complaint; 0 without any."""
    for failure in failed:
        print(failure.complaint, file=sys.stderr, flush=True)
    return failed[-1].code if failed else 0


def _run(command: List[str]) -> int:
    """Runs it and waits. What asks us to stop is not passed on: the command has got it too."""
    stops = (signal.SIGTERM, signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, stops)
            os.execvp(command[0], command)
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
    with contextlib.suppress(OSError):  # nobody handles SIGKILL, so nobody may say so either
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
