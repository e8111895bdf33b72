"""Loaded models and versions, and hot reload.

A new version is loaded and tried in a thread; only then does it replace the old one, whose requests are finished first.
A version that fails to load changes only the status, which says why. Nothing here knows how models compute, or any
protocol.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Iterable

from longboat.runtime import debug_log
from longboat.runtime.errors import LongboatError
from longboat.runtime.light_dataclasses import dataclass, field
from longboat.serve.batching import Batcher, BatchLimits
from longboat.serve.model_loading import Runner
from longboat.serve.model_sources import ModelSource
from longboat.serve.request_errors import RefusalReason, RequestRefused

PAUSE = 1.0
"""Seconds between two scans of the directories."""

LATEST, ALL = "latest", "all"


class VersionState(enum.Enum):
    """Version states with TensorFlow Serving's numbers."""

    LOADING = 20
    AVAILABLE = 30
    UNLOADING = 40
    END = 50


@dataclass
class ModelVersion:
    number: int
    path: str
    mark: object
    state: VersionState = VersionState.LOADING
    error: str = ""
    batcher: Batcher | None = None


@dataclass
class ServedModel:
    """A model name and its versions."""

    source: ModelSource
    versions: dict[int, ModelVersion] = field(default_factory=dict)
    newest: Batcher | None = None
    leaving: list[ModelVersion] = field(default_factory=list)
    """Replaced versions that finish their requests."""

    @property
    def name(self) -> str:
        return self.source.name

    def available(self) -> list[ModelVersion]:
        return [v for _, v in sorted(self.versions.items()) if v.batcher is not None]

    def settle(self) -> None:
        ready = self.available()
        self.newest = ready[-1].batcher if ready else None

    def status(self) -> list[ModelVersion]:
        return [version for _, version in sorted(self.versions.items(), reverse=True)] + self.leaving


