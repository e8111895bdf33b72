"""TensorFlow Serving's own stubs and Triton's own clients talk to `longboat serve` unchanged."""

from __future__ import annotations

import subprocess
from pathlib import Path

from bench.places import environment_of
from tests.serve import making
from tests.serve.serving import serving


def test_official_clients_work_unchanged(tmp_path: Path) -> None:
    python = environment_of("serving-clients") / "python"
    models = tmp_path / "models"
    making.digits(models / "mnist")
    making.words(models / "words")
    with serving(tmp_path, models) as server:
        program = Path(__file__).with_name("official_clients.py")
        command = [str(python), str(program), str(server.port), str(server.grpc_port)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "all done"
