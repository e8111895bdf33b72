"""Versions come, go, and are broken while a server runs."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longboat.serve import model_versions
from longboat.serve.batching import BatchLimits
from longboat.serve.model_loading import Runner
from longboat.serve.model_sources import ModelSource
from tests.commands import Longboat
from tests.serve import making
from tests.serve.serving import Serving, serving

ROW: np.ndarray[Any, Any] = np.full((1, 784), 0.25, np.float32)


def answers_as(server: Serving, seed: int, path: str = "mnist") -> bool:
    return bool(np.allclose(server.predict(path, ROW.tolist()), making.expected(seed, ROW), rtol=1e-4))


def states(server: Serving) -> dict[str, tuple[str, str]]:
    told = server.get("/v1/models/mnist").json["model_version_status"]
    return {each["version"]: (each["state"], each["status"]["error_message"]) for each in told}


def flip(path: Path) -> None:
    """Changes one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_new_version_takes_over_without_a_dropped_request(tmp_path: Path) -> None:
    making.digits(tmp_path / "mnist", seed=1)
    with serving(tmp_path, tmp_path / "mnist", "--no-grpc") as server:
        wrong: list[Any] = []
        over = threading.Event()

        def ask() -> None:
            while not over.is_set():
                try:
                    found = server.predict("mnist", ROW.tolist())
                except Exception as error:
                    wrong.append(error)
                    return
                if not any(np.allclose(found, making.expected(seed, ROW), rtol=1e-4) for seed in (1, 2)):
                    wrong.append(found)

        askers = [threading.Thread(target=ask) for _ in range(3)]
        for asker in askers:
            asker.start()
        try:
            making.digits(tmp_path / "mnist", seed=2)
            server.until(lambda: answers_as(server, 2))
            server.until(lambda: states(server) == {"2": ("AVAILABLE", "")})
        finally:
            over.set()
            for asker in askers:
                asker.join()
        assert wrong == []
        assert "now serving version 2" in server.said.read_text()


def flip_a_weight(version: Path) -> None:
    flip(version / "weights.safetensors")


def spoil_the_example(version: Path) -> None:
    """One number too few: a row that the model does not take."""
    manifest = version / "bundle.json"
    told = json.loads(manifest.read_text())
    told["examples"][0]["inputs"]["x"].pop()
    manifest.write_text(json.dumps(told))


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (flip_a_weight, "weights.safetensors: its contents differ from what was saved"),
        (spoil_the_example, "its own example is not a valid input: input 'x' expects the shape [*, 784]"),
    ],
)
def test_a_broken_new_version_changes_nothing_but_the_status_and_later_ones_are_served(
    tmp_path: Path, spoil: Callable[[Path], None], told: str
) -> None:
    making.digits(tmp_path / "mnist", seed=1)
    making.digits(tmp_path / "store", seed=2, version=2)
    spoil(tmp_path / "store/2")
    with serving(tmp_path, tmp_path / "mnist", "--no-grpc") as server:
        (tmp_path / "store/2").rename(tmp_path / "mnist/2")
        server.until(lambda: states(server).get("2", ("", ""))[0] == "END")
        assert told in states(server)["2"][1]
        assert states(server)["1"] == ("AVAILABLE", "")
        assert answers_as(server, 1)
        assert server.get("/readyz").status == 200
        making.digits(tmp_path / "mnist", seed=3, version=3)
        server.until(lambda: answers_as(server, 3))


def test_the_watch_outlives_whatever_a_look_at_the_directory_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []

    class Odd(ModelSource):
        def versions(self) -> dict[int, tuple[str, object]]:
            looks.append("")
            raise ZeroDivisionError("a version of nothing")

    def unloadable(source: ModelSource, path: str) -> Runner:
        raise AssertionError

    said: list[str] = []
    monkeypatch.setattr(model_versions, "PAUSE", 0)
    watched = model_versions.ServedModels(
        [Odd("odd", "/nowhere")], unloadable, BatchLimits(), model_versions.LATEST, said.append
    )

    async def watch() -> None:
        task = asyncio.create_task(watched.watch())
        while len(looks) < 3 and not task.done():
            await asyncio.sleep(0)
        assert not task.done()
        task.cancel()

    asyncio.run(watch())
    assert "cannot check for new versions of odd: ZeroDivisionError: a version of nothing" in said[0]


