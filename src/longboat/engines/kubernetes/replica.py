"""A replica of a cluster run's journal and logs on this machine, updated while a command watches the run.

Everything that reads runs reads directories, so a run in a cluster gets one here. A run's files only grow, so a replica
is updated by requesting what follows its end. It records which cluster the run is in and whether the run is alive, and
can be deleted at any time.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from longboat.engines.interface import KeptData
from longboat.engines.kubernetes import pending_pods, storage, submission
from longboat.engines.kubernetes.cluster import KILLED, Cluster, ListedRun, NoResponse, command, listed
from longboat.engines.kubernetes.pod_exec import FRAME, STDERR, STDOUT, PodExec
from longboat.manifests.run_objects import SubmitOptions, for_pods
from longboat.runs.store import Store
from longboat.runtime import atomic_file, filetree, journal, run_layout
from longboat.runtime.causes import CauseKind
from longboat.runtime.errors import FAILED, LongboatError
from longboat.runtime.kube_client.api import ApiError
from longboat.runtime.plan import Plan, from_json, to_json

if TYPE_CHECKING:
    from longboat.engines.kubernetes.pod_files import PodFiles

FILES = (journal.FILE, run_layout.PLAN, run_layout.VERDICT)
AGAIN = (0.08, 0.5)
"""Seconds between two attempts to reach the driver: while it may be starting, and later."""
STARTING = 10.0
SOON = 3.0
"""Seconds in which a driver normally starts."""
SILENCE = 20.0
"""Seconds without data after which a stream counts as dead."""
TRIES = 3
ARGUMENT_MAX = 1 << 16
"""Longest request that is sent as an argument, which drivers of every version accept; longer ones go to stdin."""
BOARD = re.compile(r"\.tfevents\.[^/]*$|/plugins/profile/.*[^/]$")
"""Files that TensorBoard reads."""
OVER = frozenset({"succeeded", "failed", "stopped", "gate_missed"})
UNDRIVEN = 120.0
"""Default time in seconds to wait for the driver of a run that was just resumed."""
LISTED = 15.0
"""Seconds in which a driver that journaled the run's end also updates the state in the list of runs."""


def home_of(home: str, cluster: Cluster) -> str:
    return os.path.join(home, "clusters", cluster.key)


