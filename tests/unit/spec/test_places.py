"""What a job names outside itself: code, storage, secrets, packages, security."""

from __future__ import annotations

from pathlib import Path

import pytest

from longboat.runtime import plan
from tests.unit.spec.jobs import SHORT, WIDE_DEEP, load, planned, problem, write


def test_paths_are_relative_to_the_job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "src").mkdir()
    monkeypatch.setenv("HOME", "/home/me")
    found = planned(tmp_path, SHORT + "code: src\nstorage: {a: data, b: {path: /abs}, c: ~/x, d: {hostPath: /h}}\n")
    assert found.code == str(tmp_path / "src")
    assert [(m.kind, m.path, m.note) for m in found.storage] == [
        ("path", str(tmp_path / "data"), ""),
        ("path", "/abs", ""),
        ("path", "/home/me/x", ""),
        ("hostPath", "/h", ""),
    ]
    assert planned(tmp_path, SHORT).code == str(tmp_path)


def test_what_this_machine_cannot_mount_becomes_a_directory_of_the_run_and_the_plan_says_so(tmp_path: Path) -> None:
    found = planned(tmp_path, WIDE_DEEP)
    data, *others = found.storage
    assert (data.path, data.read_only, data.note) == ("/datasets", True, "does not exist on this machine yet")
    assert [(m.kind, m.source, m.path) for m in others] == [
        ("nfs", "10.0.0.1:/exports", ""),
        ("emptyDir", "", ""),
        ("gs", "gs://bucket/weights", ""),
    ]
    assert all("a directory of the run" in m.note for m in others)
    assert all(f"mount {m.name}: {m.note}" in found.notes for m in found.storage)


def test_a_cluster_cannot_see_a_directory_of_this_machine_and_has_one_of_the_run_for_one_to_be_filled(
    tmp_path: Path,
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "rows.csv").write_text("1\n")
    (tmp_path / "empty").mkdir()
    storage = "{a: full, b: empty, c: not-yet, d: {path: other, read_only: true}, e: {pvc: claim}, f: {s3: 's3://b'}}"
    found = planned(tmp_path, SHORT + f"storage: {storage}\n", engine="kubernetes")
    assert [(m.kind, m.path, bool(m.note)) for m in found.storage] == [
        ("path", "", True),
        ("run", "", True),
        ("run", "", True),
        ("path", "", True),
        ("pvc", "", False),
        ("s3", "", False),
    ]


@pytest.mark.parametrize(
    ("storage", "message"),
    [
        ("{Big: x}", "the mount `Big` must be"),
        ("{a: {}}", "`a` needs `path`, `nfs`, `pvc`, `hostPath`, `emptyDir`, `gs`, `s3` or `make`"),
        ("{a: {path: x, pvc: y}}", "`pvc` cannot be used with `path`"),
        ("{a: {pth: x}}", "unknown key `pth`"),
        ("{a: {nfs: {server: x}}}", "`path` is missing in `nfs`"),
        ("{a: {nfs: {server: x, path: rel}}}", "`path` must be an absolute path"),
        ("{a: {gs: bucket}}", "`gs` must be a URL starting with gs://"),
        ("{a: {path: x, read_only: maybe}}", "`read_only` must be true or false"),
        ("{a: }", "mount `a` is empty"),
        ("{a: {path: ''}}", "mount `a` is empty"),
        ("{a: {pvc: }}", "`pvc` is empty"),
        ("[a]", "`storage` must be a mapping of mounts, not a list"),
    ],
)
def test_a_mount_that_is_wrong_is_told(tmp_path: Path, storage: str, message: str) -> None:
    assert problem(tmp_path, SHORT + f"storage: {storage}\n").message.startswith(message)


def test_code_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert problem(tmp_path, SHORT + "code: src\n").message == f"directory {tmp_path / 'src'} does not exist"


