"""Checkpoints from any framework: a dict of arrays in, the same dict out.

    state = longboat.checkpoint.load()                 # None at the first start
    first = state.step + 1 if state else 0
    ...
    longboat.checkpoint.save({"w": w, "m": m}, step=step)

`save` copies the arrays and returns; a thread writes the copy to a temporary name, flushes it to disk and renames it.
Only then is it reported to the driver, and only when every part is reported can a run resume from the checkpoint. A
full disk costs the checkpoint, not the training. The program waits for unfinished saves before it exits. The thread
also computes each file's checksum, which `load` compares.

Ranks that each hold a piece of the model pass `shard=(number, count)`; otherwise one rank of the gang saves, usually
rank 0. Files are safetensors: every framework can read them, and there is no pickle.

No framework is imported.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import mmap
import operator
import os
import threading
import time
from typing import Any, Dict, Mapping, Optional, Tuple

from longboat.runtime import atomic_file, run_layout, tensors
from longboat.runtime.light_dataclasses import dataclass
from longboat.runtime.rank_api import append

KEEP = 2
LEFT_FREE = 1 << 20
"""Bytes that a checkpoint leaves free on the disk: the journal and the logs need some."""


@dataclass(frozen=True)
class Checkpoint:
    """What `load` returns."""

    step: int
    arrays: Dict[str, Any]
    """numpy arrays if numpy is installed, else memoryviews. Types that numpy lacks: PyTorch's or ml_dtypes'."""
    meta: Dict[str, Any]


def save(
    arrays: Mapping[str, Any],
    step: int,
    meta: Optional[Mapping[str, Any]] = None,
    shard: Tuple[int, int] = (0, 1),
    keep: int = KEEP,
    wait: bool = False,
) -> None:
    """Save the arrays (and `meta`, anything that JSON can hold) as the state after `step`.

    keep: number of complete checkpoints to keep on disk. wait: return only when it is on disk. Outside of Longboat
    nothing is written, because no run would resume from it.
    """
    step, (number, count) = operator.index(step), shard
    if not 0 <= number < count:
        raise ValueError(f"shard=({number}, {count}): the number must be from 0 to {count - 1}")
    directory = os.environ.get("LONGBOAT_CHECKPOINT_DIR")
    if not directory:
        return
    path = os.path.join(directory, f"step-{step:09d}", run_layout.part(number, count))
    try:
        about = {"step": step, "round": int(os.environ.get("LONGBOAT_ROUND", "1")), "meta": dict(meta or {})}
        text = {tensors.CHECKSUM: tensors.UNSET, "longboat": json.dumps(about)}
    except (TypeError, ValueError) as error:
        raise TypeError(f"meta: {error}; pass arrays as arrays, and convert numbers with int() or float()") from None
    _writer.put(arrays, text, path, {"step": step, "part": number, "of": count, "keep": keep})
    if wait:
        _writer.wait()


def load(path: Optional[str] = None, shard: Tuple[int, int] = (0, 1)) -> Optional[Checkpoint]:
    """The state to continue from, or None. `path`: a checkpoint's directory instead of the run's own.

    Raises ValueError if the file is damaged, or if the checkpoint has another number of shards."""
    directory = _directory(path)
    if not directory:
        return None
    number, count = shard
    file = os.path.join(directory, run_layout.part(number, count))
    saved = shards(directory)
    if saved not in (0, count) and not os.path.exists(file):
        raise ValueError(
            f"{directory} has {saved} shards, and shard=({number}, {count}) was requested; load each of them with "
            f"shard=(0, {saved}) to ({saved - 1}, {saved}) and split the arrays yourself, or resume with {saved} ranks"
        )
    arrays, text = tensors.read(file)
    if tensors.CHECKSUM not in text:
        raise ValueError(f"{file} is damaged: its checksum is missing")
    header = json.loads(text["longboat"])
    return Checkpoint(int(header["step"]), arrays, header["meta"])


def shards(path: Optional[str] = None) -> int:
    """The number of shards of the checkpoint that `load` would read; 0 if there is none."""
    directory = _directory(path)
    counts = (run_layout.part_numbers(name)[1] for name in os.listdir(directory)) if directory else ()
    return max(counts, default=0)


def _directory(path: Optional[str]) -> str:
    return path if path is not None else os.environ.get("LONGBOAT_RESUME_FROM", "")


def wait() -> None:
    """Wait until everything that was saved is on disk."""
    _writer.wait()


class _Writer:
    """One copy in memory, and one thread that writes it. The next `put` waits until it is written."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._busy = threading.Lock()
        self._staging: Optional[mmap.mmap] = None
        self._thread: Optional[threading.Thread] = None

    def put(self, arrays: Mapping[str, Any], text: Dict[str, str], path: str, record: Dict[str, Any]) -> None:
        self._after_fork()
        with self._busy:
            self._join()
            views = {name: tensors.view(value, name) for name, value in arrays.items() if _valid_name(name)}
            described = {name: (dtype, shape) for name, (dtype, shape, _) in views.items()}
            header, size = tensors.header(described, text)
            staging = self._staging_memory(size)
            at = 0
            for name in tensors.order(described):
                data = views[name][2]
                staging[at : at + data.nbytes] = data
                at += data.nbytes
            work = (header, staging[:size], path, record)
            self._thread = threading.Thread(target=_write, args=work, name="longboat-checkpoint")
            try:
                self._thread.start()
            except RuntimeError:  # an interpreter that is shutting down starts no threads
                self._thread = None
                _write(*work)

    def wait(self) -> None:
        self._after_fork()
        with self._busy:
            self._join()

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _staging_memory(self, size: int) -> memoryview:
        """Memory that is reused for every checkpoint: only the first one pays for fresh pages."""
        if self._staging is None or len(self._staging) < size:
            self._staging = None  # freed before the larger one is allocated
            self._staging = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                try:
                    self._staging.madvise(mmap.MADV_HUGEPAGE)
                except OSError:
                    pass
        return memoryview(self._staging)

    def _after_fork(self) -> None:
        """Reset in a forked child: it has neither the parent's thread nor may it use its lock."""
        if self._pid != os.getpid():
            self.__init__()  # type: ignore[misc]