def test_all_versions_are_served_when_asked_for(tmp_path: Path) -> None:
    for seed in (1, 2):
        making.digits(tmp_path / "mnist", seed=seed)
    with serving(tmp_path, tmp_path / "mnist", "--no-grpc", "--version", "all") as server:
        assert answers_as(server, 2)
        for seed in (1, 2):
            assert answers_as(server, seed, f"mnist/versions/{seed}")
        shutil.rmtree(tmp_path / "mnist/2")
        server.until(lambda: answers_as(server, 1))
        shutil.rmtree(tmp_path / "mnist/1")
        making.digits(tmp_path / "mnist", seed=5, version=5)
        server.until(lambda: answers_as(server, 5))


def test_a_number_pins_the_version(tmp_path: Path) -> None:
    for seed in (1, 2):
        making.digits(tmp_path / "mnist", seed=seed)
    with serving(tmp_path, tmp_path / "mnist", "--no-grpc", "--version", "1") as server:
        assert answers_as(server, 1)
        assert set(states(server)) == {"1"}


def test_a_broken_newest_version_at_the_start_falls_back(tmp_path: Path) -> None:
    for seed in (1, 2):
        making.digits(tmp_path / "mnist", seed=seed)
    (tmp_path / "mnist/2/function.onnx").unlink()
    with serving(tmp_path, tmp_path / "mnist", "--no-grpc") as server:
        assert answers_as(server, 1)
        assert states(server)["2"][0] == "END"
        assert "warning: version 2 of mnist is not served" in server.said.read_text()


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda path: flip(path / "function.onnx"), "function.onnx: its contents differ from what was saved"),
        (lambda path: (path / "weights.safetensors").unlink(), "weights.safetensors: No such file or directory"),
        (lambda path: (path / "bundle.json").write_text("{"), "bundle.json: not JSON"),
        (spoil_the_example, "its own example is not a valid input"),
    ],
    ids=["a flipped bit", "a missing file", "a torn manifest", "an example that does not fit"],
)
def test_a_damaged_model_is_not_served(tmp_path: Path, longboat: Longboat, harm: Any, words: str) -> None:
    making.digits(tmp_path / "mnist")
    harm(tmp_path / "mnist/1")
    said = longboat("serve", tmp_path / "mnist", "--port", "0", "--no-grpc")
    assert said.code == 2
    assert words in said.err


def test_a_model_that_is_whole_but_wrong_is_not_served(tmp_path: Path, longboat: Longboat) -> None:
    """Its checksums are right and ONNX Runtime refuses it."""
    saved = making.digits(tmp_path / "mnist")
    function = Path(saved.function)
    function.write_bytes(b"not a model")
    manifest = tmp_path / "mnist/1/bundle.json"
    told = json.loads(manifest.read_text())
    import hashlib

    told["files"]["function.onnx"] = {"size": 11, "sha256": hashlib.sha256(b"not a model").hexdigest()}
    manifest.write_text(json.dumps(told))
    said = longboat("serve", tmp_path / "mnist", "--port", "0", "--no-grpc")
    assert said.code == 2
    assert "ONNX Runtime cannot load it" in said.err


def test_a_run_is_served_by_its_name(tmp_path: Path) -> None:
    run = tmp_path / "home/runs/digits-bavod"
    (run / "output/train").mkdir(parents=True)
    making.digits(run / "output/train/mnist", seed=4)
    with serving(tmp_path, "digits", "--no-grpc", "--name", "numbers") as server:
        assert answers_as(server, 4, "numbers")
        assert server.stop() == 0
