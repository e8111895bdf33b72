"""What a stage's result depends on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from longboat.runtime.plan import Mount, Plan, Role, Stage
from longboat.spec.fingerprint import fingerprints, from_json, to_json


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in {
        "prepare.py": "import shared",
        "train.py": "from package import layers\nimport numpy",
        "shared.py": "",
        "package/__init__.py": "",
        "package/layers.py": "from package.deep import x",
        "package/deep.py": "x = 1",
        "sizes.json": "{}",
        "README.md": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def plan(tree: Path, *commands: str, **more: object) -> Plan:
    stages = tuple(
        Stage(f"s{n}", shape="single", roles=(Role("worker", 1, command=("sh", "-c", command)),))
        for n, command in enumerate(commands)
    )
    return Plan("job", code=str(tree), stages=stages, **more)  # type: ignore[arg-type]


def used(tree: Path, command: str) -> list[str]:
    return list(fingerprints(plan(tree, command))["s0"].files)


def test_a_stage_uses_the_files_its_command_names_what_they_import_and_what_is_not_python(tree: Path) -> None:
    assert used(tree, "python prepare.py --out x") == ["prepare.py", "shared.py", "sizes.json"]
    package = ["package/__init__.py", "package/deep.py", "package/layers.py"]
    assert used(tree, "cd . && python ./train.py") == [*package, "sizes.json", "train.py"]
    assert used(tree, "python -m package.layers") == [*package, "sizes.json"]


def test_a_config_in_yaml_counts_and_the_job_file_does_not(tree: Path) -> None:
    (tree / "config.yaml").write_text("rate: 1")
    (tree / "job.yaml").write_text("run: python train.py")
    job = plan(tree, "python prepare.py", file=str(tree / "job.yaml"))
    before = fingerprints(job)["s0"]
    assert list(before.files) == ["config.yaml", "prepare.py", "shared.py", "sizes.json"]
    (tree / "config.yaml").write_text("rate: 2")
    (tree / "job.yaml").write_text("run: python train.py # news")
    assert before.changed(fingerprints(job)["s0"]) == ["config.yaml"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from ..util import x", ["a/util.py"]),
        ("from .. import util", ["a/util.py"]),
        ("from . import near", ["a/b/near.py"]),
        ("from .near import x", ["a/b/near.py"]),
        ("from ..b.near import x", ["a/b/near.py"]),
        ("import util", ["util.py"]),
        ("from util import x", ["util.py"]),
        ("from .util import x", []),
        ("from ....util import x", []),
    ],
)
def test_a_relative_import_is_followed_from_the_package_it_starts_in(
    tmp_path: Path, line: str, found: list[str]
) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    for name in ("util.py", "a/util.py", "a/b/near.py"):
        (tmp_path / name).touch()
    (tmp_path / "a/b/c.py").write_text(line)
    assert sorted(used(tmp_path, "python -m a.b.c")) == sorted(["a/b/c.py", *found])


def test_a_command_that_names_no_file_of_the_tree_uses_all_of_it(tree: Path) -> None:
    assert len(used(tree, "make it")) == 8


def test_a_change_is_said_and_touches_only_the_stages_that_use_it(tree: Path) -> None:
    job = plan(tree, "python prepare.py", "python train.py")
    before = fingerprints(job)
    (tree / "package/deep.py").write_text("x = 2")
    (tree / "README.md").write_text("news")
    now = fingerprints(job)
    assert before["s0"].changed(now["s0"]) == []
    assert before["s1"].changed(now["s1"]) == ["package/deep.py"]


def test_another_command_is_another_definition(tree: Path) -> None:
    before, now = (fingerprints(plan(tree, f"python train.py --steps {n}"))["s0"] for n in (1, 2))
    assert before.changed(now) == ["its definition in the job file"]


def test_new_data_in_a_read_only_mount_is_a_change(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    data = tmp_path_factory.mktemp("data")
    (data / "rows.csv").write_text("1")
    job = plan(tree, "python train.py", storage=(Mount("data", "path", str(data), read_only=True, path=str(data)),))
    before = fingerprints(job)["s0"]
    (data / "rows.csv").write_text("1,2")
    assert before.changed(fingerprints(job)["s0"]) == ["the data in storage data"]


def test_a_file_that_vanished_or_cannot_be_parsed_is_no_error(tree: Path) -> None:
    (tree / "train.py").write_text("def (")
    before = fingerprints(plan(tree, "python train.py"))["s0"]
    os.unlink(tree / "sizes.json")
    assert before.changed(fingerprints(plan(tree, "python train.py"))["s0"]) == ["sizes.json"]


def test_they_are_kept_as_json_and_damage_is_no_knowledge(tree: Path) -> None:
    found = fingerprints(plan(tree, "python train.py"))
    assert from_json(to_json(found)) == found
    assert from_json(to_json(found)[:-3]) == {}