class ServedModels:
    """All models of a process."""

    def __init__(
        self,
        sources: Iterable[ModelSource],
        load: Callable[[ModelSource, str], Runner],
        limits: BatchLimits,
        policy: str,
        tell: Callable[[str], None],
    ) -> None:
        self.by_name = {source.name: ServedModel(source) for source in sources}
        self._load, self._limits, self._policy, self._tell = load, limits, policy, tell

    def find(self, name: str, version: int | None = None) -> Batcher:
        """The batcher of a model version, or RequestRefused with TensorFlow Serving's message."""
        model = self.by_name.get(name)
        if model is None:
            known = ", ".join(self.by_name)
            raise RequestRefused(
                RefusalReason.NOT_FOUND, f"Servable not found for request: Latest({name}); models here: {known}"
            )
        if version is None:
            if model.newest is None:
                raise RequestRefused(RefusalReason.UNAVAILABLE, f"model {name!r} has no loaded version")
            return model.newest
        chosen = model.versions.get(version)
        if chosen is None or chosen.batcher is None:
            known = ", ".join(str(v.number) for v in model.available()) or "none"
            raise RequestRefused(
                RefusalReason.NOT_FOUND,
                f"Servable not found for request: Specific({name}, {version}); versions here: {known}",
            )
        return chosen.batcher

    def model(self, name: str) -> ServedModel:
        model = self.by_name.get(name)
        if model is None:
            raise RequestRefused(RefusalReason.NOT_FOUND, f"Could not find any versions of model {name}")
        return model

    @property
    def ready(self) -> bool:
        return all(model.newest is not None for model in self.by_name.values())

    def load_all(self, loop: asyncio.AbstractEventLoop) -> None:
        """Load all models before the first request. If the newest version is broken, the one before it is used; a
        model without any loadable version is an error."""
        for model in self.by_name.values():
            on_disk = model.source.versions()
            if not on_disk:
                raise LongboatError(
                    f"{model.source.directory} has no complete version of a model",
                    "a version is a numbered directory with a bundle.json in it",
                )
            broken: dict[int, LongboatError] = {}
            for number in sorted(on_disk, reverse=True):
                version = ModelVersion(number, *on_disk[number])
                model.versions[number] = version
                try:
                    self._place(model, version, self._loaded(model, version), loop)
                except LongboatError as error:
                    version.state, version.error = VersionState.END, error.message
                    broken[number] = error
                if version.batcher is not None and self._policy == LATEST:
                    break
            if model.newest is None:
                why = broken[max(broken)]
                raise LongboatError(f"cannot load any version of {model.name}: {why.message}", why.hint)
            for number, why in broken.items():
                self._tell(f"warning: version {number} of {model.name} is not served: {why.message}")

    async def watch(self) -> None:
        """Watch the directories forever."""
        while True:
            await asyncio.sleep(PAUSE)
            for model in self.by_name.values():
                try:
                    await self.refresh(model)
                except OSError as error:
                    self._tell(f"warning: cannot read {model.source.directory}: {error.strerror}")
                except Exception as error:  # the next scan may succeed
                    self._tell(f"warning: cannot check for new versions of {model.name}: {_named(error)}")

    async def refresh(self, model: ServedModel) -> None:
        """Load new versions, unload removed ones."""
        on_disk = await asyncio.to_thread(model.source.versions)
        loop = asyncio.get_running_loop()
        for number in self._wanted(model, on_disk):
            known = model.versions.get(number)
            path, mark = on_disk[number]
            if known is not None and known.mark == mark:
                continue
            await self._replace(model, known, ModelVersion(number, path, mark), loop)
        for number, version in list(model.versions.items()):
            gone = number not in on_disk
            if gone and version.batcher is not None and len(model.available()) == 1:
                continue  # the directory was emptied: keep the last version until another one comes
            if gone or self._superseded(model, version):
                del model.versions[number]
                self._leave(model, version)
                model.settle()
        self._part(model)

    def _wanted(self, model: ServedModel, on_disk: dict[int, tuple[str, object]]) -> list[int]:
        """Which versions on disk should be loaded: all, or the newest (if that is broken, the one before it is
        already loaded)."""
        numbers = sorted(on_disk)
        if self._policy == ALL or not numbers:
            return numbers
        return numbers[-1:]

    def _superseded(self, model: ServedModel, version: ModelVersion) -> bool:
        if self._policy == ALL:
            return False
        newest = max((v.number for v in model.available()), default=0)
        return version.number < newest

    async def _replace(
        self, model: ServedModel, known: ModelVersion | None, version: ModelVersion, loop: asyncio.AbstractEventLoop
    ) -> None:
        if known is None:
            model.versions[version.number] = version
        try:
            runner = await asyncio.to_thread(self._loaded, model, version)
        except LongboatError as error:
            self._tell(f"warning: version {version.number} of {model.name} is not served: {error.message}")
            if known is not None and known.batcher is not None:
                known.mark, known.error = version.mark, f"changed on disk, but failed to load again: {error.message}"
            else:
                version.state, version.error = VersionState.END, error.message
                model.versions[version.number] = version
            return
        if known is not None:
            self._leave(model, known)
        model.versions[version.number] = version
        self._place(model, version, runner, loop)
        self._tell(f"{model.name}: now serving version {version.number}")

    def _loaded(self, model: ServedModel, version: ModelVersion) -> Runner:
        """Load the version. Every error becomes a LongboatError."""
        try:
            return self._load(model.source, version.path)
        except LongboatError:
            raise
        except Exception as error:
            debug_log.warning("cannot load %s", version.path, error=error)
            raise LongboatError(f"cannot load {version.path}: {_named(error)}") from error

    def _place(
        self, model: ServedModel, version: ModelVersion, runner: Runner, loop: asyncio.AbstractEventLoop
    ) -> None:
        version.batcher = Batcher(runner, self._limits, loop)
        version.state, version.error = VersionState.AVAILABLE, ""
        debug_log.info("loaded version %d of %s: %.6f s per row", version.number, model.name, runner.seconds)
        model.settle()

    def _leave(self, model: ServedModel, version: ModelVersion) -> None:
        if version.batcher is not None:
            version.state = VersionState.UNLOADING
            model.leaving.append(version)

    def _part(self, model: ServedModel) -> None:
        """Unload replaced versions whose last request is answered."""
        for version in list(model.leaving):
            if version.batcher is not None and not version.batcher.in_use:
                version.batcher.close()
                debug_log.info("unloaded version %d of %s", version.number, model.name)
                model.leaving.remove(version)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
