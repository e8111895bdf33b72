"""Names and versions: what is loaded, what should be, and how one becomes the other while requests come in.

A new version is loaded and tried in a thread; only then does it take the place of the old one, whose requests are
finished first. A version that cannot be loaded changes nothing but the status, which says why. How models are computed
and how they are asked is not known here.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from longboat.runtime.errors import LongboatError
from longboat.serve.batching import Batcher, BatchLimits
from longboat.serve.model_loading import Runner
from longboat.serve.model_sources import ModelSource
from longboat.serve.request_errors import RefusalReason, RequestRefused

PAUSE = 1.0
"""Seconds between two looks at the directories."""

LATEST, ALL = "latest", "all"


class VersionState(enum.Enum):
    """TensorFlow Serving's numbers."""

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
    """One name and its versions."""

    source: ModelSource
    versions: dict[int, ModelVersion] = field(default_factory=dict)
    newest: Batcher | None = None
    leaving: list[ModelVersion] = field(default_factory=list)
    """Replaced, and finishing their requests."""

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
        """The batcher that answers, or Refused in TensorFlow Serving's words."""
        model = self.by_name.get(name)
        if model is None:
            known = ", ".join(self.by_name)
            raise RequestRefused(
                RefusalReason.NOT_FOUND, f"Servable not found for request: Latest({name}); models here: {known}"
            )
        if version is None:
            if model.newest is None:
                raise RequestRefused(RefusalReason.UNAVAILABLE, f"model {name!r} has no version that could be loaded")
            return model.newest
        found = model.versions.get(version)
        if found is None or found.batcher is None:
            known = ", ".join(str(v.number) for v in model.available()) or "none"
            raise RequestRefused(
                RefusalReason.NOT_FOUND,
                f"Servable not found for request: Specific({name}, {version}); versions here: {known}",
            )
        return found.batcher

    def model(self, name: str) -> ServedModel:
        model = self.by_name.get(name)
        if model is None:
            raise RequestRefused(RefusalReason.NOT_FOUND, f"Could not find any versions of model {name}")
        return model

    @property
    def ready(self) -> bool:
        return all(model.newest is not None for model in self.by_name.values())

    def load_all(self, loop: asyncio.AbstractEventLoop) -> None:
        """Before the first request. Of a broken newest version the one before it is taken; a model of which no version
        can be loaded is an error."""
        for model in self.by_name.values():
            found = model.source.versions()
            if not found:
                raise LongboatError(
                    f"{model.source.directory} has no complete version of a model",
                    "a version is a numbered directory with a bundle.json in it",
                )
            broken: dict[int, LongboatError] = {}
            for number in sorted(found, reverse=True):
                version = ModelVersion(number, *found[number])
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
                raise LongboatError(f"no version of {model.name} can be served: {why.message}", why.hint)
            for number, why in broken.items():
                self._tell(f"warning: version {number} of {model.name} is not served: {why.message}")

    async def watch(self) -> None:
        """Keeps up with the directories, for ever."""
        while True:
            await asyncio.sleep(PAUSE)
            for model in self.by_name.values():
                try:
                    await self.refresh(model)
                except OSError as error:
                    self._tell(f"warning: {model.source.directory} cannot be read: {error.strerror}")
                except Exception as error:  # the next look may find what this one did not
                    self._tell(f"warning: no new version of {model.name} was looked for: {_named(error)}")

    async def refresh(self, model: ServedModel) -> None:
        """Loads what is new, drops what is gone."""
        found = await asyncio.to_thread(model.source.versions)
        loop = asyncio.get_running_loop()
        for number in self._wanted(model, found):
            known = model.versions.get(number)
            path, mark = found[number]
            if known is not None and known.mark == mark:
                continue
            await self._replace(model, known, ModelVersion(number, path, mark), loop)
        for number, version in list(model.versions.items()):
            gone = number not in found
            if gone and version.batcher is not None and len(model.available()) == 1:
                continue  # a directory was emptied under us: the last version stays until another comes
            if gone or self._superseded(model, version):
                del model.versions[number]
                self._leave(model, version)
                model.settle()
        self._part(model)

    def _wanted(self, model: ServedModel, found: dict[int, tuple[str, object]]) -> list[int]:
        """Which of the versions on disk ought to be loaded: all, or the newest (when it is broken the one before it
        is there already, or will be when it is the newest)."""
        numbers = sorted(found)
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
                known.mark, known.error = version.mark, f"changed on disk, and not loaded again: {error.message}"
            else:
                version.state, version.error = VersionState.END, error.message
                model.versions[version.number] = version
            return
        if known is not None:
            self._leave(model, known)
        model.versions[version.number] = version
        self._place(model, version, runner, loop)
        self._tell(f"{model.name}: version {version.number} is served now")

    def _loaded(self, model: ServedModel, version: ModelVersion) -> Runner:
        """The version as something that can be called; whatever is wrong with it is a LongboatError."""
        try:
            return self._load(model.source, version.path)
        except LongboatError:
            raise
        except Exception as error:
            raise LongboatError(f"{version.path}: it cannot be loaded: {_named(error)}") from error

    def _place(
        self, model: ServedModel, version: ModelVersion, runner: Runner, loop: asyncio.AbstractEventLoop
    ) -> None:
        version.batcher = Batcher(runner, self._limits, loop)
        version.state, version.error = VersionState.AVAILABLE, ""
        model.settle()

    def _leave(self, model: ServedModel, version: ModelVersion) -> None:
        if version.batcher is not None:
            version.state = VersionState.UNLOADING
            model.leaving.append(version)

    def _part(self, model: ServedModel) -> None:
        """Lets go of replaced versions whose last request is answered."""
        for version in list(model.leaving):
            if version.batcher is not None and not version.batcher.working:
                version.batcher.close()
                model.leaving.remove(version)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
