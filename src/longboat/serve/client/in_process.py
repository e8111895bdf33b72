"""Runs a model in this process, with the server's loader and without a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from longboat.install_hint import install_command
from longboat.runs.store import Store
from longboat.runtime.bundle import Bundle
from longboat.runtime.errors import FAILED, LongboatError
from longboat.serve.client.example_files import JsonRows, of_examples
from longboat.serve.client.http_codecs import Columns
from longboat.serve.client.model_signature import Signature, of_bundle
from longboat.serve.client.rows import Row

if TYPE_CHECKING:
    from longboat.serve.model_loading import Runner
    from longboat.serve.model_sources import ModelSource

AT_ONCE = 256
"""Rows per batch."""


class InProcessModel:
    """A loaded version of a model."""

    def __init__(self, place: str, store: Store, model: str = "", version: str = "") -> None:
        from longboat.serve import model_sources

        sources = model_sources.find([place], "", store)
        chosen = [source for source in sources if not model or source.name == model]
        if len(chosen) != 1:
            names = ", ".join(source.name for source in sources)
            raise LongboatError(f"{place} has several models: {names}", "choose one: --model NAME")
        versions = chosen[0].versions()
        if version and (not version.isdecimal() or int(version) not in versions):
            known = ", ".join(map(str, sorted(versions)))
            raise LongboatError(f"{chosen[0].name} has no version {version}", f"it has {known}")
        if not versions:
            raise LongboatError(f"{chosen[0].directory} has no complete version of a model")
        path, _ = versions[int(version) if version else max(versions)]
        self._runner = _load(chosen[0], path)

    @property
    def bundle(self) -> Bundle:
        return self._runner.bundle

    @property
    def signature(self) -> Signature:
        return of_bundle(self.bundle)

    def examples(self) -> JsonRows:
        """The example rows that were saved with the model."""
        return of_examples(self.bundle.examples)

    def predict(self, rows: Sequence[Row]) -> Columns:
        from longboat.serve.input_checks import column
        from longboat.serve.model_loading import failure
        from longboat.serve.request_errors import RequestRefused

        columns: Columns = {output.name: [] for output in self.bundle.outputs}
        for at in range(0, len(rows), AT_ONCE):
            part = rows[at : at + AT_ONCE]
            try:
                inputs = {
                    tensor.name: column(tensor, [row[tensor.name] for row in part]) for tensor in self.bundle.inputs
                }
                outputs = self._runner.run(inputs)
            except Exception as error:
                refused = error if isinstance(error, RequestRefused) else failure(error, self.bundle.name)
                raise LongboatError(refused.message, code=FAILED) from None
            for name, values in outputs.items():
                columns[name] += values.tolist()
        return columns


def _load(source: ModelSource, path: str) -> Runner:
    try:
        if source.foreign:
            from longboat.serve import tensorflow_models

            return tensorflow_models.load(path, source.name, source.only or 1)
        from longboat.serve import model_loading

        return model_loading.load(path, name=source.name)
    except ModuleNotFoundError as missing:
        raise LongboatError(f"cannot run a model: {missing.name} is not installed", install_command("serve")) from None
