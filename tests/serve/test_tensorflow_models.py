"""Models that Longboat did not save: Keras files and SavedModels, served by TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from longboat.install_hint import install_command
from tests.commands import Longboat
from tests.serve.serving import serving

MAKE = """
import json, os, sys
import keras, numpy as np
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.layers.Input((4,), name="features"), keras.layers.Dense(3, activation="softmax")])
place = sys.argv[1]
model.save(place + "/new.keras")
model.save(place + "/old.h5")
model.export(place + "/saved/3", verbose=False)
rows = np.array([[1, 2, 3, 4], [0, 0, 0, 1]], np.float32)
print(json.dumps(model.predict(rows, verbose=0).tolist()))
"""


@pytest.mark.slow
def test_keras_files_and_a_saved_model_are_served(tmp_path: Path) -> None:
    quiet = {**os.environ, "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    made = subprocess.run(
        [sys.executable, "-c", MAKE, str(tmp_path)], env=quiet, check=True, capture_output=True, text=True
    )
    expected = json.loads(made.stdout.splitlines()[-1])
    rows = [[1, 2, 3, 4], [0, 0, 0, 1]]
    with serving(tmp_path, tmp_path / "new.keras", tmp_path / "old.h5", tmp_path / "saved", "--no-grpc") as server:
        for name in ("new", "old", "saved"):
            np.testing.assert_allclose(server.predict(name, rows), expected, rtol=1e-4)
            told = server.get(f"/v2/models/{name}").json
            assert told["inputs"][0]["shape"] == [-1, 4]
            answer = server.post(f"/v1/models/{name}:predict", {"instances": [[1, 2]]})
            assert (answer.status, "expects the shape [*, 4], got [1, 2]" in answer.error) == (400, True)
            assert server.get(f"/models/{name}").status == 200
        assert server.get("/v1/models/saved").json["model_version_status"][0]["version"] == "3"
        assert "oneDNN" not in server.said.read_text()


@pytest.mark.slow
def test_a_file_that_is_no_model_is_told(tmp_path: Path) -> None:
    (tmp_path / "broken.keras").write_bytes(b"nothing")
    command = [sys.executable, "-m", "longboat", "serve", str(tmp_path / "broken.keras"), "--port", "0", "--no-grpc"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 2
    assert "broken.keras: TensorFlow cannot load it" in said.stderr
    assert "Traceback" not in said.stderr


def test_without_tensorflow_the_fix_is_told(
    tmp_path: Path, longboat: Longboat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    (tmp_path / "model.keras").write_bytes(b"")
    said = longboat("serve", tmp_path / "model.keras", "--port", "0", "--no-grpc")
    assert said.code == 2
    assert install_command("tensorflow") in said.err
