"""What is built on what, and what it is called: by the job file, the command line and REGISTRY."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

import longboat
from longboat import spec
from longboat.cli import image_building
from longboat.images import build_request
from longboat.images.building import BuildOrder
from longboat.runtime.errors import LongboatError
from tests.unit.images import making


def order(
    directory: Path, text: str, *words: str, environ: dict[str, str] | None = None, output: str = ""
) -> BuildOrder:
    (directory / "job.yaml").write_text(f"name: hello\nrun: 'true'\n{text}")
    parser = argparse.ArgumentParser()
    image_building.add_build_arguments(parser)
    wish = image_building.options_of(parser.parse_args(words), output)
    return build_request.order_of(spec.load(str(directory), environ={}).plan(), wish, environ or {})


@pytest.mark.parametrize(
    ("text", "words", "environ", "base", "target"),
    [
        ("image: python:3\n", ("-t", "ghcr.io/me/x:1"), {}, "python:3", "ghcr.io/me/x:1"),
        ("image: python:3\n", (), {"REGISTRY": "ghcr.io/me/"}, "python:3", "ghcr.io/me/hello"),
        ("image: python:3\nparams: {REGISTRY: quay.io/us}\n", (), {"REGISTRY": "x.io"}, "python:3", "quay.io/us/hello"),
        ("base: python:3\nimage: ghcr.io/me/x\n", (), {"REGISTRY": "y.io"}, "python:3", "ghcr.io/me/x"),
        ("image: ghcr.io/me/x:2\n", ("--base", "python:3"), {}, "python:3", "ghcr.io/me/x:2"),
        ("base: a\nimage: ghcr.io/me/x\n", ("--base", "b", "-t", "c.io/d"), {}, "b", "c.io/d"),
    ],
)
def test_base_and_name(
    tmp_path: Path, text: str, words: tuple[str, ...], environ: dict[str, str], base: str, target: str
) -> None:
    found = order(tmp_path, text, *words, environ=environ)
    assert (found.base, str(found.target), found.push) == (base, target, True)


def test_a_file_alone_needs_no_name_and_is_not_pushed(tmp_path: Path) -> None:
    found = order(tmp_path, "image: python:3\n", output="image.tar")
    assert (found.target, found.push) == (None, False)
    named = order(tmp_path, "base: python:3\nimage: ghcr.io/me/x\n", output="image.tar")
    assert (str(named.target), named.push) == ("ghcr.io/me/x", False)


@pytest.mark.parametrize(
    ("text", "environ", "message"),
    [
        ("", {}, "no base image"),
        ("image: python:3\n", {}, "no name to push the image to"),
        ("image: ghcr.io/me/hello:1\n", {"REGISTRY": "ghcr.io/me"}, "base image and target are both"),
    ],
)
def test_what_is_left_open_is_asked_for(tmp_path: Path, text: str, environ: dict[str, str], message: str) -> None:
    with pytest.raises(LongboatError, match=message):
        order(tmp_path, text, environ=environ)


def test_the_user_is_the_jobs(tmp_path: Path) -> None:
    found = order(tmp_path, "image: i\nsecurity: {user: 7, group: 8}\n", "-t", "ghcr.io/me/x")
    assert (found.user, found.group) == (7, 8)


def test_python_builds_too_and_a_run_of_it_carries_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.yaml").write_text("name: hello\nrun: 'true'\n")
    base = making.base(tmp_path / "base.tar")
    job = longboat.load(tmp_path)
    monkeypatch.setenv("LONGBOAT_HOME", str(tmp_path / "home"))
    built = job.build("ghcr.io/me/x", base=str(base), output=str(tmp_path / "image.tar"), push=False)
    assert (tmp_path / "image.tar").exists()
    plan = build_request.in_image(job.plan(), built)
    assert plan.image == f"ghcr.io/me/x@{built.digest}"
    assert (plan.code, plan.requirements) == ("", ())
