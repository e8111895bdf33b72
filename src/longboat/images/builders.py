"""Builds images with docker, podman or buildah: Dockerfile, context and commands.

These tools run the base image, so they can compile packages without a wheel and use local images. The result has the
same files and paths as an image of the built-in builder. Only podman and buildah give the same digest each time, as
long as the package index does not change.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence

from longboat.images.oci_image import CODE, PACKAGES
from longboat.images.python_packages import uses_tree
from longboat.runtime.errors import FAILED, LongboatError
from longboat.runtime.light_dataclasses import dataclass

TOOLS = ("docker", "podman", "buildah")
_PIP = "python3 -m pip install --no-cache-dir --no-compile --disable-pip-version-check"


@dataclass(frozen=True)
class DockerBuild:
    """Settings of a build with a tool."""

    base: str
    target: str
    platform: str
    requirements: tuple[str, ...]
    user: str
    labels: Mapping[str, str]
    when: int
    push: bool = True
    output: str = ""
    insecure: bool = False

    @property
    def dockerfile(self) -> str:
        lines = [f"FROM {self.base}", "USER 0:0"]
        code = [f"COPY code {CODE}"]
        if uses_tree(self.requirements):
            lines, code = [*lines, *code], []
        if self.requirements:
            lines += [
                "COPY requirements.txt /opt/longboat/requirements.txt",
                f"RUN mkdir -p {CODE} && cd {CODE} && {_PIP} --target {PACKAGES} -r /opt/longboat/requirements.txt",
                f"ENV PYTHONPATH={PACKAGES}${{PYTHONPATH:+:$PYTHONPATH}} PATH=$PATH:{PACKAGES}/bin",
            ]
        lines += code  # last, so that a code change does not reinstall the packages
        lines += [f"LABEL {name}={json.dumps(value)}" for name, value in sorted(self.labels.items())]
        lines += [f"WORKDIR {CODE}", f"USER {self.user}"]
        return "\n".join(lines) + "\n"


def installed_tool() -> str:
    """The first tool that is installed and works, or ""."""
    for tool in TOOLS:
        if shutil.which(tool) and subprocess.run([tool, "info"], capture_output=True, check=False).returncode == 0:
            return tool
    return ""


def build(
    tool: str,
    recipe: DockerBuild,
    code: str,
    names: Sequence[str],
    environ: Mapping[str, str],
    say: Callable[[str], None],
) -> str:
    """Build the image. Returns the digest of a pushed image, the ID of any other."""
    if shutil.which(tool) is None:
        raise LongboatError(f"{tool} is not installed", "remove --with to use the built-in builder")
    if os.path.exists(recipe.base):
        raise LongboatError(f"{tool} cannot use a base image from a file", "use the built-in builder: --with none")
    with tempfile.TemporaryDirectory(prefix="longboat-build-") as directory:
        _context(recipe, code, names, directory)
        environment = {**environ, "SOURCE_DATE_EPOCH": str(recipe.when)}
        digest_file = os.path.join(directory, "digest")
        for command in commands(tool, recipe, os.path.join(directory, "context"), digest_file):
            say(f"$ {' '.join(command)}")
            _run(command, environment)
        if recipe.push and tool != "docker":
            with open(digest_file, encoding="utf-8") as file:
                return file.read().strip()
        return _digest(tool, recipe, environment)


def commands(tool: str, recipe: DockerBuild, context: str, digest_file: str) -> list[list[str]]:
    """The tool's commands, in order. digest_file: where podman and buildah write the digest."""
    target, output = recipe.target, recipe.output
    common = ["--platform", recipe.platform, "-t", target]
    if tool == "docker":
        steps = [["docker", "build", *common, "--build-arg", f"SOURCE_DATE_EPOCH={recipe.when}", context]]
        steps += [["docker", "push", target]] if recipe.push else []
        steps += [["docker", "save", "-o", output, target]] if output else []
        return steps
    verify = ["--tls-verify=false"] if recipe.insecure else []
    steady = ["--format", "oci", "--timestamp", str(recipe.when), *verify]
    steps = [[tool, "build" if tool == "podman" else "bud", *common, *steady, context]]
    steps += [[tool, "push", *verify, "--digestfile", digest_file, target]] if recipe.push else []
    steps += [[tool, "push", target, f"oci-archive:{os.path.abspath(output)}:{target}"]] if output else []
    return steps


def _context(recipe: DockerBuild, code: str, names: Sequence[str], directory: str) -> None:
    top = os.path.join(directory, "context")
    os.makedirs(os.path.join(top, "code"))
    for name in names:
        target = os.path.join(top, "code", name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copyfile(os.path.join(code, name), target)
        executable = os.stat(os.path.join(code, name)).st_mode & 0o100
        os.chmod(target, 0o755 if executable else 0o644)
    with open(os.path.join(top, "requirements.txt"), "w", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in recipe.requirements))
    with open(os.path.join(top, "Dockerfile"), "w", encoding="utf-8") as file:
        file.write(recipe.dockerfile)
    for folder, _, inside in os.walk(top, topdown=False):
        os.chmod(folder, 0o755)
        for path in (folder, *(os.path.join(folder, name) for name in inside)):
            os.utime(path, (recipe.when, recipe.when))


def _run(command: list[str], environ: Mapping[str, str]) -> str:
    done = subprocess.run(command, env=dict(environ), capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise LongboatError(f"`{command[0]} {command[1]}` failed:\n" + "\n".join(lines[-12:]), "", FAILED)
    return done.stdout


def _digest(tool: str, recipe: DockerBuild, environ: Mapping[str, str]) -> str:
    target = recipe.target
    if tool == "buildah":
        command = ["buildah", "inspect", "--type", "image", "-f", "{{.FromImageID}}", target]
        return "sha256:" + _run(command, environ).strip()
    inspected = json.loads(_run([tool, "image", "inspect", target], environ))[0]
    name = target.rpartition(":")[0]
    for name_and_digest in inspected.get("RepoDigests") or () if recipe.push else ():
        if name_and_digest.startswith(f"{name}@"):
            return str(name_and_digest.partition("@")[2])
    return str(inspected["Id"]) if str(inspected["Id"]).startswith("sha256:") else f"sha256:{inspected['Id']}"
