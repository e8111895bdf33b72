"""What ships into strangers' images runs on a bare Python 3.9: nothing but the standard library, old syntax."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from longboat import zipapp

SOURCE = Path(__file__).parents[2] / "src/longboat"
SHIPPED = sorted(SOURCE.parent / name for name, _ in zipapp.files() if name.startswith("longboat/"))
OWN = {"longboat", "longboat.runtime", "longboat.__version__", "longboat.api"}
"""`longboat.api` is fetched by the package's own `__getattr__`, by whoever asks for it."""

LENT = {
    "onnx_model.py": {"jax", "jax2onnx", "onnx", "onnx.helper", "onnx.numpy_helper"},
    "tensors.py": {"ml_dtypes", "numpy"},
}
"""Imported inside functions alone, for a script that asked for arrays of that kind."""


def imports(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= (
                {f"{node.module}.{alias.name}" for alias in node.names} if node.module == "longboat" else {node.module}
            )
    return found


def imports_here(node: ast.stmt) -> set[str]:
    return imports(node) if isinstance(node, ast.Import | ast.ImportFrom) else set()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(SOURCE)))
def test_it_imports_the_standard_library_and_what_ships_with_it_alone(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    foreign = {
        name
        for name in imports(tree)
        if name.split(".")[0] not in sys.stdlib_module_names
        and name != "sitecustomize"
        and ".".join(name.split(".")[:2]) not in OWN
    }
    assert foreign - LENT.get(path.name, set()) == set()
    assert not foreign & {name for node in tree.body for name in imports_here(node)}


HEAVY = {"asyncio", "dataclasses", "email", "http", "inspect", "logging", "pathlib", "subprocess", "tempfile"}
HEAVY |= {"urllib", "zipfile"}
"""An image may have no compiled library, and then each of these takes tens of milliseconds of every pod's start."""


@pytest.mark.parametrize(
    "module",
    ["longboat.runtime.pod.driver_pod", "longboat.runtime.pod.pod_commands", "longboat.runtime.agent.__main__"],
)
def test_a_pod_starts_without_what_only_some_runs_need(module: str) -> None:
    text = f"import sys, {module}; print(*(name.split('.')[0] for name in sys.modules))"
    bare = [sys.executable, "-S", "-E", "-c", f"import sys; sys.path[0] = {str(SOURCE.parent)!r}; {text}"]
    found = set(subprocess.run(bare, check=True, capture_output=True, text=True).stdout.split())
    assert found & HEAVY == set()
