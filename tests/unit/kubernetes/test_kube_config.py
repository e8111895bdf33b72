"""Kubeconfig files, as kubectl reads them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

from longboat.engines.kubernetes import kube_config, node_capacity
from longboat.runtime.errors import LongboatError
from longboat.runtime.kube_client import quota
from longboat.runtime.kube_client.api import Manifest


def kubeconfig(path: Path, user: dict[str, object], **context: str) -> str:
    found = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", **context}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:8001/prefix/"}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(found))
    return str(path)


def test_the_current_context_says_where_and_the_namespace_can_be_overruled(tmp_path: Path) -> None:
    file = kubeconfig(tmp_path / "config", {"token": "secret"}, namespace="team")
    found = kube_config.server({"KUBECONFIG": file})
    assert (found.host, found.port, found.prefix, found.namespace) == ("127.0.0.1", 8001, "/prefix", "team")
    assert found.headers(False) == {"Authorization": "Bearer secret"}
    assert kube_config.server({"KUBECONFIG": file}, namespace="other").namespace == "other"


def test_several_files_are_one(tmp_path: Path) -> None:
    first = kubeconfig(tmp_path / "one", {"token": "first"})
    second = tmp_path / "two"
    second.write_text(yaml.safe_dump({"contexts": [{"name": "there", "context": {"cluster": "c", "user": "u"}}]}))
    found = kube_config.server({"KUBECONFIG": f"{first}:{second}"}, context="there")
    assert found.headers(False) == {"Authorization": "Bearer first"}


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_program_gives_the_credentials_and_is_asked_again_when_they_are_refused(tmp_path: Path, version: str) -> None:
    program = tmp_path / "login.py"
    program.write_text(
        "import json, os, sys\n"
        "count = len(open('asked').read()) if os.path.exists('asked') else 0\n"
        "open('asked', 'a').write('x')\n"
        "assert json.loads(os.environ['KUBERNETES_EXEC_INFO'])['kind'] == 'ExecCredential'\n"
        "print(json.dumps({'status': {'token': f'{sys.argv[1]}-{count}'}}))\n".replace(
            "'asked'", repr(f"{tmp_path}/asked")
        )
    )
    user = {
        "exec": {
            "apiVersion": f"client.authentication.k8s.io/{version}",
            "command": sys.executable,
            "args": [str(program), "token", str(tmp_path / "asked")],
        }
    }
    found = kube_config.server({"KUBECONFIG": kubeconfig(tmp_path / "config", json.loads(json.dumps(user)))})
    assert found.headers(False) == {"Authorization": "Bearer token-0"}
    assert found.headers(False) == {"Authorization": "Bearer token-0"}
    assert found.headers(True) == {"Authorization": "Bearer token-1"}


def test_a_context_that_does_not_exist_is_named_with_those_that_do(tmp_path: Path) -> None:
    file = kubeconfig(tmp_path / "config", {})
    with pytest.raises(LongboatError, match="no context 'nowhere'") as error:
        kube_config.server({"KUBECONFIG": file}, context="nowhere")
    assert "here" in error.value.hint


def test_without_a_kubeconfig_the_message_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(LongboatError, match="there is no kubeconfig") as error:
        kube_config.server({"KUBECONFIG": str(tmp_path / "none")})
    assert "KUBECONFIG" in error.value.hint


@pytest.mark.parametrize(
    ("text", "value"), [("500m", 0.5), ("2", 2.0), ("4Gi", 4 * 2**30), ("100M", 1e8), (None, 0.0), ("1e3", 1000.0)]
)
def test_quantities(text: object, value: float) -> None:
    assert quota.amount(text) == value


def test_what_is_free_and_why_a_pod_fits_nowhere() -> None:
    ready = [{"type": "Ready", "status": "True"}]
    node = {
        "metadata": {"name": "n"},
        "spec": {},
        "status": {"allocatable": {"cpu": "2", "memory": "4Gi"}, "conditions": ready},
    }
    resources = {"resources": {"requests": {"cpu": "500m"}}}
    pod = {"spec": {"nodeName": "n", "containers": [resources]}, "status": {"phase": "Running"}}
    (found,) = node_capacity.free([node], [pod])
    assert (found.cpu, found.memory, found.usable) == (1.5, 4 * 2**30, True)
    said = node_capacity.arithmetic([found], 4, 0, 0)
    assert said[0] == "asked 4 cpu, the most that a node has free is 1.5"
    assert said[1].startswith(f"{found.node}: free 1.5 cpu")
    assert node_capacity.arithmetic([found], 1, 2**30, 0) == []


def test_a_node_that_takes_no_pods_says_why_and_is_not_counted() -> None:
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "64", "memory": "1Gi"}}
    away = {**ready, "conditions": [{"type": "Ready", "status": "Unknown", "message": "no word from it"}]}
    taint = {"key": "gpu-only", "effect": "NoSchedule"}
    nodes: list[Manifest] = [
        {"metadata": {"name": "a"}, "spec": {}, "status": away},
        {"metadata": {"name": "b"}, "spec": {"unschedulable": True}, "status": ready},
        {"metadata": {"name": "c"}, "spec": {"taints": [taint]}, "status": ready},
    ]
    assert node_capacity.arithmetic(node_capacity.free(nodes, []), 1, 0, 0) == [
        "no node takes pods",
        "a: free 64 cpu, 1 GiB memory (not ready: no word from it)",
        "b: free 64 cpu, 1 GiB memory (closed to pods (cordoned))",
        "c: free 64 cpu, 1 GiB memory (tainted gpu-only)",
    ]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"current-context: \xff\xfe", "cannot be read"),
        (b"clusters: [", "cannot be read"),
        (b"- a\n- b\n", "no mapping"),
        (b"contexts: here\n", "`contexts` is no list"),
        (b"contexts: [here]\n", "`contexts[0]` has no name"),
        (b"clusters: [{cluster: {}}]\n", "`clusters[0]` has no name"),
        (b"users: [{name: u, user: me}]\n", "`user` of u in `users` is no mapping"),
    ],
)
def test_a_file_that_is_no_kubeconfig_is_named_with_what_is_wrong_in_it(tmp_path: Path, data: bytes, said: str) -> None:
    file = tmp_path / "config"
    file.write_bytes(data)
    with pytest.raises(LongboatError) as error:
        kube_config.server({"KUBECONFIG": str(file)})
    assert str(file) in error.value.message
    assert said in error.value.message


@pytest.mark.parametrize("server", ["https://host:64x43", "https://host:99999", "https://[::1", "host", ""])
def test_a_server_that_is_no_address_is_named_with_its_key(tmp_path: Path, server: str) -> None:
    file = tmp_path / "config"
    kubeconfig(file, {})
    found = yaml.safe_load(file.read_text())
    found["clusters"][0]["cluster"]["server"] = server
    file.write_text(yaml.safe_dump(found))
    with pytest.raises(LongboatError, match="is no address") as error:
        kube_config.server({"KUBECONFIG": str(file)})
    assert repr(server) in error.value.message
    assert str(file) in error.value.hint
    assert "clusters: c: server" in error.value.hint


def test_a_token_file_that_is_missing_is_named(tmp_path: Path) -> None:
    found = kube_config.server({"KUBECONFIG": kubeconfig(tmp_path / "config", {"tokenFile": "token"})})
    with pytest.raises(LongboatError, match=f"tokenFile {tmp_path}/token cannot be read"):
        found.headers(False)
