from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from longboat.engines import doctor
from longboat.engines.interface import Finding
from longboat.install_hint import install_command
from longboat.runtime.plan import Mount, Plan, Resources, Role, Secret, Stage
from tests.commands import Longboat

PATH = {"PATH": os.environ["PATH"]}


def job(code: Path, *command: str, **keys: object) -> Plan:
    role = Role("worker", 2, command=command or ("true",), **keys)  # type: ignore[arg-type]
    return Plan("job", code=str(code), stages=(Stage("train", shape="allreduce", roles=(role,)),))


def missing(findings: list[Finding]) -> list[str]:
    return [finding.detail for finding in findings if finding.state == doctor.MISSING]


def test_the_machine_is_described_and_nothing_about_it_is_an_error(longboat: Longboat) -> None:
    said = longboat("doctor")
    assert said.code == 0
    rows = {line.split()[0]: line for line in said.out.splitlines() if line.strip()}
    assert sys.executable in rows["Python"]
    assert str(len(os.sched_getaffinity(0))) in rows["cores"]
    assert {"memory", "home", "disk", "containment", "mpirun", "GPUs", "JAX"} <= set(rows)


def test_json_has_the_same_findings(longboat: Longboat) -> None:
    said = longboat("doctor", "--json")
    found = json.loads(said.out)
    assert found["job"] == []
    assert [f["state"] for f in found["machine"] if f["about"] == "Python"] == ["ok"]


def test_what_is_not_installed_comes_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_FRAMEWORKS", (("Nothing", "no_such_module", ("no-such",), ""),))
    finding = doctor.of_machine("/", {})[-1]
    assert finding == Finding("Nothing", doctor.NOTE, "not installed", install_command(packages=("no-such",)))


def test_a_home_that_is_a_file_is_missing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("")
    assert missing(doctor.of_machine(str(home), PATH)) == [f"{home} is not a directory"]


def test_looking_leaves_nothing_in_the_home(tmp_path: Path) -> None:
    doctor.of_machine(str(tmp_path / "home"), PATH)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (("no-such-program", "x"), "no-such-program is not on PATH"),
        (("sh", "-c", "A=1 no-such-program --x && echo done"), "no-such-program is not on PATH"),
        (("sh", "-c", "./none.sh"), "./none.sh does not exist in {code}"),
        (("./plain.sh",), "./plain.sh is not executable"),
        (("sh", "-c", "python none.py --steps 3"), "none.py does not exist in {code}"),
    ],
)
def test_a_command_that_cannot_start_is_found_before_the_run(
    command: tuple[str, ...], complaint: str, tmp_path: Path
) -> None:
    (tmp_path / "plain.sh").write_text("#!/bin/sh\n")
    assert missing(doctor.of_job(job(tmp_path, *command), PATH)) == [complaint.format(code=tmp_path)]


@pytest.mark.parametrize(
    "command",
    [
        ("true",),
        ("sh", "-c", "cd sub && no-such-program"),
        ("sh", "-c", "for i in 1 2; do echo $i; done"),
        ("sh", "-c", "$PROGRAM x"),
        ("sh", "-c", "python -u there.py 'unbalanced"),
        ("sh", "-c", "python there.py"),
        ("sh", "-c", "exec python -c 'print(1)'"),
        ("./there.sh",),
    ],
)
def test_a_command_that_can_start_or_that_only_a_shell_understands_is_left_alone(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "there.py").write_text("")
    (tmp_path / "there.sh").write_text("#!/bin/sh\n")
    (tmp_path / "there.sh").chmod(0o755)
    assert missing(doctor.of_job(job(tmp_path, *command), PATH)) == []


def test_mounts_must_be_there(tmp_path: Path) -> None:
    here = Mount("here", "path", path=str(tmp_path))
    gone = Mount("gone", "path", path=str(tmp_path / "gone"))
    elsewhere = Mount("cloud", "s3", "s3://bucket", note="a directory of the run stands for s3://bucket")
    plan = Plan("job", storage=(here, gone, elsewhere))
    assert missing(doctor.of_job(plan, PATH)) == [f"{tmp_path}/gone does not exist"]


@pytest.mark.skipif(not os.path.isdir("/proc/sys"), reason="needs a directory that even root cannot write")
def test_a_mount_that_cannot_be_written_is_missing_unless_it_is_read_only() -> None:
    plan = Plan("job", storage=(Mount("data", "path", path="/proc/sys"),))
    assert "is not writable" in missing(doctor.of_job(plan, PATH))[0]
    plan = Plan("job", storage=(Mount("data", "path", path="/proc/sys", read_only=True),))
    assert missing(doctor.of_job(plan, PATH)) == []


def test_secrets_must_be_there_and_their_values_are_never_shown(tmp_path: Path) -> None:
    kept = tmp_path / "token"
    kept.write_text("hush")
    plan = Plan(
        "job",
        secrets=(
            Secret("a", "env", "SET"),
            Secret("b", "env", "UNSET"),
            Secret("c", "file", str(kept)),
            Secret("d", "file", str(tmp_path / "none")),
        ),
    )
    found = doctor.of_job(plan, {**PATH, "SET": "hush"})
    assert missing(found) == ["$UNSET is not set", f"{tmp_path}/none is not readable"]
    assert "hush" not in str(found)


def test_requirements_are_compared_with_what_is_installed() -> None:
    plan = Plan("job", requirements=("PyYAML", "pyyaml>=999", "no-such-distribution==1"))
    found = doctor.of_job(plan, PATH)
    assert [finding.state for finding in found] == [doctor.OK, doctor.NOTE, doctor.NOTE]
    assert "the run will install another" in found[1].detail
    assert "not installed; the run will install it" in found[2].detail


def test_more_memory_than_the_machine_has_is_missing_and_shows_the_arithmetic(tmp_path: Path) -> None:
    plan = job(tmp_path, "true", resources=Resources(memory=1 << 50))
    assert missing(doctor.of_job(plan, PATH))[0].startswith("its ranks request 2048.0 TiB in total, the machine has ")


def test_more_gpus_than_may_be_used_are_missing(tmp_path: Path) -> None:
    plan = job(tmp_path, "true", resources=Resources(gpu=1))
    assert missing(doctor.of_job(plan, {**PATH, "CUDA_VISIBLE_DEVICES": "3"})) == [
        "its ranks request 2 in total, the machine has 1"
    ]
    assert missing(doctor.of_job(plan, {**PATH, "CUDA_VISIBLE_DEVICES": "3,5"})) == []


def test_shape_mpi_needs_an_mpirun(tmp_path: Path) -> None:
    roles = (Role("launcher", 1, command=("true",)), Role("worker", 2, command=("true",)))
    plan = Plan("job", code=str(tmp_path), stages=(Stage("train", shape="mpi", roles=roles, python=str(tmp_path)),))
    found = doctor.of_job(plan, {"PATH": "/nowhere"})
    assert [(f.detail, f.fix) for f in found if f.about == "mpirun"] == [
        ("not found, but a stage has shape mpi", install_command("mpi"))
    ]


def test_a_job_whose_needs_are_not_met_makes_the_exit_code_1(longboat: Longboat, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("longboat: 1\nname: job\nstages:\n  train: {run: no-such-program --x}\n")
    said = longboat("doctor", file)
    assert said.code == 1
    assert "no-such-program is not on PATH" in said.out
    assert "To fix it:" in said.err
    file.write_text("longboat: 1\nname: job\nstages:\n  train: {run: cat --version}\n")
    said = longboat("doctor", file)
    assert said.code == 0
    assert said.err.splitlines()[-1] == f"  longboat run {file}"
