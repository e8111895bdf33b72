"""Checkpoints of PyTorch's tensors, in an environment that has PyTorch and no numpy."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from bench.places import environment_of
from longboat.runtime import tensors

WITH_TORCH = """
import sys, torch
from longboat import tensors
value = torch.arange(12.0).reshape(3, 4)
arrays = {{"f": value, "turned": value.T, "half": value.to(torch.bfloat16), "n": torch.tensor(7), "b": value > 3,
           "empty": torch.zeros(0, 2), "grad": value.clone().requires_grad_() * 2,
           "complex": torch.complex(value, 2 * value).conj()}}
views = {{name: tensors.view(value, name) for name, value in arrays.items()}}
described = {{name: (dtype, shape) for name, (dtype, shape, _) in views.items()}}
header, _ = tensors.header(described, {{}})
with open({path!r}, "wb") as file:
    file.write(header)
    for name in tensors.order(described):
        file.write(views[name][2])
half = tensors.read({path!r})[0]["half"]
assert half.dtype == torch.bfloat16 and torch.equal(half, arrays["half"]), half
"""


def test_tensors_of_pytorch_are_taken_where_they_lie_also_without_numpy(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    source = str(Path(tensors.__file__).parents[1])
    done = subprocess.run(
        [environment_of("bench") / "python", "-W", "ignore", "-c", WITH_TORCH.format(path=path)],
        env={"PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found, _ = tensors.read(path)
    wanted: Any = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert found["f"].tolist() == wanted.tolist()
    assert found["turned"].tolist() == wanted.T.tolist()
    assert found["half"].astype(np.float32).tolist() == wanted.tolist()
    assert found["grad"].tolist() == (2 * wanted).tolist()
    assert found["complex"].tolist() == (wanted - 2j * wanted).tolist()
    assert (found["n"], found["b"].sum(), found["empty"].shape) == (7, 8, (0, 2))
