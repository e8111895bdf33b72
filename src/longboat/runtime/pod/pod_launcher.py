"""Launches agents as plain Pods, and reports to the driver when one is gone for good.

Plain Pods, because any controller waits before it replaces a lost pod. Threads talk to the API server, so that
the driver's loop never does: one watches the run's pods, a few create and delete them. Templates on the root
ConfigMap define the pods; `pod_status` knows what a pod's state means.

An agent is gone when it says so itself, when its pod's containers have ended, or when its pod is no longer
visible and its lease plus a margin has run out. From then on it is not accepted again.
"""

from __future__ import annotations

import collections
import functools
import os
import queue
import threading
import time
from typing import Callable, Deque, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from longboat.runtime import debug_log
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.driver.launcher import AgentGone, LauncherEvent, StageNote, Unrecoverable
from longboat.runtime.driver.stage_run import LEASE as SILENCE
from longboat.runtime.kube_client import names, quota
from longboat.runtime.kube_client.api import Api, ApiError, Manifest
from longboat.runtime.light_dataclasses import dataclass, field
from longboat.runtime.pod import critical_threads, pod_status, pod_templates
from longboat.runtime.seat import Seat

WORKERS = 8
"""Threads that create and delete pods."""
MARGIN = 5.0
"""Seconds beyond a lease: for a late check, a drifting clock, a slow kill."""
LOOK = 1.0
"""Seconds between two checks for what is due."""
START_PATIENCE = 45.0
"""Seconds for a node to begin starting a pod."""
MAX_EVENT_QUERIES = 4
"""Pods whose events are queried in one check: a thousand pods that pull a large image must not flood the API server."""
SELDOM = 30.0
"""Most seconds between two such queries about one pod."""
SOON = 4.0
"""Seconds that a pod may wait before the journal says what it waits for."""
NEW_RIGHTS = 15.0
"""Seconds until newly granted rights are known everywhere."""


@dataclass
class _Pod:
    """A pod that this driver or an earlier one created."""

    name: str
    seat: Seat
    """The first seat, if the pod has several."""
    size: int = 1
    ports: Tuple[int, ...] = ()
    held_by_quota: bool = False
    """A quota is used up: it is not created yet."""
    missed: Set[Seat] = field(default_factory=set)
    """If the pod has several seats: those whose agents the driver wants again before the whole pod has ended."""
    uid: str = ""
    made: float = 0.0
    placed: float = 0.0
    """When it got a node; it may have waited for one for long."""
    seen: Optional[Manifest] = None
    dead: bool = False
    """Its containers have ended."""
    leaving: float = 0.0
    """When its deletion started."""
    release: bool = False
    """Its agents were dismissed."""
    vanished_at: float = 0.0
    """When its object disappeared although its containers were not seen to end."""
    fenced: float = 0.0
    waits: str = ""
    next_event_query: float = 0.0
    """When its events may be queried again."""

    @property
    def gone(self) -> bool:
        """Its agents are gone, or will be."""
        return bool(self.dead or self.leaving or self.vanished_at or self.release)


