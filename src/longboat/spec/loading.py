"""From a path to a Job: reads the file and those it names, and raises all problems at once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from longboat.runtime import plan
from longboat.runtime.errors import LongboatError
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
    """A job file that was read and found right, with its params resolved."""

    file: str
    """Absolute path of the job file."""
    name: str
    params: tuple[plan.Param, ...]
    presets: tuple[str, ...]
    missing: tuple[Problem, ...]
    """Required params that have no value yet: the job can be looked at, but not planned."""
    planned: plan.Plan = field(repr=False)
    texts: Mapping[str, str] = field(repr=False, compare=False, default_factory=dict)

    def plan(self) -> plan.Plan:
        """The Plan; a JobError if a required param has no value."""
        if self.missing:
            raise JobError(self.missing, self.texts, self.missing[0].file)
        return self.planned


def find(path: str) -> str:
    """The job file meant by a path: the file itself, or the one in a directory."""
    if os.path.isdir(path):
        for name in FILE_NAMES:
            inner = os.path.join(path, name)
            if os.path.isfile(inner):
                return inner if path not in ("", ".") else name
        where = "this directory" if os.path.abspath(path) == os.getcwd() else path
        raise LongboatError(f"there is no job.yaml in {where}", "`longboat init` writes one, or name the file")
    if not os.path.exists(path):
        raise LongboatError(f"there is no job file {path}", "`longboat init` writes one")
    return path


def read_text(path: str) -> str:
    """The text of a job file, line endings and all; a byte order mark is left out."""
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST + 1)
    except (OSError, ValueError) as error:
        raise LongboatError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > _LARGEST:
        raise LongboatError(f"{path} is larger than {_LARGEST >> 20} MiB: that is no job file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        hint = "save the file as UTF-8"
        raise JobError(
            [Problem(path, line, column, 1, f"the byte 0x{data[error.start]:02x} is not UTF-8", hint)]
        ) from None


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
    """The job in the file, or in the directory's job.yaml. JobError holds everything that is wrong with it.
    `remote`: the ranks of that engine do not see this machine's files."""
    shown = find(os.fspath(path))
    return from_text(
        read_text(shown),
        shown,
        sets=sets or {},
        environ=environ or {},
        preset=preset,
        engine=engine,
        remote=remote,
        env_files=env_files,
    )


def from_text(
    text: str,
    file: str,
    *,
    sets: Mapping[str, str],
    environ: Mapping[str, str],
    preset: str | None = None,
    engine: str = "local",
    remote: bool = False,
    env_files: Sequence[str] = (),
) -> LoadedJob:
    """The job in the text, as if it stood in the file."""
    problems = Problems(file, text)
    tree = compose(text, problems)
    if tree is None:
        raise problems.error()
    if not isinstance(tree, MapNode):
        problems.add(tree.span, "a job file is a mapping: lines of `key: value`", "it begins with `name:`")
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
    if problems.found:
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
    """Of a file for another version nothing else is worth saying."""
    entry = tree.entries.get("longboat")
    value = entry.value.value if entry and isinstance(entry.value, ScalarNode) else None
    if entry and isinstance(value, int) and not isinstance(value, bool) and value != job_keys.VERSION:
        message = f"this is a job file of version {value}; this Longboat reads version {job_keys.VERSION}"
        problems.found.clear()
        problems.add(entry.value.span, message, "a newer Longboat may read it" if value > job_keys.VERSION else "")
        raise problems.error()


def _filled(tree: MapNode, params: Params) -> MapNode:
    """Everything but params and presets, which are resolved already, with `${NAME}` replaced."""
    kept = ("params", "presets")
    entries = {k: e if k in kept else MapEntry(e.key, params.fill_all(e.value)) for k, e in tree.entries.items()}
    return tree._replace(entries=entries)


def _read(tree: MapNode, problems: Problems) -> Section:
    """The checked file; one that has no `stages` is read as a job of one stage."""
    if "stages" in tree.entries:
        entries = dict(tree.entries)
        for key in [key for key in entries if key in job_keys.SHORT_STAGE.by_name]:
            problems.add(entries.pop(key).key, f"`{key}` is a key of a stage", "move it into one of the `stages`")
        return _section(validation.read(job_keys.JOB, tree._replace(entries=entries), problems, ""))
    whole = _section(validation.read(job_keys.SHORT_JOB, tree, problems, ""))
    # `env` stays where it is: above all the stages there are, which is one.
    inner = set(job_keys.SHORT_STAGE.by_name)
    stage = Section(
        whole.span,
        {key: value for key, value in whole.values.items() if key in inner},
        {key: span for key, span in whole.spans.items() if key in inner},
    )
    rest = {key: value for key, value in whole.values.items() if key not in inner}
    name = Section(whole.span, {SHORT_STAGE_NAME: stage}, {SHORT_STAGE_NAME: whole.span})
    return Section(whole.span, {**rest, "stages": name}, whole.spans)


def _section(value: object) -> Section:
    assert isinstance(value, Section)
    return value


def _env_files(root: Section, directory: str, more: Sequence[str]) -> list[EnvFile]:
    own = [
        EnvFile(planning.absolute(directory, name), name, root.where("env_files")) for name in root.texts("env_files")
    ]
    return own + [EnvFile(os.path.abspath(os.path.expanduser(name)), name) for name in more]


def _requirements(root: Section, directory: str, problems: Problems) -> tuple[str, ...]:
    given = root.values.get("requirements")
    if isinstance(given, str):
        return read_requirements(planning.absolute(directory, given), given, root.where("requirements"), problems)
    return given if isinstance(given, tuple) else ()
