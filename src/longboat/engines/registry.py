"""The engines by name, and finding a run on any of them.

Third parties add an engine with an entry point in the group `longboat.engines`. Runs that this machine started or
watched are found without naming an engine: their plan names it.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longboat.engines.interface import Engine, EngineContext, RunHandle
from longboat.runs.store import Store, born
from longboat.runtime.errors import LongboatError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

GROUP = "longboat.engines"
DEFAULT, CLUSTER = "local", "kubernetes"
ENGINES = {
    DEFAULT: "longboat.engines.local.engine:LocalEngine",
    CLUSTER: "longboat.engines.kubernetes.engine:KubernetesEngine",
}


def is_remote(name: str) -> bool:
    """Whether ranks there do not see this machine's files; the two built-in engines are not imported for that."""
    return name == CLUSTER or name != DEFAULT and engine_class(name).remote


def engine(name: str, context: EngineContext) -> Engine:
    return engine_class(name)(context)


def engine_class(name: str) -> type[Engine]:
    """LongboatError for a name that no engine has."""
    if name in ENGINES:
        built_in: type[Engine] = _load(ENGINES[name])
        return built_in
    for entry in _entry_points():
        if entry.name == name:
            loaded: type[Engine] = entry.load()
            return loaded
    raise LongboatError(f"unknown engine {name!r}", f"engines: {', '.join(names())}")


def names() -> list[str]:
    return [*ENGINES, *(entry.name for entry in _entry_points())]


def chosen(on: str | None, context: EngineContext) -> str | None:
    """The engine that the options name; those of a cluster imply one. None: wherever the run is."""
    return on or (CLUSTER if context.context or context.namespace else None)


def find(on: str | None, context: EngineContext, text: str | None) -> RunHandle:
    """The run meant by an id, the beginning of one, or a job's name; None: the newest."""
    name = chosen(on, context)
    if name is not None:
        return engine(name, context).find(text)
    directories: list[Path] = []
    problem: LongboatError | None = None
    for store in _stores(context.home):
        try:
            directories.append(store.find(text))
        except LongboatError as error:
            problem = problem or error
    if not directories:
        assert problem is not None
        raise problem
    directory = max(directories, key=born) if text is None else directories[0]
    return engine(_engine_of(directory), context).open(directory)


def _engine_of(directory: Path) -> str:
    from longboat.runs.journal_fold import plan_of
    from longboat.runs.store import replica_origin

    if replica_origin(directory) is not None:
        return CLUSTER
    plan = plan_of(directory)
    return plan.engine if plan is not None else DEFAULT


def _stores(home: str) -> list[Store]:
    """The runs of this machine, then the replicas of runs elsewhere."""
    try:
        homes = sorted((Path(home) / "clusters").iterdir())
    except OSError:
        homes = []
    return [Store(home), *(store for cluster_home in homes if (store := Store(cluster_home)).ids())]


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def _entry_points() -> EntryPoints:
    from importlib.metadata import entry_points

    return entry_points(group=GROUP)
