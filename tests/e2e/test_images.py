"""Images are built, pushed to a real registry with the user's login, and run as an ordinary user."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from longboat.images import builders
from tests.cluster import images
from tests.cluster.addons import add
from tests.cluster.cluster import Cluster, kubectl
from tests.cluster.places import home
from tests.e2e import registries
from tests.e2e.place import LONGBOAT, Place
from tests.e2e.registries import Registry
from tests.unit.images import making


@dataclass
class Builder:
    """Somebody with a job and a login."""

    directory: Path

    def __post_init__(self) -> None:
        self.job = making.tree(self.directory / "job")
        making.base(self.directory / "base.tar")
        (self.job / "job.yaml").write_text("name: hello\nstages: {main: {run: python3 train.py}}\n")

    def longboat(self, *words: str, code: int = 0) -> str:
        environ = {**os.environ, "DOCKER_CONFIG": str(self.directory / "docker"), "NO_COLOR": "1"}
        environ["LONGBOAT_HOME"] = str(self.directory / "home")
        done = subprocess.run(
            [*LONGBOAT, *words], env=environ, cwd=self.directory, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def build(self, target: str, *words: str, code: int = 0, base: str = "base.tar") -> str:
        return self.longboat("build", "job", "--base", base, "-t", target, *words, code=code)

    def login(self, address: str, password: str = registries.PASSWORD) -> None:
        registries.login(self.directory / "docker", address, password=password)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with registries.registry(tmp_path_factory.mktemp("registry")) as found:
        yield found


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    return Builder(tmp_path)


@pytest.fixture
def ours() -> Cluster:
    """The test cluster; another cluster's nodes cannot be reached into."""
    if not os.environ["KUBECONFIG"].startswith(str(home())):
        pytest.skip("KUBECONFIG names another cluster")
    return Cluster("test", print)


def test_what_the_registry_has_is_neither_built_nor_sent_again(builder: Builder, registry: Registry) -> None:
    builder.login(registry.address)
    first = builder.build(f"{registry.address}/again/hello:1", "--json")
    told = json.loads(first.partition("}")[0] + "}")
    assert told["pushed"]
    assert told["sent_bytes"] > 0
    sent = registry.asked("PUT", "/again/hello/blobs/")
    again = builder.build(f"{registry.address}/again/hello:1")
    assert f"unchanged: {registry.address}/again/hello:1 already exists" in again
    assert told["digest"] in again
    assert registry.asked("PUT", "/again/hello/") == sent + 1, "the manifest, the first time"
    (builder.job / "train.py").write_text("print('changed')\n")
    assert "unchanged" not in builder.build(f"{registry.address}/again/hello:1")
    assert registry.asked("PUT", "/again/hello/blobs/") == sent + 2, "the code and the configuration, not the base"


def test_layers_of_a_base_in_the_same_registry_are_taken_over_there(builder: Builder, registry: Registry) -> None:
    builder.login(registry.address)
    builder.build(f"{registry.address}/below/base:1")
    (builder.job / "train.py").write_text("print('on top')\n")
    base = f"{registry.address}/below/base:1"
    builder.build(f"{registry.address}/above/hello:1", base=base)
    assert registry.asked("PUT", "/above/hello/blobs/") == 2, "the code and the configuration"
    assert registry.asked("GET", "/below/base/blobs/") == 1, "the configuration: no layer came here"


def test_a_refused_login_is_named_with_the_command_that_logs_in(builder: Builder, registry: Registry) -> None:
    target = f"{registry.address}/team/hello"
    said = builder.build(target, code=1)
    assert f"{registry.address} needs a login, and {builder.directory}/docker/config.json" in said
    assert f"login {registry.address}" in said
    builder.login(registry.address, "wrong")
    said = builder.build(target, code=1)
    assert f"{registry.address} rejected the login of longboat from {builder.directory}/docker/config.json" in said
    assert "wrong" not in said, "a password is shown to nobody"


def test_a_registry_with_tokens_gets_one_and_says_what_is_not_allowed(builder: Builder, tmp_path: Path) -> None:
    with (
        registries.Authority(tmp_path / "authority") as authority,
        registries.registry(tmp_path / "registry", authority.settings) as registry,
    ):
        builder.login(registry.address, "wrong")
        assert "rejected the login of longboat" in builder.build(f"{registry.address}/mine/hello:1", code=1)
        builder.login(registry.address)
        assert "pushed" in builder.build(f"{registry.address}/mine/hello:1")
        assert "repository:mine/hello:pull,push" in authority.scopes
        said = builder.build(f"{registry.address}/theirs/hello:1", code=1)
        assert f"{registry.address} does not allow longboat to push to theirs/hello" in said
        assert "removed" in builder.longboat("rm", "--images")


