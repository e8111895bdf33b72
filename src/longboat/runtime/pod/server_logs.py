"""What a Deployment's pods are to a reader of the run: ranks with numbers, starts, ends and logs.

A pod is given the lowest number that no other has. What its container prints is read from the cluster and kept in the
log of that number, each line once: a line carries the moment at which it was written, and every second the last one
that was kept is remembered beside the logs, with where it ends. A driver that comes back cuts the log off there and
goes on behind it. A pod that begins and ends while there is no driver leaves no log.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Optional, Set

from longboat.runtime import run_layout
from longboat.runtime.driver.services import News, ServiceEvent
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import Api, ApiError, Manifest
from longboat.runtime.kube_client.http_client import BadResponse
from longboat.runtime.pod import pod_status

BOOK = ".servers.json"
AGAIN = 1.0
"""Seconds before a log is asked for again that broke off."""
KEEP = 1.0
"""Seconds between two times that a book which has changed is written."""


@dataclass
class _Life:
    """A container that was seen to run."""

    id: str
    restart: int
    ended: bool = False


class ServerLogs:
    def __init__(self, api: Api, run_dir: str, tell: Callable[[News], None]) -> None:
        self._api, self._run_dir, self._tell = api, run_dir, tell
        self._lock = threading.RLock()
        self._lives: Dict[str, _Life] = {}
        self._books: Dict[str, Dict[str, Dict[str, Any]]] = {}
        """Stage -> pod -> its number, the moment of the last line that was kept, and where in the log that ends."""
        self._changed: Set[str] = set()
        """Stages whose book is not written yet."""
        self._readers: Dict[str, threading.Thread] = {}
        self._closed = False
        threading.Thread(target=self._keep_books, daemon=True).start()

    def rank(self, pod: str) -> int:
        """The number of a pod; -1: it has none yet."""
        with self._lock:
            return next((int(book[pod]["rank"]) for book in self._books.values() if pod in book), -1)

    def close(self) -> None:
        """Nothing more is written down."""
        with self._lock:
            self._closed = True
            for stage in self._changed:
                self._keep(stage)

    # What is seen of pods.

    def saw(self, stage: str, pod: Manifest) -> None:
        name = str(pod["metadata"]["name"])
        with self._lock:
            rank = self._number(stage, name)
            state = pod_status.container(pod, names.SERVER)
            incarnation = self._lives.get(name)
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
            incarnation = self._lives.pop(name, None)
            if incarnation is not None and not incarnation.ended:
                self._end(stage, pod, self._number(stage, name), incarnation)
        reader = self._readers.pop(name, None)
        if reader is not None:
            reader.join(timeout=2.0)
        with self._lock:
            self._book(stage).pop(name, None)
            self._keep(stage)

    def _start(self, stage: str, pod: Manifest, rank: int, state: Manifest) -> None:
        name = str(pod["metadata"]["name"])
        incarnation = self._lives[name] = _Life(str(state.get("containerID")), int(state.get("restartCount", 0)))
        keys = {
            "pod": name,
            "node": str(pod["spec"].get("nodeName", "")),
            "ip": str(pod.get("status", {}).get("podIP", "")),
            "log_offset": self._size(stage, rank),
            "report_offset": 0,
        }
        self._tell(ServiceEvent("rank.started", stage, {**self._of(pod, rank), "restart": incarnation.restart, **keys}))
        reader = threading.Thread(target=self._read, args=(stage, name, rank, incarnation), daemon=True)
        self._readers[name] = reader
        reader.start()

    def _end(self, stage: str, pod: Manifest, rank: int, incarnation: _Life) -> None:
        incarnation.ended = True
        leaving = bool(pod["metadata"].get("deletionTimestamp"))
        _, cause = pod_status.fallen(pod, (stage, names.SERVER, rank))
        cause = replace(cause, stage=stage) if cause is not None else None
        failed = cause is not None and not leaving
        told = {"state": "failed" if failed else "stopped", "cause": cause if failed else None}
        code = cause.exit_code if failed and cause is not None and cause.exit_code >= 0 else None
        self._tell(
            ServiceEvent(
                "rank.ended", stage, {**self._of(pod, rank), "restart": incarnation.restart, "code": code, **told}
            )
        )

    def _of(self, pod: Manifest, rank: int) -> Dict[str, Any]:
        number = str((pod["metadata"].get("annotations") or {}).get(names.MODEL, "")) or "0"
        return {"role": names.SERVER, "rank": rank, "gen": int(number)}

    # The books.

    def _book(self, stage: str) -> Dict[str, Dict[str, Any]]:
        if stage not in self._books:
            try:
                with open(self._place(stage), encoding="utf-8") as file:
                    self._books[stage] = dict(json.load(file))
            except (OSError, ValueError):
                self._books[stage] = {}
            for entry in self._books[stage].values():
                if self._size(stage, int(entry["rank"])) > int(entry["size"]):
                    os.truncate(
                        run_layout.log(self._run_dir, stage, names.SERVER, int(entry["rank"])), int(entry["size"])
                    )
        return self._books[stage]

    def _size(self, stage: str, rank: int) -> int:
        """Of the log of a number."""
        try:
            return os.path.getsize(run_layout.log(self._run_dir, stage, names.SERVER, rank))
        except OSError:
            return 0

    def _number(self, stage: str, pod: str) -> int:
        book = self._book(stage)
        if pod not in book:
            taken = {int(entry["rank"]) for entry in book.values()}
            rank = next(n for n in range(len(taken) + 1) if n not in taken)
            book[pod] = {"rank": rank, "at": "", "size": self._size(stage, rank)}
            self._keep(stage)
        return int(book[pod]["rank"])

    def _keep_books(self) -> None:
        while not self._closed:
            time.sleep(KEEP)
            with self._lock:
                changed, self._changed = self._changed, set()
                for stage in changed:
                    self._keep(stage)

    def _keep(self, stage: str) -> None:
        path = self._place(stage)
        with contextlib.suppress(OSError):  # a full disk ends the run by itself
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path + ".new", "w", encoding="utf-8") as file:
                json.dump(self._book(stage), file)
            os.replace(path + ".new", path)

    def _place(self, stage: str) -> str:
        return os.path.join(self._run_dir, "logs", stage, BOOK)

    # Reading.

    def _read(self, stage: str, pod: str, rank: int, incarnation: _Life) -> None:
        """What one container prints, until it has ended."""
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
            time.sleep(AGAIN)

    def _follow(self, stage: str, pod: str, path: str) -> None:
        with self._lock:
            entry = self._book(stage).get(pod)
            last = str(entry["at"]) if entry else ""
        begin = last[:19] + "Z" if last else ""
        with open(path, "ab", buffering=0) as log:
            for line in self._api.log(pod, names.SERVER, begin):
                stamp, _, text = line.partition(b" ")
                moment = _moment(stamp)
                if moment is None or moment <= last:
                    continue
                with self._lock:
                    if self._closed:
                        return
                    log.write(text if text.endswith(b"\n") else text + b"\n")
                    if pod in self._book(stage):
                        self._book(stage)[pod].update(at=moment, size=log.tell())
                        self._changed.add(stage)


def _moment(stamp: bytes) -> Optional[str]:
    """The time of a line, so that a later one is a greater text; it is in UTC, or in the node's own zone all along."""
    text = stamp.decode("ascii", "replace")
    whole, _, rest = text.partition(".")
    if len(whole) < 19 or whole[4] != "-":
        return None
    digits = "".join(c for c in rest[:9] if c.isdigit())
    return f"{whole[:19]}.{digits:0<9}"
