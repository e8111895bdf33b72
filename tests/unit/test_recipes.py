from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import longboat
from longboat import recipes
from longboat.runtime.errors import LongboatError
from tests.commands import Longboat

ROOT = Path(__file__).parents[2]


def test_init_alone_lists_each_recipe_with_its_shape_needs_and_first_sentence(longboat: Longboat) -> None:
    said = longboat("init")
    assert said.code == 0
    row = next(line for line in said.out.splitlines() if line.startswith("spirals"))
    assert row.split()[:3] == ["spirals", "allreduce", "jax"]
    assert row.endswith("the smallest real data-parallel training.")
    assert "longboat init NAME" in said.err


def test_init_copies_a_recipe_lists_its_files_and_ends_with_the_next_commands(
    longboat: Longboat, tmp_path: Path
) -> None:
    target = tmp_path / "mine"
    said = longboat("init", "spirals", target)
    assert said.code == 0
    assert said.out.splitlines() == [str(target / name) for name in ("README.md", "job.yaml", "train.py")]
    assert (target / "train.py").read_bytes() == (ROOT / "recipes/spirals/train.py").read_bytes()
    assert said.err.splitlines()[-1] == f"  longboat run {target}/job.yaml --preset demo"


def test_init_refuses_a_directory_that_is_not_empty_and_leaves_it_alone(longboat: Longboat, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("mine")
    said = longboat("init", "spirals", tmp_path)
    assert said.code == 2
    assert "is not empty; nothing was written" in said.err
    assert os.listdir(tmp_path) == ["job.yaml"]
    assert (tmp_path / "job.yaml").read_text() == "mine"


def test_init_refuses_a_file_in_the_place_of_the_directory(longboat: Longboat, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    said = longboat("init", "spirals", tmp_path / "taken")
    assert said.code == 2
    assert "is a file" in said.err


def test_a_misspelt_recipe_is_answered_with_the_nearest_one(longboat: Longboat) -> None:
    said = longboat("init", "spirlas")
    assert said.code == 2
    assert "unknown recipe 'spirlas'" in said.err
    assert "did you mean `longboat init spirals`?" in said.err


def test_a_name_like_no_recipe_is_answered_with_how_to_list_them() -> None:
    with pytest.raises(LongboatError) as caught:
        recipes.find("zzz")
    assert caught.value.hint == "list the recipes with `longboat init`"


@pytest.mark.parametrize(
    ("markdown", "sentence"),
    [
        ("# title\n\nOne thing. Another.\n", "One thing."),
        ("# title\n\n| a |\n\nBehind a\ntable, v1.2 of it! Yes.", "Behind a table, v1.2 of it!"),
        ("# title\n", ""),
    ],
)
def test_the_first_sentence_of_a_readme_is_the_one_below_its_title(markdown: str, sentence: str) -> None:
    assert recipes.first_sentence(markdown) == sentence


def test_extras_are_told_by_what_a_script_imports() -> None:
    assert recipes.extras_of(
        "import os, jax\nimport jax.numpy as jnp\nfrom mpi4py import MPI\n# import tensorflow"
    ) == {
        "jax",
        "mpi",
    }


def test_the_wheel_carries_the_recipes_and_finds_them_there(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    listing = "from longboat import recipes; print(*(r.path for r in recipes.every()))"
    done = subprocess.run(
        [sys.executable, "-c", listing],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        check=True,
        capture_output=True,
        text=True,
    )
    assert str(tmp_path / "site/longboat/_recipes/spirals") in done.stdout.split()


@pytest.mark.parametrize("recipe", recipes.every(), ids=lambda recipe: recipe.name)
def test_what_a_recipe_installs_in_pods_is_what_its_extras_install_here(recipe: recipes.Recipe) -> None:
    plan = longboat.load(recipe.path).plan()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    known = {each.partition(";")[0] for extra in extras.values() for each in extra}
    assert plan.image
    assert plan.requirements
    assert set(plan.requirements) <= known