def _valid_name(name: Any) -> bool:
    if not isinstance(name, str) or name == tensors.METADATA:
        raise TypeError(f"{name!r} is not a valid array name: use a str other than {tensors.METADATA!r}")
    return True


def _write(header: bytes, data: memoryview, path: str, record: Dict[str, Any]) -> None:
    """Write a checkpoint; runs in the thread. Any error costs this checkpoint, and is reported."""
    started = time.monotonic()
    directory = os.path.dirname(path)
    try:
        os.makedirs(directory, exist_ok=True)
        _check_space(directory, len(header) + len(data))
        with atomic_file.replacing(path, durable=True) as unfinished, open(unfinished, "wb", buffering=0) as file:
            checksum = tensors.write(file.fileno(), header, data)
        atomic_file.flush(os.path.dirname(directory))
    except Exception as error:
        with contextlib.suppress(OSError):
            os.rmdir(directory)
        _report({"step": record["step"], "error": getattr(error, "strerror", None) or f"{error}"})
        return
    seconds = round(time.monotonic() - started, 3)
    _report({**record, "path": path, "bytes": len(header) + len(data), "crc32": checksum, "seconds": seconds})


def _check_space(directory: str, size: int) -> None:
    """Do not start a checkpoint that would fill the disk: others write there too."""
    free = run_layout.free_bytes(directory)
    if free is not None and free < size + LEFT_FREE:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _report(record: Dict[str, Any]) -> None:
    append({"t": round(time.time(), 6), "checkpoint": record})


_writer = _Writer()
atexit.register(_writer.wait)
