"""Pods as places of agents: what a launcher makes of what it sees, on a clock that is set by hand."""

from __future__ import annotations

import queue
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from longboat.runtime.causes import CauseKind
from longboat.runtime.driver.launcher import AgentGone, LauncherEvent, StageNote, Unrecoverable
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import ApiError, Manifest
from longboat.runtime.pod import pod_status
from longboat.runtime.pod.pod_launcher import NEW_RIGHTS, START_PATIENCE, PodLauncher
from longboat.runtime.seat import Seat
from tests.unit.kube_client.listening import listening
from tests.unit.kube_client.test_api import Answer, Script, client, script, status

__all__ = ["script"]

PATIENCE = 30.0


class Hands:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def pod(version: str, node: str = "") -> Manifest:
    labels = {names.STAGE_LABEL: "train", names.ROLE_LABEL: "worker", names.RANK_LABEL: "0"}
    meta = {"name": "p", "uid": "u", "labels": labels, "resourceVersion": version}
    spec = {"nodeName": node, "containers": [{"name": names.CONTAINER}]}
    return {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}}


def listed(*pods: Manifest) -> tuple[int, dict[str, str], list[object]]:
    return 200, {}, [{"items": list(pods), "metadata": {"resourceVersion": "1"}}]


def news(launcher: PodLauncher, seconds: float) -> Sequence[LauncherEvent]:
    select.select([launcher.fileno()], [], [], seconds)
    return launcher.poll()


class Cluster(Script):
    """A namespace with a quota of pods, and a right to look at them that may be taken away."""

    def __init__(self) -> None:
        super().__init__()
        self.room = 0
        self.limit = 2
        self.there = False
        self.made: list[str] = []
        self.forbidden: set[str] = set()

    def reply(self, method: str, path: str) -> Answer:
        if method == "POST":
            if self.there:
                return 409, {}, [status(409, "AlreadyExists")]
            if len(self.made) >= self.room:
                told = f"requested: pods=1, used: pods={self.limit}, limited: pods={self.limit}"
                return 403, {}, [status(403, "Forbidden", f'pods "p" is forbidden: exceeded quota: small, {told}')]
            self.made.append("p")
            return 201, {}, [{"metadata": {"name": "p", "uid": f"u{len(self.made)}"}}]
        verb = "watch" if "watch=1" in path else "list"
        if verb in self.forbidden:
            told = f'pods is forbidden: User "system:serviceaccount:n:a" cannot {verb} resource "pods" in API group ""'
            return 403, {}, [status(403, "Forbidden", f'{told} in the namespace "n"')]
        return (200, {}, []) if verb == "watch" else listed()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with listening(Cluster()) as server:
        yield server


def launched(cluster: Cluster, clock: Callable[[], float], ranks: int, pending: float = 3600.0) -> PodLauncher:
    root = {"metadata": {"name": "r", "uid": "u"}}
    template = {
        "kind": "Pod",
        "metadata": {"labels": {names.STAGE_LABEL: "train", names.ROLE_LABEL: "worker"}},
        "spec": {"containers": [{"name": names.CONTAINER, "env": []}]},
    }
    launcher = PodLauncher(client(cluster), root, {("train", "worker"): template}, "10.0.0.1", pending, clock)
    for rank in range(ranks):
        launcher.launch(Seat("train", "worker", rank), ())
    return launcher


def until(what: Callable[[], object]) -> None:
    due = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < due
        time.sleep(0.01)


def gathered(launcher: PodLauncher, found: list[LauncherEvent]) -> list[LauncherEvent]:
    found += launcher.poll()
    return found


def test_a_quota_that_is_used_up_is_waited_for_and_told_once(cluster: Cluster) -> None:
    launcher = launched(cluster, Hands(), 2)
    until(lambda: len([asked for asked in cluster.asked if asked[0] == "POST"]) >= 4)
    told = launcher.poll()
    assert sorted(news.text[:14] for news in told if isinstance(news, StageNote)) == [
        "train/worker-0",
        "train/worker-1",
    ]
    assert len(told) == 2
    cluster.room = 2
    until(lambda: len(cluster.made) == 2)
    assert not launcher.poll(), "nobody is gone"


