"""Never two drivers: one leaves when its pod is to go or is another's, or when nobody answers; then force is safe."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from longboat.engines.kubernetes import lost_driver
from longboat.runtime.kube_client import names
from longboat.runtime.pod.leadership import LOOK, TRIES, Leadership
from tests.unit.kube_client.test_api import Answer, Script, client, script, status

__all__ = ["script"]


def pod(uid: str = "a", told: str = "") -> dict[str, object]:
    meta = {"name": "r-driver-0", "uid": uid, **({"deletionTimestamp": told} if told else {})}
    env = [{"name": "LONGBOAT_DRIVER_LEASE", "value": "20"}]
    return {"metadata": meta, "spec": {"nodeName": "node1", "containers": [{"env": env}]}}


class Hands:
    """A clock that is set by hand, or by who sleeps."""

    now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (pod(), None),
        (pod(uid="b"), "another pod has replaced it"),
        (pod(told="2026-01-01T00:00:00Z"), "its pod is being deleted"),
        (None, "another pod has replaced it"),
    ],
)
def test_a_driver_goes_by_what_has_become_of_its_pod(script: Script, found: object, why: str | None) -> None:
    script.answers = [(200, {}, [found]) if found else (404, {}, [status(404, "NotFound")])]
    assert Leadership(client(script), "r-driver-0", "a", 20.0).over() == why


def test_a_driver_that_nobody_answers_leaves_when_its_lease_is_over(script: Script) -> None:
    clock = Hands()
    tenure = Leadership(client(script, patience=0.0), "r-driver-0", "a", 20.0, clock)
    away: Answer = (503, {}, [status(503, "ServiceUnavailable", "away")])
    script.answers = [(200, {}, [pod()]), away, away, (200, {}, [pod()]), away]
    assert tenure.over() is None
    clock.now += 19.0
    assert tenure.over() is None, "the lease runs from the last answer"
    clock.now += 1.0
    assert tenure.over() == "no response from the API server for 20 s: away"
    assert tenure.over() is None, "it is back"
    clock.now += 19.0
    assert tenure.over() is None


class Left(Exception):
    """The driver's process would be gone."""


@pytest.mark.parametrize("lease", [1.0, 5.0, 20.0, 300.0])
def test_a_driver_asks_several_times_in_each_lease_and_leaves_at_its_end(
    script: Script, monkeypatch: pytest.MonkeyPatch, lease: float
) -> None:
    clock = Hands()

    def leave(code: int) -> None:
        raise Left

    monkeypatch.setattr("longboat.runtime.pod.leadership.time", clock)
    monkeypatch.setattr("longboat.runtime.pod.leadership.os", SimpleNamespace(_exit=leave))
    tenure = Leadership(client(script, patience=0.0), "r-driver-0", "a", lease, clock)
    away: Answer = (503, {}, [status(503, "ServiceUnavailable", "away")])
    unlucky: list[Answer] = [away, away, (200, {}, [pod()])]
    script.answers = [*unlucky, *unlucky, *[away] * 1000]
    with pytest.raises(Left):
        tenure._check_regularly()
    assert 1000 - len(script.answers) >= TRIES
    assert clock.now == pytest.approx(100.0 + 6 * min(LOOK, lease / TRIES) + lease), "from the last answer on"


def test_a_lost_driver_is_given_up_when_its_lease_and_a_margin_are_over() -> None:
    told = pod(told="2026-01-01T00:00:00Z")
    at = 1767225600.0
    assert lost_driver.over(pod()) == 0.0, "it was never told to go"
    assert lost_driver.over(told) == at + 20.0 + names.DRIVER_MARGIN
    assert lost_driver.cause(pod(), at + 1e6) is None
    assert lost_driver.cause(told, at + 5.0) is None, "it may just be going"
    cause = lost_driver.cause(told, at + 31.0)
    assert cause is not None
    assert cause.message.startswith("node1 does not answer")
