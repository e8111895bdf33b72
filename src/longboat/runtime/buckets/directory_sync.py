"""A directory in sync with a prefix of a bucket: filled before a rank starts, sent after it has ended.

Several agents of one machine may share the directory: a lock lets one of them work at a time, and a file next to the
directory records what the bucket holds, so that nothing is fetched or sent twice. A file is fetched next to the
directory, too: a killed process leaves nothing in it that a later send would take for the user's. Files deleted in the
directory stay in the bucket.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import urllib.parse
from typing import Callable, Dict, Iterator, List, Mapping, Tuple, Union

from longboat.runtime import atomic_file
from longboat.runtime.buckets.bucket_http import BucketError
from longboat.runtime.buckets.gcs import Gcs
from longboat.runtime.buckets.s3 import S3

Bucket = Union[S3, Gcs]
KINDS: Mapping[str, Callable[[str, Mapping[str, str]], Bucket]] = {"s3": S3, "gs": Gcs}
Known = Dict[str, List[int]]
"""Relative path -> size and modification time of a file that is the same in the bucket."""


def opened(url: str, environ: Mapping[str, str]) -> Tuple[Bucket, str]:
    """The bucket of `s3://bucket/prefix`, and the prefix, which ends with / or is empty."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in KINDS or not parts.netloc:
        raise BucketError(f"{url} is not a bucket URL; use s3://BUCKET/PREFIX or gs://BUCKET/PREFIX")
    prefix = parts.path.strip("/")
    return KINDS[parts.scheme](parts.netloc, environ), prefix + "/" if prefix else ""


def fill(url: str, directory: str, environ: Mapping[str, str]) -> int:
    """Fetch the bucket's files unless that was done already; returns their number."""
    with _held(directory) as known:
        if known is not None:
            return 0
        bucket, prefix = opened(url, environ)
        unfinished = _beside(directory, "new")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished)
        known, count = {}, 0
        for obj in bucket.list(prefix):
            name = obj.key[len(prefix) :]
            path = os.path.normpath(os.path.join(directory, name))
            if not name or name.endswith("/") or not path.startswith(os.path.join(directory, "")):
                continue  # a folder marker, or a name that leads out of the directory
            os.makedirs(os.path.dirname(path), exist_ok=True)
            _fetch(bucket, obj.key, unfinished)
            os.replace(unfinished, path)
            known[name] = _mark(path)
            count += 1
        _remember(directory, known)
        return count


def _fetch(bucket: Bucket, key: str, path: str) -> None:
    """Fetch a listed key. If it is gone, it was deleted meanwhile: the next list will not have it."""
    try:
        bucket.get(key, path)
    except BucketError as error:
        if error.status != 404:
            raise
        raise BucketError(f"{error} (it was listed a moment ago)") from None


def send(url: str, directory: str, environ: Mapping[str, str]) -> int:
    """Send new and changed files; returns their number."""
    with _held(directory) as known:
        known = known or {}
        bucket, prefix = opened(url, environ)
        count = 0
        for name, path in sorted(_files(directory)):
            mark = _mark(path)
            if known.get(name) != mark:
                bucket.put(prefix + name, path)
                known[name] = mark
                _remember(directory, known)
                count += 1
        return count


@contextlib.contextmanager
def _held(directory: str) -> Iterator[Union[Known, None]]:
    """Lock the directory; yields what is recorded about it, None if nothing is."""
    os.makedirs(directory, exist_ok=True)
    with open(_beside(directory, "lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            with open(_beside(directory, "json"), encoding="utf-8") as file:
                known = json.load(file)
        except (OSError, ValueError):
            known = None
        yield known


def _remember(directory: str, known: Known) -> None:
    atomic_file.write(_beside(directory, "json"), json.dumps(known))


def _beside(directory: str, ending: str) -> str:
    return f"{directory.rstrip('/')}.bucket-{ending}"


def _files(directory: str) -> Iterator[Tuple[str, str]]:
    for folder, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                yield os.path.relpath(path, directory).replace(os.sep, "/"), path


def _mark(path: str) -> List[int]:
    stats = os.stat(path)
    return [stats.st_size, stats.st_mtime_ns]
