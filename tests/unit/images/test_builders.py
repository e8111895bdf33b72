"""What docker, podman and buildah are told."""

from __future__ import annotations

from longboat.images import builders
from longboat.runtime.light_dataclasses import replace

RECIPE = builders.DockerBuild(
    "python:3.12-slim",
    "ghcr.io/me/x:1",
    "linux/arm64",
    ("numpy",),
    "1000:1000",
    {"dev.longboat.key": "k"},
    315532800,
    output="i.tar",
)


def test_packages_come_before_the_code_so_that_they_can_be_reused() -> None:
    lines = RECIPE.dockerfile.splitlines()
    assert lines[0] == "FROM python:3.12-slim"
    assert [line.split()[0] for line in lines] == [
        "FROM",
        "USER",
        "COPY",
        "RUN",
        "ENV",
        "COPY",
        "LABEL",
        "WORKDIR",
        "USER",
    ]
    assert lines[-1] == "USER 1000:1000"
    assert "COPY code /opt/longboat/code" in lines


def test_packages_that_are_files_of_the_tree_come_after_it() -> None:
    recipe = replace(RECIPE, requirements=("./wheels/x.whl",), labels={})
    words = [line.split()[0] for line in recipe.dockerfile.splitlines()]
    assert words == ["FROM", "USER", "COPY", "COPY", "RUN", "ENV", "WORKDIR", "USER"]


def test_each_tool_is_spoken_to_in_its_own_words() -> None:
    def told(tool: str, insecure: bool = False) -> list[list[str]]:
        return builders.commands(tool, replace(RECIPE, insecure=insecure), "/d/context", "/d/digest")

    assert [words[:2] for words in told("docker")] == [["docker", "build"], ["docker", "push"], ["docker", "save"]]
    assert [words[:2] for words in told("podman")] == [["podman", "build"], ["podman", "push"], ["podman", "push"]]
    assert [words[:2] for words in told("buildah")] == [["buildah", "bud"], ["buildah", "push"], ["buildah", "push"]]
    assert all("linux/arm64" in told(tool)[0] for tool in builders.TOOLS)
    assert all("--tls-verify=false" in words for words in told("podman", insecure=True)[:2])