def test_a_pod_that_was_made_unnoticed_is_not_tried_again(cluster: Cluster) -> None:
    launcher = launched(cluster, Hands(), 1)
    (told,) = news(launcher, PATIENCE)
    assert isinstance(told, StageNote)
    cluster.there = True
    until(lambda: not any(pod.held_by_quota for pod in launcher._all()))


def test_a_quota_that_stays_used_up_is_the_cause_in_the_end(cluster: Cluster) -> None:
    clock = Hands()
    launcher = launched(cluster, clock, 1)
    (told,) = news(launcher, PATIENCE)
    assert isinstance(told, StageNote)
    clock.now += 3600.0
    (gone,) = news(launcher, PATIENCE)
    assert isinstance(gone, AgentGone)
    assert gone.cause.kind is CauseKind.QUOTA
    assert "exceeded quota: small" in gone.cause.message


def test_a_quota_in_which_the_role_never_fits_is_not_waited_for(cluster: Cluster) -> None:
    launcher = launched(cluster, Hands(), 3)
    found: list[LauncherEvent] = []
    until(lambda: any(isinstance(each, AgentGone) for each in gathered(launcher, found)))
    assert {each.cause.kind for each in found if isinstance(each, AgentGone)} == {CauseKind.QUOTA}


def test_what_a_quota_held_back_is_not_made_once_the_run_is_over(cluster: Cluster) -> None:
    launcher = launched(cluster, time.monotonic, 1)
    (told,) = news(launcher, PATIENCE)
    assert isinstance(told, StageNote)
    launcher.close()
    cluster.room = 1
    assert not news(launcher, 2.5)
    assert not cluster.made


def test_a_driver_that_may_not_look_at_its_pods_says_which_right_it_lacks(cluster: Cluster) -> None:
    cluster.forbidden = {"list"}
    with pytest.raises(ApiError) as error:
        launched(cluster, lambda: NEW_RIGHTS * len(cluster.asked), 0)
    assert len(cluster.asked) >= 2, "it was asked for again: a right may be new"
    cause = pod_status.refused(error.value, Seat("", "", -1))
    assert cause.kind is CauseKind.FORBIDDEN
    assert 'verbs: ["list"]' in cause.evidence[0]


def test_a_driver_that_may_no_longer_look_at_its_pods_is_not_blind_for_ever(cluster: Cluster) -> None:
    clock = Hands()
    cluster.forbidden, cluster.room = {"watch"}, 1
    launcher = launched(cluster, clock, 1, pending=20.0)
    found: list[LauncherEvent] = []
    until(lambda: gathered(launcher, found) and len(cluster.made) == 1)
    clock.now += 20.0
    until(lambda: any(isinstance(each, Unrecoverable) for each in gathered(launcher, found)))
    (doomed,) = [each for each in found if isinstance(each, Unrecoverable)]
    assert doomed.cause.kind is CauseKind.FORBIDDEN
    launcher.launch(Seat("train", "worker", 1), ())
    until(lambda: [each.seat.rank for each in gathered(launcher, found) if isinstance(each, Unrecoverable)] == [0, 1])


def test_a_pod_without_a_seat_that_goes_blinds_nobody(script: Script) -> None:
    stranger = pod("2")
    stranger["metadata"]["labels"] = {}
    events: list[object] = [{"type": "DELETED", "object": stranger}, {"type": "ADDED", "object": pod("3")}]
    script.answers = [listed(), (200, {}, events)]
    launcher = PodLauncher(client(script), {"metadata": {"name": "r"}}, {}, "10.0.0.1", 3600.0, Hands())
    until(lambda: "p" in launcher._pods)


def test_a_thread_that_ends_ends_the_driver() -> None:
    program = "import time; from longboat.runtime.pod import critical_threads as threads; "
    program += "threads.begin(lambda: 1 / 0); time.sleep(60)"
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


