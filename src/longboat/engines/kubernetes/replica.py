"""A copy of a cluster run's journal and logs on this machine, kept up to date while somebody looks.

All that reads runs reads directories; so a run elsewhere is given one. Files of a run only grow,
hence a copy is brought up to date by asking for what is behind its end. The copy says of itself
where its original is and whether that is alive, and can be thrown away at any time.
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
from longboat.runtime import filetree, journal, run_layout
from longboat.runtime.causes import CauseKind
from longboat.runtime.errors import FAILED, LongboatError
from longboat.runtime.kube_client.api import ApiError
from longboat.runtime.plan import Plan, from_json, to_json

if TYPE_CHECKING:
    from longboat.engines.kubernetes.pod_files import PodFiles

FILES = (journal.FILE, run_layout.PLAN, run_layout.VERDICT)
AGAIN = (0.08, 0.5)
"""Seconds between two looks for a driver that does not answer: while it may just be starting, and later."""
STARTING = 10.0
SOON = 3.0
"""Seconds in which a driver starts that nothing hinders."""
SILENCE = 20.0
"""Seconds without a word after which a stream is taken for dead."""
TRIES = 3
WORD_MOST = 1 << 16
"""A longer question goes to the desk's input; a shorter one is a word, which drivers of every version take."""
BOARD = re.compile(r"\.tfevents\.[^/]*$|/plugins/profile/.*[^/]$")
"""Files that TensorBoard reads."""
OVER = frozenset({"succeeded", "failed", "stopped", "gate_missed"})
UNDRIVEN = 120.0
"""Seconds for which the driver of a run that was just resumed is waited for, where nobody says how long."""
SAID = 15.0
"""Seconds in which a driver that has written down the run's end says it to who lists runs, too."""


def home_of(home: str, cluster: Cluster) -> str:
    return os.path.join(home, "clusters", cluster.key)


