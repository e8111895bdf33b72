"""`longboat why` names what a cluster did to a run, with the cluster's own words as evidence."""

from __future__ import annotations

import pytest
import yaml

from tests.e2e import jobs
from tests.e2e.place import Place

pytestmark = pytest.mark.slow


def why(place: Place, text: str, *words: str, programs: tuple[str, ...] = ()) -> tuple[str, str]:
    """The kind of the cause, and all that `why` says."""
    run = place.start(place.job(text, *programs), *words)
    last = place.ended(run)
    assert last["state"] == "failed"
    return str(last["cause"]["kind"]), place.longboat("why", run, "--on", "kubernetes", "-n", place.namespace)


def test_no_node_has_room(place: Place) -> None:
    text = jobs.single("python3 -c pass", "    resources: {cpu: 512}")
    kind, said = why(place, text, "--pending-timeout", "6s")
    assert kind == "unschedulable"
    assert "Insufficient cpu" in said
    assert "asked 512 cpu, the most that a node has free is" in said
    node = place.cluster.api.list("Node")[0]["metadata"]["name"]
    assert f"{node}: free " in said


def test_why_a_run_waits_is_told_while_it_waits(place: Place) -> None:
    run = place.start(place.job(jobs.single("python3 -c pass", "    resources: {cpu: 512}")))
    there = ("--on", "kubernetes", "-n", place.namespace)
    place.until(lambda: "asked 512 cpu, the most that a node has free is" in place.longboat("why", run, *there))
    said = place.longboat("why", run, *there)
    assert f"{run} is still " in said
    assert "main/worker-0: no node has room for the pod" in said
    place.longboat("rm", "--force", run, *there)


def test_an_image_that_cannot_be_pulled(place: Place) -> None:
    text = jobs.single("python3 -c pass") + "    ranks: {worker: {image: registry.invalid/none:1}}\n"
    # Long enough for the node to get as far as the image: what it mounts before may fail once, and would be the cause.
    kind, said = why(place, text, "--pending-timeout", "20s")
    assert kind == "image_pull"
    assert "registry.invalid/none:1" in said


def test_an_image_without_python(place: Place) -> None:
    text = jobs.single("python3 -c pass") + "    ranks: {worker: {image: longboat.test/pause:1}}\n"
    kind, said = why(place, text, "--pending-timeout", "60s")
    assert kind == "image_without_python"
    assert "no python3" in said


def test_a_rank_that_takes_more_memory_than_its_limit(place: Place) -> None:
    program = 'python3 -c "data = [bytearray(1 << 20) for _ in range(4096)]"'
    limits = "    restarts: 0\n    resources: {memory: 64Mi, limits: {memory: 64Mi}}"
    kind, said = why(place, jobs.single(program, limits))
    assert kind == "out_of_memory"
    assert "memory" in said


def test_a_rank_that_fills_more_disk_than_its_limit_is_not_tried_for_ever(place: Place) -> None:
    limit = "    pod: {spec: {containers: [{name: rank, resources: {limits: {ephemeral-storage: 20Mi}}}]}}"
    kind, said = why(place, jobs.single("head -c 80M /dev/zero > /tmp/large && sleep 3000", limit))
    assert kind == "disk_full"
    assert "limit" in said
    assert "20Mi" in said


def test_a_pod_without_a_name_server(place: Place) -> None:
    program = "python3 -c \"import socket; socket.getaddrinfo('peer.nowhere', 80)\""
    dns = "    restarts: 0\n    pod: {spec: {dnsPolicy: None, dnsConfig: {nameservers: [192.0.2.1]}}}"
    kind, said = why(place, jobs.single(program, dns))
    assert kind == "name_not_resolved"
    assert "no response from the name server 192.0.2.1 (/etc/resolv.conf)" in said
    assert "port 53" in said


def test_a_driver_without_rights_says_which_and_how_to_get_them(place: Place) -> None:
    meta = {"name": "powerless"}
    place.cluster.api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta})
    run = place.start(place.job(jobs.single("python3 -c pass")), "--service-account", "powerless")
    assert place.ended(run)["cause"]["kind"] == "forbidden"
    said = place.longboat("why", run, "--on", "kubernetes", "-n", place.namespace)
    assert f'cannot get resource "configmaps" in API group "" in the namespace "{place.namespace}"' in said
    assert f"--serviceaccount={place.namespace}:powerless" in said


def test_a_program_that_fails_is_named_with_its_line(place: Place) -> None:
    text = jobs.single("python3 -c \"raise ValueError('a wrong number')\"", "    restarts: 0")
    kind, said = why(place, text)
    assert kind == "user_error"
    assert "ValueError: a wrong number" in said


def test_a_namespace_whose_quota_is_used_up(place: Place) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small"},
        "spec": {"hard": {"pods": "2"}},
    }
    place.cluster.api.create(quota)
    try:
        # A quota holds from when it was first counted.
        place.until(lambda: place.cluster.api.get("ResourceQuota", "small").get("status", {}).get("hard"))
        kind, said = why(place, jobs.gang(10), programs=("gang_sgd.py",))
    finally:
        place.cluster.api.delete("ResourceQuota", "small")
    assert kind == "quota_exceeded"
    assert "exceeded quota: small" in said


def test_what_pod_security_refuses(place: Place) -> None:
    """`run` asks beforehand; what is applied by hand meets it in the cluster."""
    job = place.job(jobs.single("python3 -c pass", "    pod: {spec: {hostNetwork: true}}"))
    there = ("--on", "kubernetes", "-n", place.namespace)
    assert "host namespaces" in place.longboat("run", job, *there, code=2)
    place.longboat("export", job, "-o", job / "run.yaml", "-n", place.namespace, "--run", "one-byhand")
    for obj in yaml.safe_load_all((job / "run.yaml").read_text()):
        place.cluster.api.apply(obj)
    assert place.ended("one-byhand")["cause"]["kind"] == "refused_by_cluster"
    assert "host namespaces" in place.longboat("why", "one-byhand", *there)


def test_a_driver_that_cannot_start_is_explained_too(place: Place) -> None:
    run = place.start(place.job(jobs.single("python3 -c pass", image="registry.invalid/none:1")))
    there = ("--on", "kubernetes", "-n", place.namespace)
    place.until(lambda: "registry.invalid/none:1" in place.longboat("why", run, *there))
    place.longboat("rm", "--force", run, *there)


def test_a_volume_that_is_never_bound(place: Place) -> None:
    run = place.start(place.job(jobs.single("python3 -c pass")), "--storage-class", "none-such")
    there = ("--on", "kubernetes", "-n", place.namespace)
    place.until(lambda: "a volume" in place.longboat("why", run, *there))
    place.longboat("rm", "--force", run, *there)
