from __future__ import annotations

import sys
from pathlib import Path

import pytest

from longboat.install_hint import InstalledCopy, command_for, install_command
from tests.packages import ROOT

RECEIPT = """
[tool]
python = "3.12"
requirements = [
    { name = "longboat", extras = ["jax"], path = "/w/longboat-0.1.0-py3-none-any.whl" },
    { name = "torch", specifier = ">=2" },
    { name = "mine", editable = "/src/mine" },
    { name = "data", path = "/w/data.whl" },
]
"""
NEEDS = ("rich>=13", "onnx>=1.18; extra == 'serve'", "orjson>=3; extra == 'serve'", "jax>=0.8; extra == 'jax'")


@pytest.fixture
def copy(tmp_path: Path) -> InstalledCopy:
    prefix = tmp_path / "longboat"
    prefix.mkdir()
    return InstalledCopy(str(prefix), "/env/bin/python", requirements=NEEDS)


def test_the_copy_that_runs_these_tests_is_installed_from_its_checkout() -> None:
    assert install_command("serve", "jax").endswith(f" -m pip install --editable '{ROOT}[jax,serve]'")
    assert install_command(packages=("torch",)) == f"{sys.executable} -m pip install torch"


def test_uv_tool_keeps_the_extras_and_packages_that_the_tool_already_has(copy: InstalledCopy) -> None:
    Path(copy.prefix, "uv-receipt.toml").write_text(RECEIPT)
    copy = InstalledCopy(copy.prefix, copy.python, path="/w/longboat-0.1.0-py3-none-any.whl")
    assert command_for(copy, ("serve",), ("xprof",)) == (
        "uv tool install --python 3.12 --with 'torch>=2' --with-editable /src/mine --with 'data @ file:///w/data.whl'"
        " --with xprof 'longboat[jax,serve] @ file:///w/longboat-0.1.0-py3-none-any.whl'"
    )


def test_in_another_uv_tool_packages_are_added_to_its_environment(copy: InstalledCopy) -> None:
    Path(copy.prefix, "uv-receipt.toml").write_text('[tool]\nrequirements = [{ name = "other" }]\n')
    assert command_for(copy, ("jax",)).endswith(" install 'jax>=0.8'")


def test_pipx_injects_what_the_extra_needs(copy: InstalledCopy) -> None:
    Path(copy.prefix, "pipx_metadata.json").write_text("{}")
    assert command_for(copy, ("serve",), ("torch",)) == "pipx inject longboat 'onnx>=1.18' 'orjson>=3' torch"


@pytest.mark.parametrize(
    ("origin", "source"),
    [
        ({"published": True}, "longboat[serve]"),
        ({"url": "git+https://example.org/longboat@abc"}, "longboat[serve] @ git+https://example.org/longboat@abc"),
        ({"path": "/a dir/longboat.whl"}, "longboat[serve] @ file:///a%20dir/longboat.whl"),
    ],
    ids=["index", "git", "file"],
)
def test_a_copy_is_named_by_where_it_came_from(origin: dict[str, str], source: str) -> None:
    assert InstalledCopy("/env", "/env/bin/python", **origin).source(("serve",)) == source  # type: ignore[arg-type]


def test_without_pip_and_uv_the_command_brings_pip_first(copy: InstalledCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in ("pip", "uv") else name)
    monkeypatch.setattr("longboat.install_hint.shutil.which", lambda _: None)
    assert command_for(copy, (), ("torch",)) == ("/env/bin/python -m ensurepip && /env/bin/python -m pip install torch")