class RunReplica:
    """The copy of one run."""

    def __init__(self, cluster: Cluster, home: str, run: str) -> None:
        self.cluster, self.run = cluster, run
        self.path = Path(home_of(home, cluster)) / "runs" / run
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.after = 0
        """So many events were there when the run was asked to go on, by whomever."""
        self.problem: LongboatError | None = None
        self._said = ""
        self._news = threading.Event()

    def wait(self, seconds: float) -> None:
        """Until the copy has grown, or for so long."""
        self._news.wait(seconds)
        self._news.clear()

    def mark(self, alive: bool, created: float = 0.0, plan: str = "") -> None:
        """Says where the original is and how it stands; its plan is known from the start."""
        told = {
            "alive": alive,
            "context": self.cluster.context,
            "namespace": self.cluster.namespace,
            "kubeconfig": os.environ.get("KUBECONFIG", ""),
        }
        _replace(self.path / run_layout.MIRROR, json.dumps(told).encode())
        if plan and not (self.path / run_layout.PLAN).exists():
            _replace(self.path / run_layout.PLAN, plan.encode())
        if created:
            with contextlib.suppress(OSError):
                os.utime(self.path, (created, created))

    def whole(self) -> bool:
        """The copy has the run's last word: nothing will be added. An end behind which the run went on is none."""
        events = journal.read(str(self.path))
        return len(events) > self.after and events[-1]["ev"] == "run.ended"

    @property
    def begun(self) -> bool:
        return (self.path / journal.FILE).exists()

    @property
    def coming_up(self) -> bool:
        """The run was asked to go on, and its next driver has not written yet."""
        return 0 < self.after >= len(journal.read(str(self.path)))

    def sync(self, logs: bool = False) -> None:
        """Up to date, once."""
        self.look_behind()
        if self.whole() and not logs:
            return
        for tries_left in reversed(range(TRIES)):
            try:
                self._stream({"files": list(FILES), "logs": logs, "follow": False})
                break
            except NoResponse:  # its pod may just be replaced; what has arrived is kept
                if not tries_left:
                    raise
                time.sleep(AGAIN[0])
        if self.whole():
            self.look_behind()

    def look_behind(self) -> None:
        """Somebody may have let the run go on behind what this copy has: then an end that it has is none."""
        root = self.cluster.api.find("ConfigMap", self.run)
        order = submission.order_of(root) if root is not None else ""
        # One that is over is so, too, if it failed before a driver could take up the order.
        if root is None or not order or listed(root).state in OVER:
            return
        events = journal.read(str(self.path))
        taken_up = [event["order"] for event in events if event["ev"].startswith("run.") and event.get("order")]
        if taken_up[-1:] != [order]:
            self.after = len(events)
            self.mark(alive=True)

    def stop(self, by: str, now: bool, patience: float | None) -> bool:
        """Asks the driver to end the run; False when nothing runs. One that is coming up is asked once it drives."""
        due = time.monotonic() + (UNDRIVEN if patience is None else patience)
        while True:
            if not (self.waits_for_its_driver() and self.coming_up):
                try:
                    self.sync()
                    if self.whole():
                        return False
                    if self.cluster.stop(self.run, by, now):
                        return True
                except NoResponse:
                    if not self.coming_up:
                        raise
                if not self.coming_up:
                    return False
            if time.monotonic() > due:
                hint = f"longboat why {self.run}"
                raise LongboatError(f"{self.run} was resumed and its driver does not begin", hint, FAILED)
            time.sleep(AGAIN[0])

    def fetch_all(self, directory: str) -> None:
        """A directory of the run with all in it."""
        with self._shelf() as shelf:
            filetree.store(shelf.items(directory), str(self.path / directory))

    def fetch_board(self) -> None:
        """What stages have written for TensorBoard below their outputs, from where this copy ends."""
        with self._shelf() as shelf:
            try:
                there = {entry.path: entry.size for entry in shelf.entries("output", 99)}
            except LongboatError:
                return  # no stage has written anything
        at = {path: _size(self.path / path) for path in there if BOARD.search(path)}
        new = [path for path, size in at.items() if size != there[path]]
        if new:
            self._stream({"files": new, "logs": False, "follow": False}, {path: at[path] for path in new})

    def _shelf(self) -> PodFiles:
        from longboat.engines.kubernetes.pod_files import PodFiles

        return PodFiles(self.cluster, self.run, None)

    def resumed_at(self, events: int) -> None:
        """The cluster is asked to resume the run. Its journal has so many events: an end among them is not the end."""
        self.after = events
        self.mark(alive=True)

    def remove(self, force: bool = False, data: bool = False) -> tuple[list[str], list[KeptData]]:
        """The run with all its objects, and then this copy; one that is under way only by force. With `data` also the
        storage that was made for it. What of the data went, and what stays."""
        root = self.cluster.root(self.run) if force else self._ended()
        if root is not None and root.state not in OVER and not force:
            raise LongboatError(
                f"{self.run} is still running",
                f"stop it first: `longboat stop {self.run}`, or `longboat rm --force {self.run}`",
            )
        self.cluster.remove(self.run)
        self.mark(alive=False)
        Store(self.path.parent.parent).remove(self.path)
        if root is None or not root.plan:
            return [], []
        try:
            return storage.left_by(self.cluster, from_json(root.plan), data)
        except ApiError as error:
            raise self.cluster.refusal(error) from None

    def _ended(self) -> ListedRun | None:
        """The run as the cluster lists it; of one whose end this copy has, once it is listed as ended."""
        self.look_behind()
        due = time.monotonic() + (SAID if self.whole() else 0.0)
        while True:
            root = self.cluster.root(self.run)
            if root is None or root.state in OVER or time.monotonic() > due:
                return root
            time.sleep(AGAIN[0])

    def follow(self, logs: bool = True, say: Callable[[str], None] | None = None) -> None:
        """Up to date from now on, by a thread; whatever breaks is mended until the run is over or removed."""
        threading.Thread(target=self._follow, args=(logs, say), daemon=True).start()

    def keep_up(self, logs: bool, say: Callable[[str], None] | None = None) -> None:
        """Up to date now, and from now on if the run is not over."""
        with contextlib.suppress(NoResponse):  # it is asked again, for as long as one watches
            if not self.waits_for_its_driver():
                self.sync(logs=logs)
        if not self.whole():
            self.follow(logs=logs, say=say)

    def _follow(self, logs: bool, say: Callable[[str], None] | None) -> None:
        begun = time.monotonic()
        while True:
            try:
                if self.reachable:
                    self._stream({"files": list(FILES), "logs": logs, "follow": True})
                    if self.whole():
                        return
                elif time.monotonic() < begun + SOON:
                    pass
                elif self.cluster.root(self.run) is None:
                    self.mark(alive=False)
                    return
                elif say is not None:
                    self._tell(say)
            except LongboatError as error:
                self.problem = error
            except (OSError, ApiError, ValueError):
                pass
            time.sleep(AGAIN[time.monotonic() > begun + STARTING])

    def _tell(self, say: Callable[[str], None]) -> None:
        cause = pending_pods.driver(self.cluster.api, self.run)
        if cause is not None and cause.message != self._said:
            self._said = cause.message
            say(f"the driver waits: {cause.message}")

    @property
    def reachable(self) -> bool:
        """The driver's pod runs; one that was sent home is being brought back."""
        try:
            return self.cluster.has_driver(self.run)
        except LongboatError:
            return False

    def waits_for_its_driver(self) -> bool:
        """There will be one, but maybe not within the patience of a question: the run was let go on and its next driver
        has no pod yet, or its driver's node does not answer."""
        if self.reachable:
            return False
        self.look_behind()
        if self.coming_up:
            return True
        cause = pending_pods.driver(self.cluster.api, self.run)
        return cause is not None and cause.kind is CauseKind.NODE_LOST

    def _stream(self, asked: dict[str, object], more: Mapping[str, int] | None = None) -> None:
        """Takes in what the driver's desk sends, from where this copy ends; `more`: where it does of other files."""
        at = {path: os.path.getsize(self.path / path) for path in self._have()} | dict(more or {})
        for path in (run_layout.PLAN, run_layout.VERDICT):  # written anew, not appended to
            at.pop(path, None)
        pod = self.cluster.reach(self.run)
        question = json.dumps({**asked, "at": at})
        long = len(question) > WORD_MOST
        try:
            with PodExec(self.cluster.api, pod, command("read", "-" if long else question), "driver", long) as program:
                for start in range(0, len(question) + 1 if long else 0, FRAME):
                    program.send(f"{question}\n"[start : start + FRAME].encode())
                self._take(program)
        except (ApiError, OSError) as error:
            raise self.cluster.unheard(error, self.run) from None

    def _have(self) -> list[str]:
        found = [name for name in FILES if (self.path / name).exists()]
        return found + [str(p.relative_to(self.path)) for p in (self.path / "logs").glob("*/*.log")]

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
        place = self.path / path
        if not os.path.realpath(place).startswith(os.path.realpath(self.path) + os.sep):
            raise LongboatError(f"the driver sent a file outside of the run: {path}")
        place.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(place, os.O_WRONLY | os.O_CREAT, 0o600)
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
    """A new run of the plan, and its copy; `say` hears what the cluster settled that the plan left open."""
    copy = RunReplica(cluster, home, submission.submit(cluster, plan, setting, secrets, say))
    copy.mark(alive=True, plan=to_json(for_pods(plan)))
    return copy


def known(cluster: Cluster, home: str) -> tuple[Store, list[ListedRun]]:
    """A store with a place for every run that the cluster has, and for no other but of those that are just being
    submitted: a copy goes when its run was gone after the copy had been there."""
    store = Store(home_of(home, cluster))
    copies = set(store.ids())
    runs = cluster.runs()
    for run in runs:
        RunReplica(cluster, home, run.id).mark(run.state not in OVER, run.created, run.plan)
    for name in copies - {run.id for run in runs}:
        store.remove(store.root / name)
    return store, runs


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _replace(path: Path, data: bytes) -> None:
    aside = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
    aside.write_bytes(data)
    os.replace(aside, path)
