from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))


def make(*words: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(["make", *words], cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def files(directory: Path) -> list[str]:
    found = [path for path in directory.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return [path.relative_to(directory).as_posix() for path in found]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_has_a_hash_for_every_package_and_names_no_place(lock: Path) -> None:
    text = lock.read_text()
    packages = re.split(r"\n(?=\S)", text)
    assert [
        p.split()[0]
        for p in packages
        if not re.match(r"[\w.-]+==\S+ .*\\\n(    --hash=sha256:[0-9a-f]{64}( \\)?\n?)+$", p)
    ] == []
    assert "://" not in text


def test_make_alone_lists_every_target_with_what_it_does() -> None:
    done = make()
    assert done.returncode == 0
    targets = re.findall(r"^\.PHONY: (\S+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == targets
    assert {"demo", "test", "e2e", "bench", "lint", "docs", "clean"} <= set(targets)


def test_two_public_classes_of_one_name_fail_the_lint(tmp_path: Path) -> None:
    for name, text in {
        "a/x.py": "class Order:\n    class Inner: ...\n\n\nclass _Own: ...\n",
        "b/y.py": "import a\n\n\nclass Order(a.Thing): ...\n\n\nclass _Own: ...\n\n\nclass Inner: ...\n",
        "runtime/rank_path/z.py": "class Order: ...\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    lint = [sys.executable, str(ROOT / ".ci/unique_names.py")]
    done = subprocess.run([*lint, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    first = f"error: class Order is defined 2 times: {tmp_path}/a/x.py:1, {tmp_path}/b/y.py:4\n"
    assert done.stderr.startswith(first)
    assert done.stderr.count("error: ") == 1
    assert subprocess.run(lint, check=False).returncode == 0


def test_the_wheel_holds_every_file_of_the_package_and_the_recipes_and_the_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    wanted = {f"longboat/{path}" for path in files(ROOT / "src/longboat")}
    wanted |= {f"longboat/_recipes/{path}" for path in files(ROOT / "recipes")}
    wanted |= {name for name in names if name.startswith(f"{wheel.name.removesuffix('-py3-none-any.whl')}.dist-info/")}
    assert names == wanted
    assert [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]
    assert {"longboat/py.typed", "longboat/serve/protos/oip.binpb", "longboat/serve/pages/assets/page.css"} <= names


def test_the_sdist_includes_everything_that_is_tracked() -> None:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    top = {line.partition("/")[0] for line in done.stdout.splitlines()}
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = {path.strip("/") for path in settings["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]}
    assert included == top - {"pyproject.toml"}, "hatchling adds pyproject.toml itself"


def test_every_room_is_in_the_architecture_and_every_lock_in_its_readme() -> None:
    sources = [path.relative_to(ROOT / "src/longboat") for path in (ROOT / "src/longboat").rglob("*.py")]
    rooms = {path.parts[0].removesuffix(".py") for path in sources if not path.parts[0].startswith("__")}
    told = (ROOT / "docs/architecture.md").read_text()
    assert [room for room in sorted(rooms) if f"`{room}" not in told] == []
    read_me = (ROOT / "requirements/README.md").read_text()
    assert [lock.name for lock in LOCKS if f"`{lock.name}`" not in read_me] == []
