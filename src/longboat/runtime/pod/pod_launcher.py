"""Brings agents to seats as plain Pods, and tells the driver when one is gone for good.

Plain Pods, because whoever else replaces a lost pod waits before it does. Threads talk to the API
server, so that the driver's loop never does: one watches the run's pods, a few make and delete.
What the pods are like is the root's business (templates); what a pod's state means is `verdicts`'.

A seat's agent is gone when it says so itself, when its pod's containers have ended, or when its
pod is out of sight and the lease on which it trains has run out, margin included. From then on
it is not let in again.
"""

from __future__ import annotations

import collections
import functools
import os
import queue
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Callable, Deque, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.driver.agent_links import Seat, name_of
from longboat.runtime.driver.launcher import AgentGone, LauncherEvent, StageNote, Unrecoverable
from longboat.runtime.driver.stage_run import LEASE as SILENCE
from longboat.runtime.kube_client import names, quota
from longboat.runtime.kube_client.api import Api, ApiError, Manifest
from longboat.runtime.pod import critical_threads, pod_status, pod_templates

HANDS = 8
"""Threads that make and delete pods."""
MARGIN = 5.0
"""Seconds beyond a lease: a late look at it, a clock that drifts, a kill that takes a moment."""
LOOK = 1.0
"""Seconds between two looks at what has come due."""
UNHEEDED = 45.0
"""Seconds that a node may take before it begins to start a pod."""
QUESTIONS = 4
"""Pods whose events are asked for in one look: a thousand that pull a large image must not flood the API server."""
SELDOM = 30.0
"""Seconds between two such questions about one pod, in the end."""
SOON = 4.0
"""How long a pod may wait before the journal says what it waits for."""
NEW_RIGHTS = 15.0
"""Seconds in which rights that were given a moment ago become known everywhere."""


