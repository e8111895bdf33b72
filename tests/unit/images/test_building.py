"""An image depends on what goes into it, and on nothing else."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from longboat.images import building, image_name, python_packages
from longboat.images.building import BuildOrder, BuiltImage
from longboat.runtime.errors import LongboatError
from tests.unit.images import making

WHEELS = ("--no-index", "--find-links ./wheels", "tool==1.0")


def built(order: BuildOrder, home: Path, environ: Mapping[str, str] | None = None) -> BuiltImage:
    return building.build(order, str(home), environ or {}, list[str]().append)


def inside(archive: Path) -> tuple[dict[str, object], dict[str, tarfile.TarInfo], dict[str, bytes]]:
    """Configuration, entries and contents of an archive's image, all layers on top of each other."""
    entries: dict[str, tarfile.TarInfo] = {}
    contents: dict[str, bytes] = {}
    with tarfile.open(archive) as tar:

        def read(name: str) -> bytes:
            file = tar.extractfile(name)
            assert file is not None
            return file.read()

        index = json.loads(read("index.json"))
        manifest = json.loads(read("blobs/" + index["manifests"][0]["digest"].replace(":", "/")))
        config = json.loads(read("blobs/" + manifest["config"]["digest"].replace(":", "/")))
        for layer in manifest["layers"]:
            name = "blobs/" + layer["digest"].replace(":", "/")
            with tarfile.open(fileobj=tar.extractfile(name)) as files:
                for entry in files:
                    entries[entry.name] = entry
                    if entry.isreg():
                        source = files.extractfile(entry)
                        assert source is not None
                        contents[entry.name] = source.read()
    return config, entries, contents


def test_the_same_input_gives_the_same_file_wherever_and_whenever_it_is_built(tmp_path: Path) -> None:
    base = making.base(tmp_path / "base.tar")
    archives = []
    for number, umask in ((1, 0o022), (2, 0o077)):
        before = os.umask(umask)
        try:
            code = making.tree(tmp_path / f"somewhere-{number}" / "code")
            making.wheel(code / "wheels")
            for path in code.rglob("*"):
                os.utime(path, (1e9 * number, 1e9 * number))
            target = tmp_path / f"image-{number}.tar"
            order = BuildOrder("job", str(code), str(base), WHEELS, push=False, output=str(target))
            built(order, tmp_path / f"home-{number}")
            archives.append(target.read_bytes())
        finally:
            os.umask(before)
    assert archives[0] == archives[1]


def test_an_image_holds_code_and_packages_for_an_ordinary_user(tmp_path: Path) -> None:
    code = making.tree(tmp_path / "code")
    making.wheel(code / "wheels")
    (code / ".git").mkdir()
    (code / ".git/secret").write_text("not shipped")
    base = making.base(tmp_path / "base.tar", variables={"PYTHONPATH": "/theirs"})
    order = BuildOrder("job", str(code), str(base), WHEELS, push=False, output=str(tmp_path / "image.tar"), user=1234)
    found = built(order, tmp_path / "home")
    config, entries, contents = inside(tmp_path / "image.tar")
    assert str(found.reference) == f"localhost/job:{found.key}", "whoever loads the file can name it"
    told = config["config"]
    assert isinstance(told, dict)
    assert (told["User"], told["WorkingDir"]) == ("1234:1000", "/opt/longboat/code")
    assert "PYTHONPATH=/opt/longboat/packages:/theirs" in told["Env"]
    assert told["Labels"]["org.opencontainers.image.title"] == "job"
    ours = {name: entry for name, entry in entries.items() if name.startswith("opt")}
    assert {(e.uid, e.gid, e.mtime) for e in ours.values()} == {(0, 0, 315532800)}
    assert {e.mode for e in ours.values()} == {0o644, 0o755}
    assert ours["opt/longboat/code/start.sh"].mode == 0o755
    assert contents["opt/longboat/code/sub/data.txt"] == "ü\n".encode()
    assert not any(".git" in name for name in ours)
    assert contents["opt/longboat/packages/bin/tool"].startswith(b"#!/usr/bin/env python3\n")
    assert "opt/longboat/packages/tool.py" in ours
    record = contents["opt/longboat/packages/tool-1.0.dist-info/RECORD"].decode()
    assert "bin/tool,sha256=" in record
    assert "INSTALLER" not in record
    assert str(tmp_path) not in record


def test_a_change_of_code_leaves_the_packages_as_they_are(tmp_path: Path) -> None:
    code, said = making.tree(tmp_path / "code"), list[str]()
    wheels = making.wheel(tmp_path / "wheels").parent
    lines = ("--no-index", f"--find-links {wheels}", "tool")
    base = making.base(tmp_path / "base.tar")
    order = BuildOrder("job", str(code), str(base), lines, push=False, output=str(tmp_path / "image.tar"))
    first = building.build(order, str(tmp_path / "home"), {}, said.append)
    again = building.build(order, str(tmp_path / "home"), {}, said.append)
    assert (again.digest, again.key) == (first.digest, first.key)
    assert "packages: unchanged" in said
    (code / "train.py").write_text("print('changed')\n")
    changed = building.build(order, str(tmp_path / "home"), {}, said.append)
    assert changed.digest != first.digest
    assert changed.key != first.key


