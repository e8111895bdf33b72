"""Checkpoints from any framework: a dict of arrays in, the same dict out.

    state = windlass.checkpoint.load()                 # None at the first start
    first = state.step + 1 if state else 0
    ...
    windlass.checkpoint.save({"w": w, "m": m}, step=step)

`save` copies the arrays and returns; a thread writes the copy to a temporary name, flushes it to
disk and renames it. Only then does the driver hear of it, and only when it has heard of every
part is the checkpoint one to resume from. A disk that is full costs the checkpoint, not the
training. At the end of the program `save` is waited for.

Ranks that each hold a piece of the model pass `shard=(number, count)`; otherwise one rank of the
gang saves (rank 0, as a rule). Files are safetensors: readable by everybody, and no pickle.

No framework is imported. Ships into strangers' images: standard library only, Python 3.9.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Tuple

from windlass import tensors

KEEP = 2


@dataclass(frozen=True)
class Checkpoint:
    """What `load` gives back."""

    step: int
    arrays: Dict[str, Any]
    """numpy arrays where numpy is installed, else memoryviews."""
    meta: Dict[str, Any]


def save(
    arrays: Mapping[str, Any],
    step: int,
    meta: Optional[Mapping[str, Any]] = None,
    shard: Tuple[int, int] = (0, 1),
    keep: int = KEEP,
    wait: bool = False,
) -> None:
    """Keep the arrays (and `meta`, anything that JSON can hold) as the state after `step`.

    keep: how many complete checkpoints stay on disk. wait: return when it is on disk.
    """
    directory = os.environ.get("WINDLASS_CHECKPOINT_DIR") or os.path.join(os.getcwd(), "checkpoints")
    number, count = shard
    if not 0 <= number < count:
        raise ValueError(f"shard=({number}, {count}): the number must be from 0 to {count - 1}")
    path = os.path.join(directory, f"step-{step:09d}", f"part-{number:05d}-of-{count:05d}.safetensors")
    text = {"windlass": json.dumps({"step": step, "meta": dict(meta or {})})}
    _writer.put(arrays, text, path, {"step": step, "part": number, "of": count, "keep": keep})
    if wait:
        _writer.wait()


def load(path: Optional[str] = None, shard: Tuple[int, int] = (0, 1)) -> Optional[Checkpoint]:
    """The state to go on from, or None. `path`: a checkpoint's directory instead of the run's own."""
    directory = path if path is not None else os.environ.get("WINDLASS_RESUME_FROM", "")
    if not directory:
        return None
    number, count = shard
    file = os.path.join(directory, f"part-{number:05d}-of-{count:05d}.safetensors")
    arrays, text = tensors.read(file)
    told = json.loads(text.get("windlass", "{}"))
    return Checkpoint(int(told.get("step", -1)), arrays, told.get("meta", {}))


def wait() -> None:
    """Until everything that was saved is on disk."""
    _writer.wait()


class _Writer:
    """One copy in memory, one thread that writes it."""

    def __init__(self) -> None:
        self._staging = bytearray()
        self._thread: Optional[threading.Thread] = None
        self._pid = os.getpid()

    def put(self, arrays: Mapping[str, Any], text: Dict[str, str], path: str, record: Dict[str, Any]) -> None:
        self.wait()
        views = {name: tensors.view(value, name) for name, value in arrays.items()}
        header, size = tensors.header({name: (dtype, shape) for name, (dtype, shape, _) in views.items()}, text)
        if len(self._staging) < size:
            self._staging = bytearray(size)
        staging = memoryview(self._staging)
        at = 0
        for name in tensors.order({name: (dtype, shape) for name, (dtype, shape, _) in views.items()}):
            data = views[name][2]
            staging[at : at + data.nbytes] = data
            at += data.nbytes
        self._pid = os.getpid()
        self._thread = threading.Thread(
            target=self._write, args=(header, staging[:size], path, record), name="windlass-checkpoint"
        )
        self._thread.start()

    def wait(self) -> None:
        if self._thread is not None and self._pid == os.getpid():
            self._thread.join()
        self._thread = None

    def _write(self, header: bytes, data: memoryview, path: str, record: Dict[str, Any]) -> None:
        began = time.monotonic()
        unfinished = f"{path}.{os.getpid()}.new"
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(unfinished, "wb", buffering=0) as file:
                _write_all(file.fileno(), memoryview(header))
                _write_all(file.fileno(), data)
                os.fsync(file.fileno())
            os.replace(unfinished, path)
            _flush_directory(os.path.dirname(path))
        except OSError as error:
            try:
                os.unlink(unfinished)
            except OSError:
                pass
            _tell({"step": record["step"], "error": f"{error.strerror or error}"})
            return
        seconds = round(time.monotonic() - began, 3)
        _tell({**record, "path": path, "bytes": len(header) + len(data), "seconds": seconds})


def _write_all(fd: int, data: memoryview) -> None:
    while len(data):
        data = data[os.write(fd, data[: 1 << 26]) :]


def _flush_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _tell(record: Dict[str, Any]) -> None:
    from windlass._rank import append

    append({"t": round(time.time(), 6), "checkpoint": record})


_writer = _Writer()
atexit.register(_writer.wait)