def test_images_that_were_pushed_can_be_removed_where_the_registry_allows_it(builder: Builder, tmp_path: Path) -> None:
    with registries.registry(tmp_path / "open") as registry:
        builder.login(registry.address)
        builder.build(f"{registry.address}/team/hello:1")
        assert f"removed {registry.address}/team/hello:1" in builder.longboat("rm", "--images")
        assert "no images were pushed from this machine" in builder.longboat("rm", "--images")
        assert "pushed" in builder.build(f"{registry.address}/team/hello:1"), "it is gone: built again"
    with registries.registry(tmp_path / "closed", deletes=False) as registry:
        builder.login(registry.address)
        builder.build(f"{registry.address}/team/hello:2")
        said = builder.longboat("rm", "--images", code=1)
        assert f"{registry.address} does not allow deleting images" in said


@pytest.mark.addon
def test_a_tool_of_the_machine_builds_the_same_thing_if_it_is_told_to(builder: Builder, registry: Registry) -> None:
    assert builders.installed_tool(), "install docker, podman or buildah for this test"
    builder.login(registry.address)
    builder.build(f"{registry.address}/tool/base:1")
    (builder.job / "train.py").write_text("print('by a tool')\n")
    words = ("--with", builders.installed_tool(), "--insecure")
    base = f"{registry.address}/tool/base:1"
    assert "pushed" in builder.build(f"{registry.address}/tool/hello:1", *words, base=base)
    assert "unchanged" in builder.build(f"{registry.address}/tool/hello:1", *words, base=base)


@contextmanager
def forwarded() -> Iterator[None]:
    """The registry of the cluster under the name that its nodes have for it."""
    command = [str(kubectl()), "-n", "registry", "port-forward", "service/registry", "30500:5000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    said = process.stdout.readline()
    threading.Thread(target=process.stdout.read, daemon=True).start()
    try:
        assert "Forwarding" in said, said
        yield
    finally:
        process.kill()
        process.wait()


JOB = """
name: built
base: %(base)s
image: localhost:30500/%(name)s
pull_secrets: pull
requirements: ["--no-index", "--find-links ./wheels", tool]
stages:
  main:
    run: |
      id -u; pwd; tool; python3 train.py
      touch writable
"""


@pytest.mark.slow
def test_a_cluster_pulls_and_runs_what_run_built_and_rm_takes_it_away(place: Place, ours: Cluster) -> None:
    add(ours, "registry", print)
    base = images.make("python", {})
    code = making.tree(place.directory / "job")
    making.wheel(code / "wheels")
    (code / "large.bin").write_bytes(os.urandom(20_000_000))  # more than travels in ConfigMaps
    (code / "job.yaml").write_text(JOB % {"base": base, "name": place.namespace})
    words = ["create", "secret", "docker-registry", "pull", "--docker-server=localhost:30500"]
    words += [f"--docker-username={registries.USER}", f"--docker-password={registries.PASSWORD}"]
    ours.kubectl("-n", place.namespace, *words)
    registries.login(place.directory / "docker", "localhost:30500")
    with forwarded(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_CONFIG", str(place.directory / "docker"))
        said = place.longboat("run", code, "--build", "--on", "kubernetes", "-n", place.namespace)
        printed = [line for line in said.splitlines() if line.startswith("[worker-0] ")]  # events may come in between
        wanted = [f"[worker-0] {text}" for text in ("1000", "/longboat/code", "tool", "training")]
        assert "\n".join(wanted) in "\n".join(printed)
        run = said.partition("submitted ")[2].partition(" ")[0]
        pod = place.cluster.api.find("Pod", f"{run}-driver-0")
        assert pod is not None
        assert pod["spec"]["containers"][0]["image"].startswith(f"localhost:30500/{place.namespace}@sha256:")
        left = place.longboat("left", "-n", place.namespace)
        assert f"Image                  localhost:30500/{place.namespace}:" in left
        again = place.longboat("run", code, "--build", "--on", "kubernetes", "-n", place.namespace, "--detach")
        assert "unchanged: " in again
        place.ended(again.partition("already exists\n")[2].split()[0])
        assert " uses it" in place.longboat("rm", run, "--images", "-n", place.namespace)
        assert f"removed localhost:30500/{place.namespace}:" in place.longboat("rm", "--images")


def test_plain_http_to_another_machine_has_to_be_asked_for(builder: Builder, ours: Cluster) -> None:
    add(ours, "registry", print)
    address = f"{ours.node('0').address}:30500"
    builder.login(address)
    said = builder.build(f"{address}/plain/hello:1", code=1)
    assert f"cannot reach {address}" in said
    assert "--insecure" in said
    assert "pushed" in builder.build(f"{address}/plain/hello:1", "--insecure")
    assert "removed" in builder.longboat("rm", "--images")


def test_containerd_imports_the_written_file(builder: Builder, ours: Cluster) -> None:
    name = f"longboat.test/{builder.directory.name.replace('_', '-')}:1"
    builder.longboat("build", "job", "--base", "base.tar", "-t", name, "-o", "image.tar", "--no-push")
    ours.load(builder.directory / "image.tar")
    assert all(name in ours.images(node) for node in ours.nodes())