def test_a_secret_is_a_variable_of_every_rank_without_a_value(tmp_path: Path) -> None:
    found = load(tmp_path, WIDE_DEEP, environ={"MY_TOKEN": "hunter2"}).plan()
    assert found.secrets == (
        plan.Secret("TOKEN", "env", "MY_TOKEN"),
        plan.Secret("KEY", "file", str(tmp_path / "key.txt")),
        plan.Secret("CLOUD", "cluster", "cloud", "token"),
    )
    assert plan.Variable("TOKEN", secret="TOKEN") in found.stage("train").env
    assert "hunter2" not in plan.to_json(found)
    said = " ".join(found.notes)
    assert f"secret KEY: file {tmp_path / 'key.txt'} does not exist" in said
    assert "secret CLOUD: Secret cloud is in a cluster and not available locally" in said
    assert "MY_TOKEN is not set" not in said
    assert "MY_TOKEN is not set" in " ".join(load(tmp_path, WIDE_DEEP, environ={"A": "b"}).plan().notes)


@pytest.mark.parametrize(
    ("secrets", "message"),
    [
        ("{A: hunter2}", "`A` must be a mapping, not the text"),
        ("{A: {value: x}}", "unknown key `value`"),
        ("{A: {env: x, file: y}}", "`file` cannot be used with `env`"),
        ("{A: {secret: x}}", "`secret` needs `key`"),
        ("{A: {env: x, key: y}}", "`key` cannot be used with `env`"),
        ("{LONGBOAT_A: {env: x}}", "`LONGBOAT_A`: variables that start with LONGBOAT_"),
        ("{A: {env: x}}\nenv: {A: 1}", "`A` is also defined in `env` or an env file"),
    ],
)
def test_a_secret_that_is_wrong_is_told(tmp_path: Path, secrets: str, message: str) -> None:
    found = problem(tmp_path, SHORT + f"secrets: {secrets}\n")
    assert found.message.startswith(message)


def test_requirements_are_a_list_or_a_file(tmp_path: Path) -> None:
    write(tmp_path, "# all\nnumpy>=2  # fast\n-r more.txt\npillow \\\n    --hash=sha256:ab\n", "requirements.txt")
    write(tmp_path, "jax\r\n\r\n", "more.txt")
    assert planned(tmp_path, SHORT + "requirements: [numpy, 'jax>=0.8']\n").requirements == ("numpy", "jax>=0.8")
    found = planned(tmp_path, SHORT + "requirements: requirements.txt\n").requirements
    assert found == ("numpy>=2", "jax", "pillow --hash=sha256:ab")
    assert "does not exist" in problem(tmp_path, SHORT + "requirements: no.txt\n").message
    assert problem(tmp_path, SHORT + "requirements: numpy\n").message.startswith("`requirements` must be a path")
    write(tmp_path, "-r loop.txt\n", "loop.txt")
    assert "nest more than" in problem(tmp_path, SHORT + "requirements: loop.txt\n").message


def test_security_and_images_reach_the_plan(tmp_path: Path) -> None:
    found = planned(tmp_path, WIDE_DEEP)
    assert found.security == plan.Security(1000, 1000, 1000, "", "", "trainer", (("a", "b"),))
    assert (found.image, found.pull_secrets) == ("example/wide-deep", ("regcred",))
    assert problem(tmp_path, SHORT + "security: {user: root}\n").message.startswith("`user` must be a whole number")


def test_made_storage_is_a_claim_named_after_job_and_mount_that_outlives_the_run(tmp_path: Path) -> None:
    job = SHORT + "storage: {a: {make: 10Gi}, b: {make: {nfs: true, disk: old, class: fast}}}\n"
    first, second = planned(tmp_path, job, engine="kubernetes").storage
    assert (first.kind, first.source, first.make) == ("pvc", "hello-a", plan.Make(10 << 30))
    assert (second.source, second.make) == ("hello-b", plan.Make(0, "fast", "", True, "old"))
    assert "`longboat rm` keeps it" in first.note
    assert "a directory of the run" in planned(tmp_path, job).storage[0].note


@pytest.mark.parametrize(
    ("make", "message"),
    [
        ("{class: fast}", "`make` of mount `a` needs a size"),
        ("{size: 1Gi, disk: old}", "`disk` needs `nfs: true`"),
        ("{size: 1Gi, nfs: true, mode: ReadWriteOnce}", "`nfs: true` is always ReadWriteMany"),
        ("much", "`make` must be a size such as 10Gi"),
        ("{size: 1Gi, mode: ReadWrite}", "`mode` cannot be `ReadWrite`"),
    ],
)
def test_storage_that_cannot_be_made_is_told(tmp_path: Path, make: str, message: str) -> None:
    assert problem(tmp_path, SHORT + f"storage: {{a: {{make: {make}}}}}\n").message.startswith(message)