@dataclass
class _Pod:
    """One pod that this driver or an earlier one made."""

    name: str
    seat: Seat
    """The first, of a pod with several."""
    size: int = 1
    ports: Tuple[int, ...] = ()
    barred: bool = False
    """A quota is used up: it is not made yet."""
    missed: Set[Seat] = field(default_factory=set)
    """Of several seats, those whose agents the driver wants anew, before all of the pod has ended."""
    uid: str = ""
    made: float = 0.0
    placed: float = 0.0
    """Since when it has a node; it may have waited for one for long."""
    seen: Optional[Manifest] = None
    dead: bool = False
    """Its containers have ended."""
    leaving: float = 0.0
    """Since when it has been told to end."""
    release: bool = False
    """Its agents were told goodbye."""
    out_of_sight: float = 0.0
    """Since when its object is gone although nobody saw its containers end."""
    fenced: float = 0.0
    waits: str = ""
    quiet: float = 0.0
    """Until when its events are not asked for again."""

    @property
    def gone(self) -> bool:
        """Its agents are, or will be."""
        return bool(self.dead or self.leaving or self.out_of_sight or self.release)


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
        """Why the run's pods may not be looked at."""
        self._refused = (0.0, 0.0)
        """When that was first said, and last."""
        self._questions = QUESTIONS
        self._retrying = self._closed = False
        for task in [self._watch, self._look, *([self._toil] * HANDS)]:
            critical_threads.begin(task)
        self._listed.wait()  # a new driver must know who is there before it hears them
        if self._blind is not None:
            raise self._blind

    # What the driver asks for.

    def launch(self, seat: Seat, ports: Sequence[int]) -> None:
        with self._lock:
            pod, size = self._pod(seat), self._size(seat)
            followed = [news for news in self._news if isinstance(news, AgentGone) and news.seat == seat]
            for news in followed:  # whose end is no news any more
                self._news.remove(news)
            if pod is not None and not pod.gone:
                return
            if pod is not None and not pod.dead and size > 1:
                pod.missed.add(seat)  # its neighbours may still be there: a new pod comes when all have ended
                return
            first = pod_templates.first_of(seat, size)
            made = _Pod(pod_templates.new_name(self._run, first), first, size, tuple(ports), made=self._clock())
            self._pods[made.name] = made
            self._current[first] = made.name
            if self._blind is not None:
                self._tell(Unrecoverable(seat, pod_status.refused(self._blind, seat)))
        self._work.put(functools.partial(self._create, made))
        if pod is not None and not pod.leaving and not pod.release:  # did its node send it away, and what for?
            self._work.put(lambda: self._ask_why(pod))
        if pod is not None and pod.dead:
            self._work.put(lambda: self._delete(pod, None))

    def fence(self, seat: Seat) -> None:
        """Ask its node to end it; give it up when that does not answer within the lease."""
        with self._lock:
            pod = self._pod(seat)
            if pod is None or pod.dead:
                cause = Cause(CauseKind.NODE_LOST, "its pod is gone", role=seat[1], rank=seat[2])
                self._tell(AgentGone(seat, cause))
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
            return pod is not None and pod.name == agent.partition(".")[0] and not pod.dead and not pod.out_of_sight

    def fileno(self) -> int:
        return self._wake

    def poll(self) -> List[LauncherEvent]:
        try:
            while os.read(self._wake, 4096):
                pass
        except BlockingIOError:
            pass
        with self._lock:
            found, self._news = list(self._news), collections.deque()
            return found

    def close(self) -> None:
        """The run is over. Agents were told goodbye; what does not go by itself is deleted."""
        due = self._clock() + MARGIN
        with self._lock:
            self._closed = True
            for pod in self._pods.values():
                pod.dead = pod.dead or pod.barred
        while self._clock() < due and any(not pod.dead and not pod.leaving for pod in self._all()):
            time.sleep(0.05)
        for pod in self._all():
            self._work.put(lambda pod=pod: self._delete(pod, 1 if pod.dead else None))  # type: ignore[misc]
        while self._clock() < due + MARGIN and self._work.unfinished_tasks:
            time.sleep(0.05)

    def _size(self, seat: Seat) -> int:
        template = self._templates.get((seat[0], seat[1]))
        return 1 if template is None else pod_templates.crew(template)

    def _pod(self, seat: Seat) -> Optional[_Pod]:
        """The one that has, or had last, the agent of a seat."""
        return self._pods.get(self._current.get(pod_templates.first_of(seat, self._size(seat)), ""))

    # Hands.

    def _all(self) -> List[_Pod]:
        with self._lock:
            return list(self._pods.values())

    def _toil(self) -> None:
        while True:
            task = self._work.get()
            try:
                task()
            except ApiError:
                pass  # looked at again by _look
            finally:
                self._work.task_done()

    def _create(self, pod: _Pod) -> bool:
        """False: a quota is used up, by pods that are about to go perhaps; it is tried again by _look."""
        template = self._templates[pod.seat[0], pod.seat[1]]
        manifest = pod_templates.pod(template, pod.name, pod.seat, self._root, self._address, pod.ports)
        while True:
            try:
                if self._closed or pod.dead:
                    return True
                made = self._api.create(manifest)
                break
            except ApiError as error:
                if error.status == 409 and error.reason == "AlreadyExists":
                    pod.barred = False
                    return True
                if quota.exceeded(error) and self._may_fit(pod, error.message):
                    return False
                if not error.transient or self._clock() >= pod.made + self._pending:
                    self._end(pod, pod_status.refused(error, pod.seat))
                    return True
                if error.status and error.message != pod.waits:  # one that answers and cannot: a webhook, a full disk
                    pod.waits = error.message
                    self._tell(StageNote(pod.seat[0], f"{name_of(pod.seat)} cannot be made yet: {error.message}"))
        with self._lock:
            pod.uid, pod.barred = str(made["metadata"]["uid"]), False
        return True

    def _may_fit(self, pod: _Pod, refusal: str) -> bool:
        """Whether to wait until a quota has room: not for a pod, or the pods of a role, that it never has room for."""
        with self._lock:
            role = [self._pods[name] for seat, name in self._current.items() if seat[:2] == pod.seat[:2]]
            wanted = sum(not each.dead and not each.leaving and not each.out_of_sight for each in role)
            pod.barred = self._clock() < pod.made + self._pending and not quota.never_fits(refusal, wanted)
            if pod.barred and not pod.waits:
                pod.waits = refusal
                self._tell(StageNote(pod.seat[0], f"{name_of(pod.seat)} waits: {refusal}"))
            return pod.barred

    def _make_barred(self) -> None:
        """Tries again what a quota had no room for, role by role until it is used up again. Pods that have ended go
        first: some quotas count them."""
        full: Set[Tuple[str, str]] = set()
        try:
            for pod in self._all():
                if pod.dead and pod.uid and not pod.leaving:
                    self._delete(pod, None)
            for pod in self._all():
                if pod.barred and not pod.dead and pod.seat[:2] not in full and not self._create(pod):
                    full.add(pod.seat[:2])
        finally:
            self._retrying = False

    def _delete(self, pod: _Pod, grace: Optional[int]) -> None:
        self._api.delete("Pod", pod.name, grace=grace, uid=pod.uid)

    # Eyes.

    def _watch(self) -> None:
        for event, obj in self._api.watch("Pod", names.selector(self._run, "rank"), trouble=self._troubled):
            with self._lock:
                self._blind, self._refused = None, (0.0, 0.0)
                if event == "LISTED":
                    there = {str(item["metadata"]["name"]) for item in obj["items"]}
                    for item in obj["items"]:
                        self._saw(item)
                    for known in self._pods.values():
                        if known.name not in there and known.uid:
                            self._vanished(known)
                    self._listed.set()
                elif event == "DELETED":
                    self._saw(obj)
                    pod = self._pods.get(str(obj["metadata"]["name"]))
                    if pod is not None:
                        self._vanished(pod)
                else:
                    self._saw(obj)

    def _troubled(self, error: Exception) -> None:
        """A driver that may not look at its pods is blind: it waits a while for the right, then nothing can go on."""
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
                    self._tell(Unrecoverable(seat, pod_status.refused(error, seat)))
                self._listed.set()
            elif first == now and not starting:
                for stage in sorted({seat[0] for seat in self._current}):
                    self._tell(StageNote(stage, f"the run's pods cannot be looked at: {error.message}"))

    def _saw(self, obj: Manifest) -> None:
        meta = obj["metadata"]
        name, seat = str(meta["name"]), pod_templates.seat_of(meta.get("labels"))
        if not seat[0]:
            return
        pod = self._pods.get(name)
        if pod is None:
            pod = self._pods[name] = _Pod(name, seat, pod_templates.crew(obj), uid=str(meta["uid"]), made=self._clock())
            self._met(pod, obj)
        elif pod.uid == meta["uid"]:
            pod.out_of_sight = 0.0  # a list may be older than a pod that was being made
            pod.leaving = pod.leaving if meta.get("deletionTimestamp") else 0.0
        meta.pop("managedFields", None)  # half of what a pod takes, and of no use here
        pod.uid, pod.seen = str(meta["uid"]), obj
        if pod_status.placed(obj):
            pod.placed = pod.placed or self._clock()
        if meta.get("deletionTimestamp"):
            pod.leaving = pod.leaving or self._clock()
        if pod_status.over(obj) and not pod.dead:
            self._end(pod, pod_status.ended(obj, seat))

    def _met(self, pod: _Pod, obj: Manifest) -> None:
        """One that somebody else made: an earlier driver, or who submitted the run, and perhaps later than we did."""
        known = self._pods.get(self._current.get(pod.seat, ""))
        if known is not None and known.barred:
            known.dead, known.barred = True, False
        if known is None or known.gone or not self._listed.is_set() and _born(known.seen) <= _born(obj):
            self._current[pod.seat] = pod.name
        elif self._listed.is_set():
            self._work.put(lambda: self._delete(pod, 1))

    def _vanished(self, pod: _Pod) -> None:
        """Its object is gone. Where nobody saw it end, it may be running on a node that does not answer."""
        pod.leaving = pod.leaving or self._clock()
        if not pod.dead and not pod.out_of_sight:
            if pod.seen is not None and not pod_status.placed(pod.seen):
                _, role, rank = pod.seat
                self._end(pod, Cause(CauseKind.PREEMPTED, "its pod was deleted before it ran", role=role, rank=rank))
            else:
                pod.out_of_sight = self._clock()

    def _end(self, pod: _Pod, cause: Cause) -> None:
        with self._lock:
            if pod.dead:
                return
            pod.dead = True
            if self._current.get(pod.seat) == pod.name:
                for seat in pod_templates.all_of(pod.seat, pod.size):
                    if seat not in pod.missed:
                        self._tell(AgentGone(seat, replace(cause, rank=seat[2])))
                for seat in sorted(pod.missed)[:1]:
                    self.launch(seat, ())

    def _tell(self, news: LauncherEvent) -> None:
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
            now, self._questions = self._clock(), QUESTIONS
            for pod in self._all():
                if not pod.dead:
                    self._due(pod, now)
            if not self._retrying and any(pod.barred and not pod.dead for pod in self._all()):
                self._retrying = True
                self._work.put(self._make_barred)

    def _due(self, pod: _Pod, now: float) -> None:
        role, rank = pod.seat[1], pod.seat[2]
        patience = names.LEASE + MARGIN
        if pod.out_of_sight and now >= pod.out_of_sight + patience:
            self._end(pod, Cause(CauseKind.NODE_LOST, "its pod was deleted by force", role=role, rank=rank))
        elif pod.fenced and now >= pod.fenced + patience - SILENCE:
            self._give_up(pod, f"a lease of {names.LEASE:g} s and {MARGIN:g} s of margin")
        elif pod.leaving and now >= pod.leaving + patience + _grace(pod.seen):
            self._give_up(pod, "its grace period and a lease")
        elif pod.seen is not None and pod_status.unheeded(pod.seen) and now >= pod.placed + UNHEEDED:
            self._give_up(pod, f"{UNHEEDED:g} s in which its node did not begin to start it")
        elif pod.seen is not None and not pod.leaving and self._current.get(pod.seat) == pod.name:
            self._waiting(pod, now)

    def _give_up(self, pod: _Pod, after: str) -> None:
        """Its node does not answer. What may still run there is not let in again, and its lease is over."""
        _, role, rank = pod.seat
        where = (pod.seen or {}).get("spec", {}).get("nodeName", "its node")
        self._work.put(lambda: self._delete(pod, 0))
        facts = (f"pod {pod.name} was given up after {after}",)
        self._end(pod, Cause(CauseKind.NODE_LOST, f"{where} does not answer", role=role, rank=rank, evidence=facts))

    def _waiting(self, pod: _Pod, now: float) -> None:
        """A pod that does not get to run: first say what it waits for, then give up."""
        assert pod.seen is not None
        cause = pod_status.waiting(pod.seen, pod.seat)
        if cause is None or now < pod.made + SOON:
            return
        if not cause.evidence and cause.kind is CauseKind.VOLUME:
            if now < pod.quiet or not self._questions:
                return
            self._questions -= 1
            pod.quiet = now + min(now - pod.made, SELDOM)
            cause = pod_status.with_events(cause, self._events(pod.name))
            if cause is None:
                return
        if cause.message != pod.waits:
            pod.waits = cause.message
            self._tell(StageNote(pod.seat[0], f"{name_of(pod.seat)} waits: {cause.message}"))
        if now >= pod.made + (self._pending if cause.kind is not CauseKind.NO_PYTHON else 0.0):
            self._work.put(lambda: self._delete(pod, 1))
            self._end(pod, cause)

    def _ask_why(self, pod: _Pod) -> None:
        """An agent that its node tells to go leaves in time, so that its pod ends well: only events know the reason."""
        cause = pod_status.overfull(self._events(pod.name), pod.seat)
        if cause is not None:
            self._tell(Unrecoverable(pod.seat, cause))

    def _events(self, name: str) -> List[Manifest]:
        try:
            return self._api.list("Event", fields=f"involvedObject.name={name}")
        except ApiError:
            return []


def _grace(pod: Optional[Manifest]) -> float:
    return float((pod or {}).get("spec", {}).get("terminationGracePeriodSeconds") or 30.0)


def _born(pod: Optional[Manifest]) -> str:
    return str((pod or {}).get("metadata", {}).get("creationTimestamp", ""))