def test_what_cannot_be_written_is_said_and_nothing_half_done_is_left(tmp_path: Path) -> None:
    code, base = making.tree(tmp_path / "code"), making.base(tmp_path / "base.tar")
    order = BuildOrder("job", str(code), str(base), push=False, output=str(tmp_path / "no/such/place.tar"))
    with pytest.raises(LongboatError, match=r"cannot build the image: .*No such file or directory: .*place.tar"):
        built(order, tmp_path / "home")
    assert sorted(path.name for path in (tmp_path / "home/images").iterdir()) == ["blobs", "layers"]


def test_the_moment_that_files_show_can_be_said(tmp_path: Path) -> None:
    code, base = making.tree(tmp_path / "code"), making.base(tmp_path / "base.tar")
    order = BuildOrder("job", str(code), str(base), push=False, output=str(tmp_path / "image.tar"))
    built(order, tmp_path / "home", {"SOURCE_DATE_EPOCH": "1700000000"})
    config, entries, _ = inside(tmp_path / "image.tar")
    assert entries["opt/longboat/code/train.py"].mtime == 1700000000
    assert config["created"] == "2023-11-14T22:13:20Z"


def test_an_image_can_be_built_on_one_that_was_written_before(tmp_path: Path) -> None:
    code, base = making.tree(tmp_path / "code"), making.base(tmp_path / "base.tar")
    first = BuildOrder("job", str(code), str(base), push=False, output=str(tmp_path / "first.tar"))
    built(first, tmp_path / "home")
    layout = tmp_path / "layout"
    with tarfile.open(tmp_path / "first.tar") as tar:
        tar.extractall(layout, filter="data")
    (code / "more.py").write_text("")
    for below in (tmp_path / "first.tar", layout):
        built(
            BuildOrder("job", str(code), str(below), push=False, output=str(tmp_path / "second.tar")), tmp_path / "home"
        )
        config, entries, _ = inside(tmp_path / "second.tar")
        assert "opt/longboat/code/more.py" in entries
        assert len(config["rootfs"]["diff_ids"]) == 3  # type: ignore[index]


def test_a_package_without_a_wheel_is_named_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")  # no docker, podman or buildah
    code = making.tree(tmp_path / "code")
    making.wheel(code / "wheels", tag="cp39-cp39-win_amd64")
    base = making.base(tmp_path / "base.tar")
    target = image_name.parse("localhost:1/job")
    order = BuildOrder("job", str(code), str(base), WHEELS, target, push=False, output=str(tmp_path / "image.tar"))
    with pytest.raises(python_packages.NoWheel) as found:
        built(order, tmp_path / "home")
    assert "no wheel for Python 3.11, amd64, glibc" in found.value.message
    assert "--with docker" in found.value.hint


@pytest.mark.parametrize("by", ["uv", "pip"])
def test_pip_and_uv_leave_the_same_files(tmp_path: Path, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if by == "uv" and not shutil.which("uv", path=str(Path(sys.executable).parent)):
        pytest.skip("there is no uv")
    if by == "pip":
        monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    making.wheel(tmp_path / "wheels")
    python_packages.install(WHEELS, python_packages.WheelTarget("3.12", "arm64"), str(tmp_path / "out"), str(tmp_path))
    assert python_packages.files(str(tmp_path / "out")) == [
        "bin/tool",
        "tool-1.0.dist-info/METADATA",
        "tool-1.0.dist-info/RECORD",
        "tool-1.0.dist-info/WHEEL",
        "tool-1.0.dist-info/entry_points.txt",
        "tool.py",
    ]
    script = (tmp_path / "out/bin/tool").read_text()
    assert script.startswith("#!/usr/bin/env python3\n")
    assert str(tmp_path) not in script


@pytest.mark.parametrize(
    ("python", "variables", "expected"),
    [
        ("usr/local/bin/python3.9", {}, "3.9"),
        ("usr/bin/python3.13", {}, "3.13"),
        ("opt/py", {"PYTHON_VERSION": "3.12.4"}, "3.12"),
    ],
)
def test_the_base_tells_for_which_python_packages_are(
    tmp_path: Path, python: str, variables: dict[str, str], expected: str
) -> None:
    from longboat.images import base_image

    found = base_image.find(
        str(making.base(tmp_path / "b.tar", python, variables)), "linux/amd64", str(tmp_path / "x"), {}
    )
    assert found.target("amd64") == python_packages.WheelTarget(expected, "amd64", "glibc")


def test_a_base_without_python_or_for_another_machine_is_refused(tmp_path: Path) -> None:
    from longboat.images import base_image

    path = str(making.base(tmp_path / "base.tar", "bin/true"))
    with pytest.raises(LongboatError, match="has no Python"):
        base_image.find(path, "linux/amd64", str(tmp_path / "x"), {}).target("amd64")
    with pytest.raises(LongboatError, match="an image for linux/amd64, not for linux/arm64"):
        base_image.find(path, "linux/arm64", str(tmp_path / "x"), {})
    (tmp_path / "noise").write_bytes(b"noise")
    with pytest.raises(LongboatError, match="is not an image"):
        base_image.find(str(tmp_path / "noise"), "linux/amd64", str(tmp_path / "x"), {})
