"""What is put aside to be served, what a server's pod means, and which lines of its log are new."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from longboat.runtime.causes import CauseKind
from longboat.runtime.driver.history import look_back
from longboat.runtime.driver.launcher import StageNote
from longboat.runtime.driver.services import News, ServiceEnded, ServiceEvent
from longboat.runtime.errors import PACKAGES_MISSING, PYTHON_TOO_OLD, LongboatError
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import Manifest
from longboat.runtime.plan import Plan, Serve, Stage
from longboat.runtime.pod import pod_status
from longboat.runtime.pod.model_servers import ModelServers, ServiceSettings, rolled
from longboat.runtime.pod.model_snapshots import snapshot_model
from longboat.runtime.pod.server_logs import ServerLogs
from longboat.runtime.seat import Seat
from tests.local.place import until
from tests.unit.kube_client.listening import listening
from tests.unit.kube_client.test_api import Answer, Script, client, status

SEAT = Seat("serve", "server", 0)


def version(run: Path, number: int, content: str = "one", model: str = "digits", mark: str = "bundle.json") -> Path:
    place = run / "output" / "train" / model / str(number)
    place.mkdir(parents=True, exist_ok=True)
    (place / mark).write_text("{}")
    (place / "weights").write_text(content)
    return place


def laid(run: Path, saved: bool = False) -> tuple[int, int, str]:
    snapshot = snapshot_model(str(run), "serve", str(run / "output" / "train"), saved)
    return snapshot.number, snapshot.version, snapshot.directory


def test_the_newest_version_is_put_aside_and_stays_as_it_was(tmp_path: Path) -> None:
    version(tmp_path, 1)
    version(tmp_path, 2, "two")
    assert laid(tmp_path) == (1, 2, "models/serve/1")
    os.replace(version(tmp_path, 3, "three") / "weights", tmp_path / "output/train/digits/2/weights")
    assert (tmp_path / "models/serve/1/2/weights").read_text() == "two", "what a later attempt does is not served"


def test_the_same_model_keeps_its_number_and_another_one_gets_the_next(tmp_path: Path) -> None:
    version(tmp_path, 1)
    assert [laid(tmp_path)[0], laid(tmp_path)[0]] == [1, 1]
    for number in range(2, 6):
        version(tmp_path, number, f"content {number}")
        assert laid(tmp_path)[:2] == (number, number)
    assert sorted(os.listdir(tmp_path / "models/serve")) == ["3", "4", "5"], "pods of a roll want both, and that is all"


def test_a_stock_server_is_given_the_newest_version_that_has_a_saved_model(tmp_path: Path) -> None:
    version(tmp_path, 1, mark="saved_model.pb")
    version(tmp_path, 2)
    assert laid(tmp_path, saved=True) == (1, 1, "models/serve/1")
    assert laid(tmp_path)[1] == 2


@pytest.mark.parametrize(
    ("models", "saved", "wrong"),
    [((), False, "wrote no model"), (("a", "b"), False, "several models .a, b."), (("a",), True, "no SavedModel")],
)
def test_what_cannot_be_served_is_said_with_a_fix(
    tmp_path: Path, models: tuple[str, ...], saved: bool, wrong: str
) -> None:
    for model in models:
        version(tmp_path, 1, model=model)
    with pytest.raises(LongboatError, match=wrong) as error:
        laid(tmp_path, saved)
    assert error.value.hint


def pod(name: str = "p-1", **server: Any) -> Manifest:
    state = {"name": names.SERVER, "image": "plain:1", "containerID": "c1", "restartCount": 0, **server}
    labels = {names.STAGE_LABEL: "serve"}
    meta = {"name": name, "labels": labels, "annotations": {names.MODEL: "2"}}
    spec = {"nodeName": "node0", "containers": [{"name": names.SERVER, "image": "plain:1"}]}
    return {"metadata": meta, "spec": spec, "status": {"containerStatuses": [state]}}


def ended(code: int, message: str = "", **more: Any) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "message": message, **more}}


@pytest.mark.parametrize(
    ("state", "kind", "said"),
    [
        (
            ended(PACKAGES_MISSING, "a line\nerror: the server needs packages: onnxruntime\n\nhint: install"),
            CauseKind.MISSING_INPUT,
            "the image plain:1 lacks what the server needs: the server needs packages: onnxruntime",
        ),
        (
            ended(PYTHON_TOO_OLD, "error: the server needs Python 3.11, but this image has 3.9"),
            CauseKind.MISSING_INPUT,
            "Python 3.11",
        ),
        (ended(137, reason="OOMKilled"), CauseKind.OUT_OF_MEMORY, "because memory ran out"),
        (ended(1, "Traceback\nValueError: no"), CauseKind.USER_ERROR, "exited with code 1: ValueError: no"),
        (ended(128, 'exec: "python3": executable file not found in $PATH'), CauseKind.NO_PYTHON, "has no python3"),
    ],
)
def test_a_server_that_fell_says_why(state: dict[str, Any], kind: CauseKind, said: str) -> None:
    falls, cause = pod_status.failures(pod(state={"waiting": {}}, lastState=state, restartCount=2), SEAT)
    assert cause is not None
    assert (falls, cause.kind) == (2, kind)
    assert said in cause.message


def test_a_server_that_ended_well_or_runs_has_not_fallen() -> None:
    assert pod_status.failures(pod(state={"running": {}}), SEAT) == (0, None)
    assert pod_status.failures(pod(state=ended(0)), SEAT) == (0, None)


def test_a_quota_that_keeps_servers_from_being_made_is_a_cause() -> None:
    condition = {"type": "ReplicaFailure", "status": "True", "message": "pods exceeded quota: small"}
    cause = pod_status.replica_failure({"status": {"conditions": [condition]}})
    assert cause is not None
    assert cause.kind is CauseKind.QUOTA


@pytest.mark.parametrize(
    ("status", "done"),
    [
        ({"replicas": 2, "updatedReplicas": 2, "availableReplicas": 2, "observedGeneration": 3}, True),
        ({"replicas": 3, "updatedReplicas": 2, "availableReplicas": 3, "observedGeneration": 3}, False),
        ({"replicas": 2, "updatedReplicas": 2, "availableReplicas": 1, "observedGeneration": 3}, False),
        ({"replicas": 2, "updatedReplicas": 2, "availableReplicas": 2, "observedGeneration": 2}, False),
        ({}, False),
    ],
)
def test_a_roll_is_done_when_all_servers_are_new_and_available(status: dict[str, int], done: bool) -> None:
    assert rolled({"metadata": {"generation": 3}, "spec": {"replicas": 2}, "status": status}) is done


class _Cluster:
    """What the API server would give of logs."""

    def __init__(self, *lines: str) -> None:
        self.lines = list(lines)
        self.asked: list[str] = []

    def log(self, _pod: str, _container: str, since: str) -> Iterator[bytes]:
        self.asked.append(since)
        yield from (f"{line}\n".encode() for line in self.lines)


def followed(run: Path, cluster: _Cluster, pod: Manifest, killed: bool = False) -> list[News]:
    """What is written down of a pod that runs, by a driver that has read its log and then ends or is killed."""
    told: list[News] = []
    logs = ServerLogs(cluster, str(run), told.append)  # type: ignore[arg-type]
    logs.saw("serve", pod)
    log, last = run / "logs/serve/server-0.log", cluster.lines[-1].partition(" ")[2]
    until(lambda: log.exists() and log.read_text().endswith(f"{last}\n"), f"the line {last!r}")
    if killed:
        with logs._lock:
            logs._closed = True
            logs._changed.clear()  # nothing of what it had in mind is written down
    else:
        logs.close()
    return told


def test_each_line_of_a_server_is_kept_once_also_by_the_next_driver(tmp_path: Path) -> None:
    first = "2026-01-01T00:00:01.5Z one"
    second = "2026-01-01T00:00:01.500000001Z two"
    (started,) = followed(tmp_path, _Cluster(first, second), pod(state={"running": {}}))
    assert isinstance(started, ServiceEvent)
    assert (started.ev, started.keys["rank"], started.keys["gen"]) == ("rank.started", 0, 2)
    cluster = _Cluster(first, second, "2026-01-01T00:00:02Z three")
    followed(tmp_path, cluster, pod(state={"running": {}}))
    assert cluster.asked[0] == "2026-01-01T00:00:01Z"
    assert (tmp_path / "logs/serve/server-0.log").read_text() == "one\ntwo\nthree\n"


def test_a_driver_that_is_killed_before_it_wrote_its_book_doubles_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longboat.runtime.pod.server_logs.KEEP", 3600.0)
    first, second = "2026-01-01T00:00:01Z one", "2026-01-01T00:00:02Z two"
    log = tmp_path / "logs/serve/server-0.log"
    log.parent.mkdir(parents=True)
    log.write_text("of an earlier pod\n")
    followed(tmp_path, _Cluster(first), pod(state={"running": {}}), killed=True)
    assert log.read_text() == "of an earlier pod\none\n"
    followed(tmp_path, _Cluster(first, second), pod(state={"running": {}}))
    assert log.read_text() == "of an earlier pod\none\ntwo\n"


def test_a_book_is_not_written_for_every_line(tmp_path: Path) -> None:
    class Written(ServerLogs):
        times = 0

        def _write_index(self, stage: str) -> None:
            self.times += 1
            super()._write_index(stage)

    lines = [f"2026-01-01T00:00:01.{number:09d}Z {number}" for number in range(2000)]
    logs = Written(_Cluster(*lines), str(tmp_path), lambda _news: None)  # type: ignore[arg-type]
    logs.saw("serve", pod(state={"running": {}}))
    log = tmp_path / "logs/serve/server-0.log"
    until(lambda: log.exists() and log.read_text().endswith("\n1999\n"), "the last line")
    logs.close()
    assert json.loads((tmp_path / "logs/serve/.servers.json").read_text())["p-1"]["rank"] == 0
    assert logs.times < 100


class _Refusing(Script):
    """A cluster without servers that cannot take any now."""

    def reply(self, method: str, path: str) -> Answer:
        if method == "PATCH":
            return 503, {}, [status(503, "Unavailable", "a webhook does not answer")]
        if method == "DELETE":
            return 404, {}, [status(404, "NotFound")]
        if "watch=1" in path:
            return 200, {}, []
        return 200, {}, [{"items": [], "metadata": {"resourceVersion": "1"}}]


@pytest.fixture
def refusing() -> Iterator[_Refusing]:
    with listening(_Refusing()) as server:
        yield server


def begun(cluster: Script, run: Path, data: dict[str, str], pending: float) -> ModelServers:
    version(run, 1)
    stage = Stage("serve", kind="serve", serve=Serve("train", name="digits"))
    root = {"metadata": {"name": "r", "uid": "u", "namespace": "n"}, "data": data}
    api = client(cluster, patience=0.0)
    settings = ServiceSettings("10.0.0.1", pending)
    servers = ModelServers(api, root, Plan("job", stages=(stage,)), str(run), settings, lambda: None)
    servers.begin("serve")
    return servers


def heard(servers: ModelServers, kind: type[News]) -> Any:
    due = time.monotonic() + 30.0
    while time.monotonic() < due:
        select.select([servers.fileno()], [], [], 1.0)
        for each in servers.poll():
            if isinstance(each, kind):
                return each
    raise AssertionError(f"no {kind.__name__}")


TEMPLATES = {names.servers("serve"): json.dumps([{"kind": "Service", "metadata": {"name": "r-serve"}}])}


def test_a_server_that_cannot_be_made_now_can_be_ended(refusing: _Refusing, tmp_path: Path) -> None:
    servers = begun(refusing, tmp_path, TEMPLATES, 3600.0)
    assert "a webhook does not answer" in heard(servers, StageNote).text
    servers.end("serve")
    assert heard(servers, ServiceEnded).cause is None


def test_a_server_that_cannot_be_made_is_given_up_in_the_end(refusing: _Refusing, tmp_path: Path) -> None:
    over = heard(begun(refusing, tmp_path, TEMPLATES, 0.5), ServiceEnded)
    assert "a webhook does not answer" in over.cause.message


def test_a_stage_whose_thread_fails_is_over(refusing: _Refusing, tmp_path: Path) -> None:
    over = heard(begun(refusing, tmp_path, {}, 3600.0), ServiceEnded)
    assert over.cause.kind is CauseKind.INTERNAL


def test_a_pod_takes_the_lowest_number_that_is_free(tmp_path: Path) -> None:
    told: list[News] = []
    logs = ServerLogs(_Cluster(), str(tmp_path), told.append)  # type: ignore[arg-type]
    for name in ("a", "b", "c"):
        logs.saw("serve", pod(name))
    logs.gone("serve", pod("b"))
    logs.saw("serve", pod("d"))
    assert [logs.rank(name) for name in ("a", "b", "c", "d")] == [0, -1, 2, 1]


def test_an_order_in_the_journal_runs_stages_anew_whoever_reads_it() -> None:
    events: list[dict[str, Any]] = [
        {"ev": "stage.started", "stage": "train", "attempt": 1},
        {"ev": "stage.ended", "stage": "train", "state": "succeeded"},
        {"ev": "stage.started", "stage": "serve", "attempt": 1},
        {"ev": "stage.ready", "stage": "serve"},
        {"ev": "run.started", "order": "a1", "again": ["train"], "left_out": ["load"]},
    ]
    before = look_back(events)
    assert (before.passed, dict(before.unfinished), before.left_out, before.order) == ((), {}, ("load",), "a1")
    again = {"ev": "stage.started", "stage": "train", "attempt": 2}
    assert list(look_back([*events, again]).unfinished) == ["train"], "the next driver goes on with it"
