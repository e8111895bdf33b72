"""Loads a job file and the files it names, and raises all their problems at once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from longboat.runtime import plan
from longboat.runtime.errors import LongboatError
from longboat.runtime.light_dataclasses import dataclass, field, replace
from longboat.spec import job_keys, planning, validation
from longboat.spec.env_and_requirements import EnvFile, read_env_files, read_requirements
from longboat.spec.params import Params
from longboat.spec.problems import JobError, Problem, Problems
from longboat.spec.validation import Section
from longboat.spec.yaml_nodes import MapEntry, MapNode, ScalarNode, compose

FILE_NAMES = ("job.yaml", "job.yml")
SHORT_STAGE_NAME = "main"
_LARGEST = 4 << 20


@dataclass(frozen=True)
class LoadedJob:
    """A valid job file with its params resolved."""

    file: str
    """Absolute path of the job file."""
    name: str
    params: tuple[plan.Param, ...]
    presets: tuple[str, ...]
    missing: tuple[Problem, ...]
    """Required params without a value: the job can be listed, but not planned."""
    planned: plan.Plan = field(repr=False)
    texts: Mapping[str, str] = field(repr=False, compare=False, default_factory=dict)

    def plan(self) -> plan.Plan:
        """The Plan. Raises JobError if a required param has no value."""
        if self.missing:
            raise JobError(self.missing, self.texts, self.missing[0].file)
        return self.planned


def find(path: str) -> str:
    """The job file at a path: the file itself, or job.yaml in that directory."""
    if os.path.isdir(path):
        for name in FILE_NAMES:
            inner = os.path.join(path, name)
            if os.path.isfile(inner):
                return inner if path not in ("", ".") else name
        where = "this directory" if os.path.abspath(path) == os.getcwd() else path
        raise LongboatError(f"no job.yaml in {where}", "create one with `longboat init`, or name a job file")
    if not os.path.exists(path):
        raise LongboatError(f"job file {path} does not exist", "create one with `longboat init`")
    return path


def read_text(path: str) -> str:
    """The text of a job file with its line endings, without a byte order mark."""
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST + 1)
    except (OSError, ValueError) as error:
        raise LongboatError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > _LARGEST:
        raise LongboatError(f"{path} is not a job file: it is larger than {_LARGEST >> 20} MiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        hint = "save the file as UTF-8"
        raise JobError(
            [Problem(path, line, column, 1, f"byte 0x{data[error.start]:02x} is not valid UTF-8", hint)]
        ) from None


class JobSettings(NamedTuple):
    """What a job is loaded with, besides its file."""

    sets: Mapping[str, str] = {}
    environ: Mapping[str, str] = {}
    preset: str | None = None
    engine: str = "local"
    remote: bool = False
    env_files: Sequence[str] = ()


def load(
    path: str | os.PathLike[str],
    *,
    sets: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    preset: str | None = None,
    engine: str = "local",
    remote: bool = False,
    env_files: Sequence[str] = (),
) -> LoadedJob:
    """Load the job file at `path`, or job.yaml in that directory. JobError lists all its problems.
    `remote`: the ranks of that engine do not see this machine's files."""
    shown = find(os.fspath(path))
    settings = JobSettings(sets or {}, environ or {}, preset, engine, remote, env_files)
    return from_text(read_text(shown), shown, settings)


def from_text(text: str, file: str, settings: JobSettings) -> LoadedJob:
    """Load a job from the text of its file."""
    sets, environ, preset, engine, remote, env_files = settings
    problems = Problems(file, text)
    tree = compose(text, problems)
    if tree is None:
        raise problems.error()
    if not isinstance(tree, MapNode):
        problems.add(tree.span, "a job file must be a mapping of `key: value` lines", "start with `name:`")
        raise problems.error()
    _check_version(tree, problems)
    params = Params(tree, problems)
    params.resolve(sets, environ, preset)
    params.count_presets()
    root = _read(_filled(tree, params), problems)
    directory = os.path.dirname(os.path.abspath(file))
    missing = params.missing()
    env = read_env_files(_env_files(root, directory, env_files), params.resolved, problems)
    requirements = _requirements(root, directory, problems)
    built = planning.build(root, directory, engine, remote, env, environ, problems)
    if problems.items:
        raise problems.error(missing)
    built = replace(
        built,
        file=os.path.abspath(file),
        preset=preset or "",
        params=params.as_plan(),
        requirements=requirements,
    )
    return LoadedJob(built.file, built.name, built.params, tuple(params.presets), missing, built, problems.texts)


def _check_version(tree: MapNode, problems: Problems) -> None:
    """Raise at once for another version: all other problems would be misleading."""
    entry = tree.entries.get("longboat")
    value = entry.value.value if entry and isinstance(entry.value, ScalarNode) else None
    if entry and isinstance(value, int) and not isinstance(value, bool) and value != job_keys.VERSION:
        message = f"job file version {value} is not supported; this Longboat reads version {job_keys.VERSION}"
        problems.items.clear()
        problems.add(entry.value.span, message, "upgrade Longboat" if value > job_keys.VERSION else "")
        raise problems.error()


def _filled(tree: MapNode, params: Params) -> MapNode:
    """The tree with `${NAME}` replaced, except in params and presets, which are already resolved."""
    kept = ("params", "presets")
    entries = {k: e if k in kept else MapEntry(e.key, params.fill_all(e.value)) for k, e in tree.entries.items()}
    return tree._replace(entries=entries)


def _read(tree: MapNode, problems: Problems) -> Section:
    """Validate the file. Without `stages` it is a job with a single stage."""
    if "stages" in tree.entries:
        entries = dict(tree.entries)
        for key in [key for key in entries if key in job_keys.SHORT_STAGE.by_name]:
            problems.add(entries.pop(key).key, f"`{key}` is a key of a stage", "move it into one of the `stages`")
        return _section(validation.read(job_keys.JOB, tree._replace(entries=entries), problems, ""))
    job = _section(validation.read(job_keys.SHORT_JOB, tree, problems, ""))
    # `env` stays at the job: its one stage inherits it.
    inner = set(job_keys.SHORT_STAGE.by_name)
    stage = Section(
        job.span,
        {key: value for key, value in job.values.items() if key in inner},
        {key: span for key, span in job.spans.items() if key in inner},
    )
    rest = {key: value for key, value in job.values.items() if key not in inner}
    name = Section(job.span, {SHORT_STAGE_NAME: stage}, {SHORT_STAGE_NAME: job.span})
    return Section(job.span, {**rest, "stages": name}, job.spans)


def _section(value: object) -> Section:
    assert isinstance(value, Section)
    return value


def _env_files(root: Section, directory: str, more: Sequence[str]) -> list[EnvFile]:
    named = [
        EnvFile(planning.absolute(directory, name), name, root.where("env_files")) for name in root.texts("env_files")
    ]
    return named + [EnvFile(os.path.abspath(os.path.expanduser(name)), name) for name in more]


def _requirements(root: Section, directory: str, problems: Problems) -> tuple[str, ...]:
    given = root.values.get("requirements")
    if isinstance(given, str):
        return read_requirements(planning.absolute(directory, given), given, root.where("requirements"), problems)
    return given if isinstance(given, tuple) else ()