def test_a_pod_that_waited_for_its_node_has_its_time_from_then_on(script: Script) -> None:
    clock = Hands()
    script.answers = [listed(pod("1"))]
    launcher = PodLauncher(client(script), {"metadata": {"name": "r"}}, {}, "10.0.0.1", 3600.0, clock)
    clock.now += 600.0
    script.answers = [(200, {}, [{"type": "MODIFIED", "object": pod("2", "node1")}])]
    due = time.monotonic() + PATIENCE
    while not launcher._pods["p"].placed:
        assert time.monotonic() < due
        time.sleep(0.01)
    clock.now += START_PATIENCE - 1.0
    assert not news(launcher, 2.5), "its node has only just been given it"
    clock.now += 1.0
    (gone,) = news(launcher, PATIENCE)
    assert isinstance(gone, AgentGone)
    assert gone.cause.kind is CauseKind.NODE_LOST
    assert "no response from node1" in gone.cause.message


class Fed:
    """An API server whose watch says what the test says, when it says it."""

    def __init__(self, *items: Manifest) -> None:
        self.events: queue.Queue[tuple[str, Manifest]] = queue.Queue()
        self.made: list[str] = []
        self.deleted: list[str] = []
        self.say("LISTED", {"items": list(items)})
        root = {"metadata": {"name": "r", "uid": "r"}}
        template = {"metadata": {"labels": {}}, "spec": {"containers": [{"name": names.CONTAINER, "env": []}]}}
        self.launcher = PodLauncher(self, root, {("train", "worker"): template}, "driver", 600)  # type: ignore[arg-type]

    def say(self, event: str, obj: Manifest) -> None:
        self.events.put((event, obj))

    def heard(self) -> None:
        """Until the launcher has taken in all that was said."""
        self.say("ADDED", {"metadata": {"name": "of somebody else", "uid": ""}})
        until(self.events.empty)
        with self.launcher._lock:
            pass

    def watch(self, *_: object, **__: object) -> Iterator[tuple[str, Manifest]]:
        while True:
            yield self.events.get()

    def create(self, manifest: Manifest) -> Manifest:
        name = str(manifest["metadata"]["name"])
        self.made.append(name)
        return {"metadata": {"name": name, "uid": f"uid of {name}"}}

    def delete(self, _: str, name: str, **__: object) -> None:
        self.deleted.append(name)

    def list(self, *_: object, **__: object) -> Sequence[Manifest]:
        return []


def one_of(name: str, rank: int = 0, phase: str = "Running", born: str = "2026-01-01T00:00:05Z") -> Manifest:
    found = pod("1", "node")
    found["metadata"] |= {"name": name, "uid": f"uid of {name}", "creationTimestamp": born}
    found["metadata"]["labels"][names.RANK_LABEL] = str(rank)
    found["status"]["phase"] = phase
    return found


SEATS = [Seat("train", "worker", rank) for rank in range(4)]


def test_pods_that_died_before_the_driver_came_and_are_replaced_cost_nothing() -> None:
    api = Fed(*(one_of(f"old-{rank}", rank, "Failed") for rank in range(4)))
    for seat in SEATS:
        api.launcher.launch(seat, ())
    until(lambda: len(api.made) == 4)
    assert [told for told in api.launcher.poll() if isinstance(told, AgentGone)] == []


def test_a_pod_that_who_submitted_the_run_makes_late_does_not_take_a_seat_that_is_taken() -> None:
    api = Fed()
    api.launcher.launch(SEATS[0], ())
    until(lambda: api.made)
    (own,) = api.made
    api.say("ADDED", one_of(own))
    api.say("ADDED", one_of("late"))
    until(lambda: api.deleted == ["late"])
    assert api.launcher.is_current(SEATS[0], f"{own}.1")
    assert not api.launcher.is_current(SEATS[0], "late.1")


def test_a_pod_that_an_older_list_lacks_is_there() -> None:
    api = Fed()
    api.launcher.launch(SEATS[0], ())
    until(lambda: api.made)
    (own,) = api.made
    until(lambda: api.launcher._pods[own].uid)
    api.say("LISTED", {"items": []})
    api.heard()
    assert not api.launcher.is_current(SEATS[0], f"{own}.1")
    api.say("ADDED", one_of(own))
    api.heard()
    assert api.launcher.is_current(SEATS[0], f"{own}.1")
    api.launcher.launch(SEATS[0], ())
    assert api.made == [own]