class RunReplica:
    """The replica of one run."""

    def __init__(self, cluster: Cluster, home: str, run: str) -> None:
        self.cluster, self.run = cluster, run
        self.path = Path(home_of(home, cluster)) / "runs" / run
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.after = 0
        """Number of events in the journal when the run was last resumed."""
        self.problem: LongboatError | None = None
        self._shown = ""
        self._news = threading.Event()

    def wait(self, seconds: float) -> None:
        """Waits until the replica has grown, at most so many seconds."""
        self._news.wait(seconds)
        self._news.clear()

    def mark(self, alive: bool, created: float = 0.0, plan: str = "") -> None:
        """Records which cluster the run is in and whether it is alive; and its plan, if that is not here yet."""
        origin = {
            "alive": alive,
            "context": self.cluster.context,
            "namespace": self.cluster.namespace,
            "kubeconfig": os.environ.get("KUBECONFIG", ""),
        }
        atomic_file.write(self.path / run_layout.REPLICA, json.dumps(origin))
        if plan and not (self.path / run_layout.PLAN).exists():
            atomic_file.write(self.path / run_layout.PLAN, plan)
        if created:
            with contextlib.suppress(OSError):
                os.utime(self.path, (created, created))

    def is_complete(self) -> bool:
        """Whether the replica has the run's end. An end after which the run was resumed does not count."""
        events = journal.read(str(self.path))
        return len(events) > self.after and events[-1]["ev"] == "run.ended"

    @property
    def has_journal(self) -> bool:
        return (self.path / journal.FILE).exists()

    @property
    def is_restarting(self) -> bool:
        """The run was resumed, and its next driver has not written to the journal yet."""
        return 0 < self.after >= len(journal.read(str(self.path)))

    def sync(self, logs: bool = False) -> None:
        """Updates the replica once."""
        self.check_for_resume()
        if self.is_complete() and not logs:
            return
        for tries_left in reversed(range(TRIES)):
            try:
                self._stream({"files": list(FILES), "logs": logs, "follow": False})
                break
            except NoResponse:  # its pod may just be replaced; data that arrived is kept
                if not tries_left:
                    raise
                time.sleep(AGAIN[0])
        if self.is_complete():
            self.check_for_resume()

    def check_for_resume(self) -> None:
        """Notices a resume that this replica has not seen: the end that it has is then not the run's end."""
        root = self.cluster.api.find("ConfigMap", self.run)
        order = submission.order_of(root) if root is not None else ""
        # A run that is over stays over, even if it failed before a driver accepted the order.
        if root is None or not order or listed(root).state in OVER:
            return
        events = journal.read(str(self.path))
        accepted = [event["order"] for event in events if event["ev"].startswith("run.") and event.get("order")]
        if accepted[-1:] != [order]:
            self.after = len(events)
            self.mark(alive=True)

    def stop(self, by: str, now: bool, patience: float | None) -> bool:
        """Asks the driver to stop the run; False if nothing runs. Waits for a driver that is still starting."""
        due = time.monotonic() + (UNDRIVEN if patience is None else patience)
        while True:
            if not (self.is_waiting_for_driver() and self.is_restarting):
                try:
                    self.sync()
                    if self.is_complete():
                        return False
                    if self.cluster.stop(self.run, by, now):
                        return True
                except NoResponse:
                    if not self.is_restarting:
                        raise
                if not self.is_restarting:
                    return False
            if time.monotonic() > due:
                hint = f"longboat why {self.run}"
                raise LongboatError(f"{self.run} was resumed, but its driver did not start", hint, FAILED)
            time.sleep(AGAIN[0])

    def fetch_all(self, directory: str) -> None:
        """Copies a directory of the run with everything in it."""
        with self._files() as files:
            filetree.store(files.items(directory), str(self.path / directory))

    def fetch_board(self) -> None:
        """Copies new data that stages wrote for TensorBoard below their outputs."""
        with self._files() as files:
            try:
                there = {entry.path: entry.size for entry in files.entries("output", 99)}
            except LongboatError:
                return  # no stage has written anything
        at = {path: _size(self.path / path) for path in there if BOARD.search(path)}
        new = [path for path, size in at.items() if size != there[path]]
        if new:
            self._stream({"files": new, "logs": False, "follow": False}, {path: at[path] for path in new})

    def _files(self) -> PodFiles:
        from longboat.engines.kubernetes.pod_files import PodFiles

        return PodFiles(self.cluster, self.run, None)

    def resumed_at(self, events: int) -> None:
        """Records that the run is resumed with so many events in its journal: an end among them is not the end."""
        self.after = events
        self.mark(alive=True)

    def remove(self, force: bool = False, data: bool = False) -> tuple[list[str], list[KeptData]]:
        """Removes the run with all its objects, then this replica; a running one only by force. With `data`, also the
        storage created for it. Returns the data that was removed, and the data that was kept."""
        root = self.cluster.root(self.run) if force else self._ended()
        if root is not None and root.state not in OVER and not force:
            raise LongboatError(
                f"{self.run} is still running",
                f"stop it first: `longboat stop {self.run}`, or `longboat rm --force {self.run}`",
            )
        self.cluster.remove(self.run)
        if self.path.exists():  # a second removal finds nothing, and that is fine
            self.mark(alive=False)
            Store(self.path.parent.parent).remove(self.path)
        if root is None or not root.plan:
            return [], []
        try:
            return storage.left_by(self.cluster, from_json(root.plan), data)
        except ApiError as error:
            raise self.cluster.refusal(error) from None

    def _ended(self) -> ListedRun | None:
        """The run as the cluster lists it; if this replica has its end, waits until it is listed as ended."""
        self.check_for_resume()
        due = time.monotonic() + (LISTED if self.is_complete() else 0.0)
        while True:
            root = self.cluster.root(self.run)
            if root is None or root.state in OVER or time.monotonic() > due:
                return root
            time.sleep(AGAIN[0])

    def follow(self, logs: bool = True, say: Callable[[str], None] | None = None) -> None:
        """Updates the replica from now on, in a thread; reconnects until the run is over or removed."""
        threading.Thread(target=self._follow, args=(logs, say), daemon=True).start()

    def follow_if_running(self, logs: bool, say: Callable[[str], None] | None = None) -> None:
        """Updates the replica now, and keeps following if the run is not over."""
        with contextlib.suppress(NoResponse):  # `follow` tries again
            if not self.is_waiting_for_driver():
                self.sync(logs=logs)
        if not self.is_complete():
            self.follow(logs=logs, say=say)

    def _follow(self, logs: bool, say: Callable[[str], None] | None) -> None:
        started = time.monotonic()
        while True:
            try:
                if self.reachable:
                    self._stream({"files": list(FILES), "logs": logs, "follow": True})
                    if self.is_complete():
                        return
                elif time.monotonic() < started + SOON:
                    pass
                elif self.cluster.root(self.run) is None:
                    self.mark(alive=False)
                    return
                elif say is not None:
                    self._report_pending(say)
            except LongboatError as error:
                self.problem = error
            except (OSError, ApiError, ValueError):
                pass
            time.sleep(AGAIN[time.monotonic() > started + STARTING])

    def _report_pending(self, say: Callable[[str], None]) -> None:
        cause = pending_pods.driver(self.cluster.api, self.run)
        if cause is not None and cause.message != self._shown:
            self._shown = cause.message
            say(f"the driver is waiting: {cause.message}")

    @property
    def reachable(self) -> bool:
        """Whether the driver's pod runs; starts one that had left."""
        try:
            return self.cluster.has_driver(self.run)
        except LongboatError:
            return False

    def is_waiting_for_driver(self) -> bool:
        """A driver will come, but maybe not before a request times out: the run was resumed and its next driver has no
        pod yet, or its driver's node does not answer."""
        if self.reachable:
            return False
        self.check_for_resume()
        if self.is_restarting:
            return True
        cause = pending_pods.driver(self.cluster.api, self.run)
        return cause is not None and cause.kind is CauseKind.NODE_LOST

    def _stream(self, request: dict[str, object], more: Mapping[str, int] | None = None) -> None:
        """Receives what follows the end of this replica from the driver's pod; `more`: offsets of other files."""
        at = {path: os.path.getsize(self.path / path) for path in self._have()} | dict(more or {})
        for path in (run_layout.PLAN, run_layout.VERDICT):  # replaced, not appended to
            at.pop(path, None)
        pod = self.cluster.reach(self.run)
        text = json.dumps({**request, "at": at})
        long = len(text) > ARGUMENT_MAX
        try:
            with PodExec(self.cluster.api, pod, command("read", "-" if long else text), "driver", long) as program:
                for start in range(0, len(text) + 1 if long else 0, FRAME):
                    program.send(f"{text}\n"[start : start + FRAME].encode())
                self._take(program)
        except (ApiError, OSError) as error:
            raise self.cluster.unheard(error, self.run) from None

    def _have(self) -> list[str]:
        names = [name for name in FILES if (self.path / name).exists()]
        return names + [str(p.relative_to(self.path)) for p in (self.path / "logs").glob("*/*.log")]

    def _take(self, program: PodExec) -> None:
        rest, errors = b"", b""
        while (piece := program.receive(timeout=SILENCE)) is not None:
            channel, data = piece
            if channel == STDERR:
                errors += data
            if channel != STDOUT:
                continue
            rest += data
            while b"\n" in rest:
                line, _, behind = rest.partition(b"\n")
                head = json.loads(line)
                count = int(head.get("n", 0))
                if len(behind) < count:
                    break
                if count:
                    self._write(str(head["path"]), int(head["at"]), behind[:count])
                    self._news.set()
                rest = behind[count:]
        if program.code is not None and program.code > KILLED:
            raise self.cluster.gone(self.run)
        if program.code:
            raise LongboatError(f"the driver of {self.run} says: {errors.decode('utf-8', 'replace').strip()}")

    def _write(self, path: str, at: int, data: bytes) -> None:
        target = self.path / path
        if not os.path.realpath(target).startswith(os.path.realpath(self.path) + os.sep):
            raise LongboatError(f"the driver sent a file outside of the run: {path}")
        target.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(target, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(fd, data, at)
            if path in (run_layout.PLAN, run_layout.VERDICT):
                os.ftruncate(fd, at + len(data))
        finally:
            os.close(fd)


def submitted(
    plan: Plan,
    setting: SubmitOptions,
    secrets: Mapping[str, str],
    cluster: Cluster,
    home: str,
    say: Callable[[str], None] = lambda _text: None,
) -> RunReplica:
    """Submits a new run of the plan and returns its replica; `say` reports what the cluster chose for the plan."""
    replica = RunReplica(cluster, home, submission.submit(cluster, plan, setting, secrets, say))
    replica.mark(alive=True, plan=to_json(for_pods(plan)))
    return replica


def known(cluster: Cluster, home: str) -> tuple[Store, list[ListedRun]]:
    """The replicas, one for every run in the cluster. Removes replicas of runs that are gone; a run that is just being
    submitted keeps its replica, because replicas are listed before runs."""
    store = Store(home_of(home, cluster))
    replicas = set(store.ids())
    runs = cluster.runs()
    for run in runs:
        RunReplica(cluster, home, run.id).mark(run.state not in OVER, run.created, run.plan)
    for name in replicas - {run.id for run in runs}:
        store.remove(store.root / name)
    return store, runs


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