class PodLauncher:
    """A Launcher whose agents outlive it."""

    def __init__(
        self,
        api: Api,
        root: Manifest,
        templates: Mapping[Tuple[str, str], Manifest],
        address: str,
        pending: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._root, self._templates = api, root, templates
        self._run = str(root["metadata"]["name"])
        self._address, self._pending, self._clock = address, pending, clock
        self._pods: Dict[str, _Pod] = {}
        self._current: Dict[Seat, str] = {}
        self._news: Deque[LauncherEvent] = collections.deque()
        self._lock = threading.RLock()
        self._work: queue.Queue[Callable[[], object]] = queue.Queue()
        self._wake, self._write = os.pipe()
        for fd in (self._wake, self._write):
            os.set_blocking(fd, False)
        self._listed = threading.Event()
        self._blind: Optional[ApiError] = None
        """Why the run's pods cannot be watched."""
        self._refused = (0.0, 0.0)
        """When watching was first refused, and last."""
        self._event_queries = MAX_EVENT_QUERIES
        self._retrying = self._closed = False
        for task in [self._watch, self._look, *([self._run_tasks] * WORKERS)]:
            critical_threads.begin(task)
        self._listed.wait()  # a new driver must know which pods exist before their agents connect
        if self._blind is not None:
            raise self._blind

    # Requests of the driver.

    def launch(self, seat: Seat, ports: Sequence[int]) -> None:
        with self._lock:
            pod, size = self._pod(seat), self._size(seat)
            followed = [news for news in self._news if isinstance(news, AgentGone) and news.seat == seat]
            for news in followed:  # the driver knows of this end
                self._news.remove(news)
            if pod is not None and not pod.gone:
                return
            if pod is not None and not pod.dead and size > 1:
                pod.missed.add(seat)  # its neighbours may still run: the new pod is created when all have ended
                return
            first = pod_templates.first_of(seat, size)
            made = _Pod(pod_templates.new_name(self._run, first), first, size, tuple(ports), made=self._clock())
            self._pods[made.name] = made
            self._current[first] = made.name
            if self._blind is not None:
                self._emit(Unrecoverable(seat, pod_status.refused(self._blind, seat)))
        self._work.put(functools.partial(self._create, made))
        if pod is not None and not pod.leaving and not pod.release:  # was it evicted, and why?
            self._work.put(lambda: self._check_eviction(pod))
        if pod is not None and pod.dead:
            self._work.put(lambda: self._delete(pod, None))

    def fence(self, seat: Seat) -> None:
        """Delete the seat's pod; give it up if its node does not respond within the lease."""
        with self._lock:
            pod = self._pod(seat)
            if pod is None or pod.dead:
                cause = Cause(CauseKind.NODE_LOST, "its pod is gone").at(seat)
                self._emit(AgentGone(seat, cause))
                return
            pod.fenced = self._clock()
        self._work.put(lambda: self._delete(pod, 1))

    def release(self, seat: Seat) -> None:
        with self._lock:
            pod = self._pod(seat)
            if pod is not None:
                pod.release = True

    def is_current(self, seat: Seat, agent: str) -> bool:
        with self._lock:
            pod = self._pod(seat)
            return pod is not None and pod.name == agent.partition(".")[0] and not pod.dead and not pod.vanished_at

    def fileno(self) -> int:
        return self._wake

    def poll(self) -> List[LauncherEvent]:
        try:
            while os.read(self._wake, 4096):
                pass
        except BlockingIOError:
            pass
        with self._lock:
            news, self._news = list(self._news), collections.deque()
            return news

    def close(self) -> None:
        """The run has ended. Agents were dismissed; pods that do not end by themselves are deleted."""
        due = self._clock() + MARGIN
        with self._lock:
            self._closed = True
            for pod in self._pods.values():
                pod.dead = pod.dead or pod.held_by_quota
        while self._clock() < due and any(not pod.dead and not pod.leaving for pod in self._all()):
            time.sleep(0.05)
        for pod in self._all():
            self._work.put(lambda pod=pod: self._delete(pod, 1 if pod.dead else None))  # type: ignore[misc]
        while self._clock() < due + MARGIN and self._work.unfinished_tasks:
            time.sleep(0.05)

    def _size(self, seat: Seat) -> int:
        template = self._templates.get((seat.stage, seat.role))
        return 1 if template is None else pod_templates.seats_per_pod(template)

    def _pod(self, seat: Seat) -> Optional[_Pod]:
        """The pod that has, or last had, the agent of a seat."""
        return self._pods.get(self._current.get(pod_templates.first_of(seat, self._size(seat)), ""))

    # Creating and deleting.

    def _all(self) -> List[_Pod]:
        with self._lock:
            return list(self._pods.values())

    def _run_tasks(self) -> None:
        while True:
            task = self._work.get()
            try:
                task()
            except ApiError:
                pass  # checked again by _look
            finally:
                self._work.task_done()

    def _create(self, pod: _Pod) -> bool:
        """Create a pod. False: a quota is used up, perhaps by pods that are about to end; `_look` tries again."""
        template = self._templates[pod.seat.stage, pod.seat.role]
        manifest = pod_templates.pod(template, pod.name, pod.seat, self._root, self._address, pod.ports)
        while True:
            try:
                if self._closed or pod.dead:
                    return True
                made = self._api.create(manifest)
                break
            except ApiError as error:
                debug_log.warning("cannot create pod %s: status %d %s", pod.name, error.status, error.reason)
                if error.status == 409 and error.reason == "AlreadyExists":
                    pod.held_by_quota = False
                    return True
                if quota.exceeded(error) and self._wait_for_quota(pod, error.message):
                    return False
                if not error.transient or self._clock() >= pod.made + self._pending:
                    self._end(pod, pod_status.refused(error, pod.seat))
                    return True
                if error.status and error.message != pod.waits:  # a response, but an error: a webhook, a full disk
                    pod.waits = error.message
                    text = f"cannot create the pod of {pod.seat.name} yet: {error.message}"
                    self._emit(StageNote(pod.seat.stage, text))
        debug_log.info("created pod %s of %s", pod.name, pod.seat.name)
        with self._lock:
            pod.uid, pod.held_by_quota = str(made["metadata"]["uid"]), False
        return True

    def _wait_for_quota(self, pod: _Pod, refusal: str) -> bool:
        """Whether to wait for a quota; not if it can never fit this pod, or all pods of its role."""
        with self._lock:
            role = [self._pods[name] for seat, name in self._current.items() if seat[:2] == pod.seat[:2]]
            wanted = sum(not other.dead and not other.leaving and not other.vanished_at for other in role)
            pod.held_by_quota = self._clock() < pod.made + self._pending and not quota.never_fits(refusal, wanted)
            if pod.held_by_quota and not pod.waits:
                pod.waits = refusal
                self._emit(StageNote(pod.seat.stage, f"{pod.seat.name} is waiting: {refusal}"))
            return pod.held_by_quota

    def _create_held(self) -> None:
        """Retry pods held by a quota, role by role until it is used up again. Ended pods are deleted first: some
        quotas count them."""
        full: Set[Tuple[str, str]] = set()
        try:
            for pod in self._all():
                if pod.dead and pod.uid and not pod.leaving:
                    self._delete(pod, None)
            for pod in self._all():
                if pod.held_by_quota and not pod.dead and pod.seat[:2] not in full and not self._create(pod):
                    full.add(pod.seat[:2])
        finally:
            self._retrying = False

    def _delete(self, pod: _Pod, grace: Optional[int]) -> None:
        debug_log.info("deleting pod %s of %s, grace %s", pod.name, pod.seat.name, grace)
        self._api.delete("Pod", pod.name, grace=grace, uid=pod.uid)

    # Watching.

    def _watch(self) -> None:
        for event, obj in self._api.watch("Pod", names.selector(self._run, "rank"), trouble=self._watch_failed):
            with self._lock:
                self._blind, self._refused = None, (0.0, 0.0)
                if event == "LISTED":
                    listed = {str(item["metadata"]["name"]) for item in obj["items"]}
                    for item in obj["items"]:
                        self._observed(item)
                    for known in self._pods.values():
                        if known.name not in listed and known.uid:
                            self._vanished(known)
                    self._listed.set()
                elif event == "DELETED":
                    self._observed(obj)
                    pod = self._pods.get(str(obj["metadata"]["name"]))
                    if pod is not None:
                        self._vanished(pod)
                else:
                    self._observed(obj)

    def _watch_failed(self, error: Exception) -> None:
        """Handle a refused watch. A driver without the right to watch its pods waits a while for it, then fails."""
        debug_log.warning("cannot watch the run's pods: %s", error)
        if not isinstance(error, ApiError) or error.status not in (401, 403):
            return
        now = self._clock()
        with self._lock:
            first, last = self._refused
            first = first if first and now < last + SELDOM else now
            self._refused = first, now
            starting = not self._listed.is_set()
            if self._blind is None and now >= first + (NEW_RIGHTS if starting else self._pending):
                self._blind = error
                for seat in () if starting else list(self._current):
                    self._emit(Unrecoverable(seat, pod_status.refused(error, seat)))
                self._listed.set()
            elif first == now and not starting:
                for stage in sorted({seat.stage for seat in self._current}):
                    self._emit(StageNote(stage, f"cannot watch the run's pods: {error.message}"))

    def _observed(self, obj: Manifest) -> None:
        meta = obj["metadata"]
        name, seat = str(meta["name"]), pod_templates.seat_of(meta.get("labels"))
        if seat.rank < 0:
            return
        pod = self._pods.get(name)
        if pod is None:
            pod = self._pods[name] = _Pod(
                name, seat, pod_templates.seats_per_pod(obj), uid=str(meta["uid"]), made=self._clock()
            )
            self._adopt(pod, obj)
        elif pod.uid == meta["uid"]:
            pod.vanished_at = 0.0  # a list may be older than a pod that was being created
            pod.leaving = pod.leaving if meta.get("deletionTimestamp") else 0.0
        meta.pop("managedFields", None)  # half of a pod's size, and not used here
        pod.uid, pod.seen = str(meta["uid"]), obj
        if pod_status.placed(obj):
            pod.placed = pod.placed or self._clock()
        if meta.get("deletionTimestamp"):
            pod.leaving = pod.leaving or self._clock()
        if pod_status.over(obj) and not pod.dead:
            self._end(pod, pod_status.ended(obj, seat))

    def _adopt(self, pod: _Pod, obj: Manifest) -> None:
        """Adopt a pod that this driver did not create: an earlier driver or the submission did."""
        known = self._pods.get(self._current.get(pod.seat, ""))
        if known is not None and known.held_by_quota:
            known.dead, known.held_by_quota = True, False
        if known is None or known.gone or not self._listed.is_set() and _created_at(known.seen) <= _created_at(obj):
            self._current[pod.seat] = pod.name
        elif self._listed.is_set():
            self._work.put(lambda: self._delete(pod, 1))

    def _vanished(self, pod: _Pod) -> None:
        """Handle a deleted object. If its end was not seen, the pod may still run on a node that does not respond."""
        pod.leaving = pod.leaving or self._clock()
        if not pod.dead and not pod.vanished_at:
            if pod.seen is not None and not pod_status.placed(pod.seen):
                self._end(pod, Cause(CauseKind.PREEMPTED, "its pod was deleted before it ran"))
            else:
                pod.vanished_at = self._clock()

    def _end(self, pod: _Pod, cause: Cause) -> None:
        with self._lock:
            if pod.dead:
                return
            pod.dead = True
            debug_log.info("pod %s of %s ended: %s", pod.name, pod.seat.name, cause.kind.value)
            if self._current.get(pod.seat) == pod.name:
                for seat in pod_templates.all_of(pod.seat, pod.size):
                    if seat not in pod.missed:
                        self._emit(AgentGone(seat, cause.at(seat)))
                for seat in sorted(pod.missed)[:1]:
                    self.launch(seat, ())

    def _emit(self, news: LauncherEvent) -> None:
        with self._lock:
            self._news.append(news)
        try:
            os.write(self._write, b"x")
        except BlockingIOError:
            pass

    # Time.

    def _look(self) -> None:
        while True:
            time.sleep(LOOK)
            now, self._event_queries = self._clock(), MAX_EVENT_QUERIES
            for pod in self._all():
                if not pod.dead:
                    self._due(pod, now)
            if not self._retrying and any(pod.held_by_quota and not pod.dead for pod in self._all()):
                self._retrying = True
                self._work.put(self._create_held)

    def _due(self, pod: _Pod, now: float) -> None:
        patience = names.LEASE + MARGIN
        if pod.vanished_at and now >= pod.vanished_at + patience:
            self._end(pod, Cause(CauseKind.NODE_LOST, "its pod was deleted by force"))
        elif pod.fenced and now >= pod.fenced + patience - SILENCE:
            self._give_up(pod, f"a lease of {names.LEASE:g} s and {MARGIN:g} s of margin")
        elif pod.leaving and now >= pod.leaving + patience + _grace(pod.seen):
            self._give_up(pod, "its grace period and a lease")
        elif pod.seen is not None and pod_status.not_started(pod.seen) and now >= pod.placed + START_PATIENCE:
            self._give_up(pod, f"{START_PATIENCE:g} s without its node starting it")
        elif pod.seen is not None and not pod.leaving and self._current.get(pod.seat) == pod.name:
            self._waiting(pod, now)

    def _give_up(self, pod: _Pod, after: str) -> None:
        """Give up a pod whose node does not respond. What may still run there is not accepted again; its lease is
        over."""
        where = (pod.seen or {}).get("spec", {}).get("nodeName", "its node")
        self._work.put(lambda: self._delete(pod, 0))
        facts = (f"gave up on pod {pod.name} after {after}",)
        self._end(pod, Cause(CauseKind.NODE_LOST, f"no response from {where}", evidence=facts))

    def _waiting(self, pod: _Pod, now: float) -> None:
        """Handle a pod that does not get to run: first report what it waits for, then give up."""
        assert pod.seen is not None
        cause = pod_status.waiting(pod.seen, pod.seat)
        if cause is None or now < pod.made + SOON:
            return
        if not cause.evidence and cause.kind is CauseKind.VOLUME:
            if now < pod.next_event_query or not self._event_queries:
                return
            self._event_queries -= 1
            pod.next_event_query = now + min(now - pod.made, SELDOM)
            cause = pod_status.with_events(cause, self._events(pod.name))
            if cause is None:
                return
        if cause.message != pod.waits:
            pod.waits = cause.message
            self._emit(StageNote(pod.seat.stage, f"{pod.seat.name} is waiting: {cause.message}"))
        if now >= pod.made + (self._pending if cause.kind is not CauseKind.NO_PYTHON else 0.0):
            self._work.put(lambda: self._delete(pod, 1))
            self._end(pod, cause)

    def _check_eviction(self, pod: _Pod) -> None:
        """Find out whether a pod was evicted for its disk use. Its agent leaves in time and the pod ends well, so only
        its events know."""
        cause = pod_status.evicted_for_disk(self._events(pod.name), pod.seat)
        if cause is not None:
            self._emit(Unrecoverable(pod.seat, cause))

    def _events(self, name: str) -> List[Manifest]:
        try:
            return self._api.list("Event", fields=f"involvedObject.name={name}")
        except ApiError:
            return []


def _grace(pod: Optional[Manifest]) -> float:
    return float((pod or {}).get("spec", {}).get("terminationGracePeriodSeconds") or 30.0)


def _created_at(pod: Optional[Manifest]) -> str:
    return str((pod or {}).get("metadata", {}).get("creationTimestamp", ""))
