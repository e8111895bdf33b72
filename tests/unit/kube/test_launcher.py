"""Pods as places of agents: what a launcher makes of what it sees, on a clock that is set by hand."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence

from tests.unit.kube.test_api import Script, client, script
from windlass.causes import Kind
from windlass.driver.launcher import Gone, News
from windlass.kube import names
from windlass.kube.api import Manifest
from windlass.kube.launcher import UNHEEDED, PodLauncher

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


def news(launcher: PodLauncher, seconds: float) -> Sequence[News]:
    select.select([launcher.fileno()], [], [], seconds)
    return launcher.poll()


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
    clock.now += UNHEEDED - 1.0
    assert not news(launcher, 2.5), "its node has only just been given it"
    clock.now += 1.0
    (gone,) = news(launcher, PATIENCE)
    assert isinstance(gone, Gone)
    assert gone.cause.kind is Kind.NODE_LOST
    assert "node1 does not answer" in gone.cause.message
