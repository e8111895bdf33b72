"""docker, podman or buildah as the one who builds: a Dockerfile and its context, and each tool's own words.

They run the base image, so they can compile packages that have no wheel, and they know images that are in
no registry. Their images hold the same files in the same places as those of `image`; only podman's and
buildah's have the same digest each time, and only while a package index offers the same.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from longboat.images.oci_image import CODE, PACKAGES
from longboat.images.python_packages import uses_tree
from longboat.runtime.errors import FAILED, LongboatError

TOOLS = ("docker", "podman", "buildah")
_PIP = "python3 -m pip install --no-cache-dir --no-compile --disable-pip-version-check"


@dataclass(frozen=True)
class DockerBuild:
    """What a tool is to make of a code tree, and what is to become of it."""

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
        lines += code  # last, so that a change of code leaves the packages as they are
        lines += [f"LABEL {name}={json.dumps(value)}" for name, value in sorted(self.labels.items())]
        lines += [f"WORKDIR {CODE}", f"USER {self.user}"]
        return "\n".join(lines) + "\n"


def found() -> str:
    """The first that is there and works; empty: none."""
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
    """The digest of the image that was pushed; of one that was not, its id."""
    if shutil.which(tool) is None:
        raise LongboatError(f"there is no {tool} on this machine", "leave out --with: no tool is needed")
    if os.path.exists(recipe.base):
        raise LongboatError(f"{tool} cannot take the base image from a file", "--with none can")
    with tempfile.TemporaryDirectory(prefix="longboat-build-") as directory:
        _context(recipe, code, names, directory)
        environment = {**environ, "SOURCE_DATE_EPOCH": str(recipe.when)}
        told = os.path.join(directory, "digest")
        for words in commands(tool, recipe, os.path.join(directory, "context"), told):
            say(f"$ {' '.join(words)}")
            _run(words, environment)
        if recipe.push and tool != "docker":
            with open(told, encoding="utf-8") as file:
                return file.read().strip()
        return _digest(tool, recipe, environment)


def commands(tool: str, recipe: DockerBuild, context: str, told: str) -> list[list[str]]:
    """What is run, in this order; `told` is a file that the digest is written to."""
    target, output = recipe.target, recipe.output
    common = ["--platform", recipe.platform, "-t", target]
    if tool == "docker":
        found = [["docker", "build", *common, "--build-arg", f"SOURCE_DATE_EPOCH={recipe.when}", context]]
        found += [["docker", "push", target]] if recipe.push else []
        found += [["docker", "save", "-o", output, target]] if output else []
        return found
    verify = ["--tls-verify=false"] if recipe.insecure else []
    steady = ["--format", "oci", "--timestamp", str(recipe.when), *verify]
    found = [[tool, "build" if tool == "podman" else "bud", *common, *steady, context]]
    found += [[tool, "push", *verify, "--digestfile", told, target]] if recipe.push else []
    found += [[tool, "push", target, f"oci-archive:{os.path.abspath(output)}:{target}"]] if output else []
    return found


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


def _run(words: list[str], environ: Mapping[str, str]) -> str:
    done = subprocess.run(words, env=dict(environ), capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise LongboatError(f"{words[0]} could not {words[1]}:\n" + "\n".join(lines[-12:]), "", FAILED)
    return done.stdout


def _digest(tool: str, recipe: DockerBuild, environ: Mapping[str, str]) -> str:
    target = recipe.target
    if tool == "buildah":
        words = ["buildah", "inspect", "--type", "image", "-f", "{{.FromImageID}}", target]
        return "sha256:" + _run(words, environ).strip()
    found = json.loads(_run([tool, "image", "inspect", target], environ))[0]
    name = target.rpartition(":")[0]
    for each in found.get("RepoDigests") or () if recipe.push else ():
        if each.startswith(f"{name}@"):
            return str(each.partition("@")[2])
    return str(found["Id"]) if str(found["Id"]).startswith("sha256:") else f"sha256:{found['Id']}"
