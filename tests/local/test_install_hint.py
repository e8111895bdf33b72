"""Longboat is installed in several ways, asked how to add an extra, and the answer is run."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packages import ROOT, UV, environment, run

HINT = "from longboat.install_hint import install_command; print(install_command('jpeg'))"
WHERE = "import longboat; print(longboat.__file__)"

Way = Callable[[Path, Path, dict[str, str]], Path]
"""Installs a wheel, or the checkout, below a directory; gives the Python of the new environment."""


def _venv(place: Path, env: dict[str, str], what: list[str], seed: bool) -> Path:
    python = place / "venv/bin/python"
    run([*UV, "venv", "--quiet", *(["--seed"] if seed else []), str(place / "venv")], env, place)
    run([*UV, "pip", "install", "--quiet", "--python", str(python), "numpy", *what], env, place)
    return python


def checkout(place: Path, wheel: Path, env: dict[str, str]) -> Path:
    # A copy: an installer that builds in the checkout must not disturb other tests.
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (place / "checkout").mkdir(exist_ok=True)
        shutil.copy(ROOT / name, place / "checkout" / name)
    for name in ("src", "recipes"):
        shutil.copytree(ROOT / name, place / "checkout" / name, ignore=shutil.ignore_patterns("__pycache__"))
    return _venv(place, env, ["--editable", str(place / "checkout")], seed=False)


def wheel_with_pip(place: Path, wheel: Path, env: dict[str, str]) -> Path:
    return _venv(place, env, [str(wheel)], seed=True)


def wheel_without_pip(place: Path, wheel: Path, env: dict[str, str]) -> Path:
    return _venv(place, env, [str(wheel)], seed=False)


def wheel_that_is_gone(place: Path, wheel: Path, env: dict[str, str]) -> Path:
    copy = Path(shutil.copy(wheel, place))
    python = _venv(place, env, [str(copy)], seed=False)
    copy.unlink()
    return python


def uv_tool(place: Path, wheel: Path, env: dict[str, str]) -> Path:
    run([*UV, "tool", "install", "--quiet", "--with", "numpy", str(wheel)], env, place)
    return place / "tools/longboat/bin/python"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "starts", "names"),
    [
        (checkout, "uv pip install --python {python} --editable", "{place}/checkout[jpeg]"),
        (wheel_with_pip, "{python} -m pip install", "longboat[jpeg] @ file://{wheel}"),
        (wheel_without_pip, "uv pip install --python {python}", "longboat[jpeg] @ file://{wheel}"),
        (wheel_that_is_gone, "uv pip install --python {python}", "simplejpeg>=1.8"),
        (uv_tool, "uv tool install --with numpy", "longboat[jpeg] @ file://{wheel}"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_hint_for_an_extra_installs_it(way: Way, starts: str, names: str, tmp_path: Path, wheel: Path) -> None:
    env = environment(tmp_path)
    python = way(tmp_path, wheel, env)
    words = {"python": python, "place": tmp_path, "wheel": wheel}
    hint = run([str(python), "-c", HINT], env, tmp_path).rstrip("\n")
    assert hint.startswith(starts.format(**words))
    assert f"'{names.format(**words)}'" in hint
    run(hint, env, tmp_path)
    run([str(python), "-c", "import simplejpeg, google_crc32c, numpy"], env, tmp_path)
    home = tmp_path / "checkout/src" if way is checkout else python.parents[1]
    assert run([str(python), "-c", WHERE], env, tmp_path).startswith(str(home))


def test_readme_installs_the_wheel_that_make_dist_builds(wheel: Path) -> None:
    commands = re.findall(r"install '(.+?)\[serve\]'", (ROOT / "README.md").read_text())
    assert commands == ["."] * 3 + [f"dist/{wheel.name}"] * 3
