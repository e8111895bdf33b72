"""Fingerprint of a stage: digests of its definition, the code files it uses and its inputs.

A resumed run repeats the stages whose fingerprint has changed. The files that a stage uses are the files that its
command names, the Python modules that those import, and all files that are not Python (a script may read them),
except the job file, whose part is in the definition. A command that names no file of the code directory counts as
using all of them.
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256

from longboat.runtime.light_dataclasses import asdict, astuple, dataclass, field, replace
from longboat.runtime.plan import Mount, Plan, Stage
from longboat.spec.code_tree import code_files

TOLD = (".md", ".rst")
"""Suffixes of documentation files, which never change a result."""

DATA_MOST = 8 * 1024 * 1024
"""Bytes. For a larger file, size and modification time replace the digest of its content."""

ENTRIES_MOST = 10_000
"""Maximum number of files of an input to check."""

WORDS = re.compile(r"[^\s\"'`=;|&()<>$,:]+")


@dataclass(frozen=True)
class Fingerprint:
    definition: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    """File of the code directory -> digest."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Mount -> digest."""

    def changed(self, now: Fingerprint) -> list[str]:
        """Descriptions of what has changed; empty if nothing has."""
        changes = ["its definition in the job file"] if self.definition != now.definition else []
        names = sorted({*self.files, *now.files})
        files = [name for name in names if self.files.get(name) != now.files.get(name)]
        changes += [", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")] if files else []
        mounts = [name for name in now.inputs if self.inputs.get(name) != now.inputs[name]]
        return [*changes, *(f"the data in storage {name}" for name in mounts)]


def fingerprints(plan: Plan) -> dict[str, Fingerprint]:
    """The current fingerprint of each stage, by name."""
    tree = _Tree(plan.code, plan.file)
    inputs = {mount.name: _mount(mount) for mount in plan.storage if mount.read_only and mount.path}
    return {
        stage.name: Fingerprint(_definition(plan, stage), *((tree.used(stage), inputs) if stage.roles else ({}, {})))
        for stage in plan.stages
    }


def to_json(by_stage: Mapping[str, Fingerprint]) -> str:
    return json.dumps({name: asdict(fingerprint) for name, fingerprint in by_stage.items()}, indent=1)


def from_json(text: str) -> dict[str, Fingerprint]:
    """Parse stored fingerprints; {} if the text is not valid."""
    try:
        by_stage = json.loads(text)
        return {
            str(n): Fingerprint(str(f["definition"]), dict(f["files"]), dict(f["inputs"])) for n, f in by_stage.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


def _definition(plan: Plan, stage: Stage) -> str:
    """Digest of what the stage does, without time limits and resources."""
    what = {
        "kind": stage.kind,
        "shape": stage.shape,
        "roles": [[r.name, r.ranks, r.command, [astuple(v) for v in r.env], r.image] for r in stage.roles],
        "merge": stage.merge,
        "rounds": stage.rounds,
        "env": [astuple(v) for v in stage.env],
        "python": stage.python,
        "gate": stage.gate and astuple(replace(stage.gate, retries=0)),
        "bench": stage.bench and astuple(stage.bench),
        "after": stage.after,
        "requirements": plan.requirements,
    }
    return sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()


class _Tree:
    """The code directory; reads each file at most once."""

    def __init__(self, directory: str, job_file: str) -> None:
        self._directory = directory
        self._job_file = os.path.relpath(job_file, directory) if job_file and directory else ""
        try:
            self._names = set(code_files(directory)) if directory else set()
        except OSError:
            self._names = set()
        self._digests: dict[str, str] = {}

    def used(self, stage: Stage) -> dict[str, str]:
        words = {word for role in stage.roles for part in (*role.command, *stage.merge) for word in WORDS.findall(part)}
        named = {name for word in words if (name := self._named(word))}
        if stage.kind != "gang":
            return {}
        if not named:
            return {name: self._digest(name) for name in sorted(self._names)}
        code = self._with_imports(named)
        data = {n for n in self._names if not n.endswith((".py", *TOLD)) and n != self._job_file}
        return {name: self._digest(name) for name in sorted(code | data)}

    def _named(self, word: str) -> str:
        """The code file that a word of the command names, or ""."""
        for name in (word.removeprefix("./"), word.replace(".", "/") + ".py", word.replace(".", "/") + "/__main__.py"):
            if name in self._names:
                return name
        return ""

    def _with_imports(self, names: Iterable[str]) -> set[str]:
        used: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name not in used:
                used.add(name)
                waiting += [*self._imports(name), *self._packages(name)] if name.endswith(".py") else []
        return used

    def _packages(self, name: str) -> list[str]:
        """`__init__.py` of the packages around a module: importing it runs them."""
        parts = name.split("/")[:-1]
        return [f for n in range(len(parts)) if (f := "/".join([*parts[: n + 1], "__init__.py"])) in self._names]

    def _imports(self, name: str) -> list[str]:
        try:
            with open(os.path.join(self._directory, name), "rb") as file:
                tree = ast.parse(file.read())
        except (OSError, SyntaxError, ValueError):
            return []
        folders = name.split("/")[:-1]
        paths: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    paths |= _joined([folders, []], alias.name)
            elif isinstance(node, ast.ImportFrom) and node.level <= len(folders) + 1:
                around = [folders[: len(folders) + 1 - node.level]] if node.level else [folders, []]
                for module in ("", *(alias.name for alias in node.names)):
                    paths |= _joined(around, node.module or "", module)
        return [f for path in paths for f in (f"{path}.py", f"{path}/__init__.py") if f in self._names]

    def _digest(self, name: str) -> str:
        if name not in self._digests:
            self._digests[name] = _digest(os.path.join(self._directory, name))
        return self._digests[name]


def _joined(folders: Iterable[list[str]], *modules: str) -> set[str]:
    """Possible paths of a dotted name below these folders, without suffix."""
    parts = [part for module in modules if module for part in module.split(".")]
    return {"/".join([*folder, *parts]) for folder in folders}


def _digest(path: str) -> str:
    try:
        status = os.stat(path)
        if status.st_size > DATA_MOST:
            return f"{status.st_size} bytes of {status.st_mtime_ns}"
        with open(path, "rb") as file:
            return sha256(file.read()).hexdigest()
    except OSError as error:
        return str(error.strerror)


def _mount(mount: Mount) -> str:
    digest = sha256()
    left = ENTRIES_MOST
    for folder, folders, names in os.walk(mount.path):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(folder, name)
            try:
                status = os.stat(path)
            except OSError:
                continue
            digest.update(f"{os.path.relpath(path, mount.path)}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
            left -= 1
            if not left:
                return digest.hexdigest()
    return digest.hexdigest()
