"""Server pods of a Deployment as ranks of the run: numbers, start and end events, and logs.

A pod gets the lowest free number. The lines of its container are read from the cluster and appended to the log of
that number, each line once: every line has a timestamp, and every second the last timestamp and the log's size are
written to an index file next to the logs. A driver that comes back truncates the log there and continues. A pod that
starts and ends while there is no driver leaves no log.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from typing import Any, Callable, Dict, Optional, Set

from longboat.runtime import atomic_file, run_layout
from longboat.runtime.driver.services import News, ServiceEvent
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import Api, ApiError, Manifest
from longboat.runtime.kube_client.http_client import BadResponse
from longboat.runtime.light_dataclasses import dataclass
from longboat.runtime.pod import pod_status
from longboat.runtime.seat import Seat

INDEX = ".servers.json"
RETRY = 1.0
"""Seconds before a broken log stream is read again."""
KEEP = 1.0
"""Seconds between two writes of a changed index."""


@dataclass
class _Container:
    """A container that was seen running."""

    id: str
    restart: int
    ended: bool = False


class ServerLogs:
    """Numbers, events and logs of server pods."""

    def __init__(self, api: Api, run_dir: str, tell: Callable[[News], None]) -> None:
        self._api, self._run_dir, self._emit = api, run_dir, tell
        self._lock = threading.RLock()
        self._containers: Dict[str, _Container] = {}
        self._indexes: Dict[str, Dict[str, Dict[str, Any]]] = {}
        """Stage -> pod -> its number, the timestamp of its last copied line, and where that ends in the log."""
        self._changed: Set[str] = set()
        """Stages whose index is not written yet."""
        self._readers: Dict[str, threading.Thread] = {}
        self._closed = False
        threading.Thread(target=self._write_indexes, daemon=True).start()

    def rank(self, pod: str) -> int:
        """The number of a pod; -1: none yet."""
        with self._lock:
            return next((int(book[pod]["rank"]) for book in self._indexes.values() if pod in book), -1)

    def close(self) -> None:
        """Stop writing."""
        with self._lock:
            self._closed = True
            for stage in self._changed:
                self._write_index(stage)

    # Events of pods.

    def saw(self, stage: str, pod: Manifest) -> None:
        name = str(pod["metadata"]["name"])
        with self._lock:
            rank = self._number(stage, name)
            state = pod_status.container(pod, names.SERVER)
            incarnation = self._containers.get(name)
            running = (state.get("state") or {}).get("running") is not None
            if (
                incarnation is not None
                and not incarnation.ended
                and (str(state.get("containerID")) != incarnation.id or not running)
            ):
                self._end(stage, pod, rank, incarnation)
            if running and (incarnation is None or incarnation.id != str(state.get("containerID"))):
                self._start(stage, pod, rank, state)

    def gone(self, stage: str, pod: Manifest) -> None:
        name = str(pod["metadata"]["name"])
        with self._lock:
            incarnation = self._containers.pop(name, None)
            if incarnation is not None and not incarnation.ended:
                self._end(stage, pod, self._number(stage, name), incarnation)
        reader = self._readers.pop(name, None)
        if reader is not None:
            reader.join(timeout=2.0)
        with self._lock:
            self._index(stage).pop(name, None)
            self._write_index(stage)

    def _start(self, stage: str, pod: Manifest, rank: int, state: Manifest) -> None:
        name = str(pod["metadata"]["name"])
        incarnation = self._containers[name] = _Container(
            str(state.get("containerID")), int(state.get("restartCount", 0))
        )
        keys = {
            "pod": name,
            "node": str(pod["spec"].get("nodeName", "")),
            "ip": str(pod.get("status", {}).get("podIP", "")),
            "log_offset": self._size(stage, rank),
            "report_offset": 0,
        }
        self._emit(ServiceEvent("rank.started", stage, {**self._of(pod, rank), "restart": incarnation.restart, **keys}))
        reader = threading.Thread(target=self._read, args=(stage, name, rank, incarnation), daemon=True)
        self._readers[name] = reader
        reader.start()

    def _end(self, stage: str, pod: Manifest, rank: int, incarnation: _Container) -> None:
        incarnation.ended = True
        leaving = bool(pod["metadata"].get("deletionTimestamp"))
        _, cause = pod_status.failures(pod, Seat(stage, names.SERVER, rank))
        failed = cause is not None and not leaving
        outcome = {"state": "failed" if failed else "stopped", "cause": cause if failed else None}
        code = cause.exit_code if failed and cause is not None and cause.exit_code >= 0 else None
        self._emit(
            ServiceEvent(
                "rank.ended", stage, {**self._of(pod, rank), "restart": incarnation.restart, "code": code, **outcome}
            )
        )

    def _of(self, pod: Manifest, rank: int) -> Dict[str, Any]:
        number = str((pod["metadata"].get("annotations") or {}).get(names.MODEL, "")) or "0"
        return {"role": names.SERVER, "rank": rank, "gen": int(number)}

    # The index files.

    def _index(self, stage: str) -> Dict[str, Dict[str, Any]]:
        if stage not in self._indexes:
            try:
                with open(self._index_path(stage), encoding="utf-8") as file:
                    self._indexes[stage] = dict(json.load(file))
            except (OSError, ValueError):
                self._indexes[stage] = {}
            for entry in self._indexes[stage].values():
                if self._size(stage, int(entry["rank"])) > int(entry["size"]):
                    os.truncate(
                        run_layout.log(self._run_dir, stage, names.SERVER, int(entry["rank"])), int(entry["size"])
                    )
        return self._indexes[stage]

    def _size(self, stage: str, rank: int) -> int:
        """Size of a number's log."""
        try:
            return os.path.getsize(run_layout.log(self._run_dir, stage, names.SERVER, rank))
        except OSError:
            return 0

    def _number(self, stage: str, pod: str) -> int:
        book = self._index(stage)
        if pod not in book:
            taken = {int(entry["rank"]) for entry in book.values()}
            rank = next(n for n in range(len(taken) + 1) if n not in taken)
            book[pod] = {"rank": rank, "at": "", "size": self._size(stage, rank)}
            self._write_index(stage)
        return int(book[pod]["rank"])

    def _write_indexes(self) -> None:
        while not self._closed:
            time.sleep(KEEP)
            with self._lock:
                changed, self._changed = self._changed, set()
                for stage in changed:
                    self._write_index(stage)

    def _write_index(self, stage: str) -> None:
        path = self._index_path(stage)
        with contextlib.suppress(OSError):  # a full disk ends the run anyway
            os.makedirs(os.path.dirname(path), exist_ok=True)
            atomic_file.write(path, json.dumps(self._index(stage)))

    def _index_path(self, stage: str) -> str:
        return os.path.join(self._run_dir, "logs", stage, INDEX)

    # Reading logs.

    def _read(self, stage: str, pod: str, rank: int, incarnation: _Container) -> None:
        """Copy what one container prints, until it has ended."""
        path = run_layout.log(self._run_dir, stage, names.SERVER, rank)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        while not self._closed:
            ended = incarnation.ended
            try:
                self._follow(stage, pod, path)
            except ApiError as error:
                if not error.transient:
                    return
            except (OSError, BadResponse):
                pass
            if ended:
                return
            time.sleep(RETRY)

    def _follow(self, stage: str, pod: str, path: str) -> None:
        with self._lock:
            entry = self._index(stage).get(pod)
            last = str(entry["at"]) if entry else ""
        begin = last[:19] + "Z" if last else ""
        with open(path, "ab", buffering=0) as log:
            for line in self._api.log(pod, names.SERVER, begin):
                stamp, _, text = line.partition(b" ")
                timestamp = _timestamp(stamp)
                if timestamp is None or timestamp <= last:
                    continue
                with self._lock:
                    if self._closed:
                        return
                    log.write(text if text.endswith(b"\n") else text + b"\n")
                    if pod in self._index(stage):
                        self._index(stage)[pod].update(at=timestamp, size=log.tell())
                        self._changed.add(stage)


def _timestamp(stamp: bytes) -> Optional[str]:
    """A line's timestamp as sortable text; all lines are in UTC or all in the node's time zone."""
    text = stamp.decode("ascii", "replace")
    seconds, _, rest = text.partition(".")
    if len(seconds) < 19 or seconds[4] != "-":
        return None
    digits = "".join(c for c in rest[:9] if c.isdigit())
    return f"{seconds[:19]}.{digits:0<9}"
