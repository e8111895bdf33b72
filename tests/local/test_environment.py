"""What a rank finds in its environment, and what is refused before a rank is started."""

from __future__ import annotations

import os
import subprocess

import pytest

from longboat import host
from tests.local.place import Place
from tests.unit.images import making

SHOW = """
import os, sys
for name in sys.argv[1:]:
    print(name + "=" + os.environ.get(name, "unset"), flush=True)
"""


def shown(longboat: Place, job: str, *names: str, env: dict[str, str] | None = None) -> dict[str, str]:
    said = longboat.run(job + f"run: [python, show.py, {', '.join(names)}]\n", env=env, show=SHOW)
    assert said.code == 0, said.err
    found: dict[str, str] = dict(line.split("=", 1) for line in longboat.log().splitlines())
    return found


def test_two_ranks_share_the_cores_of_the_machine(longboat: Place) -> None:
    share = str(max(1, int(host.cores().usable) // 2))
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NPROC", "PYTHONUNBUFFERED")
    found = shown(longboat, "shape: allreduce\nranks: 2\n", *names)
    assert found == {"OMP_NUM_THREADS": share, "MKL_NUM_THREADS": share, "NPROC": share, "PYTHONUNBUFFERED": "1"}


@pytest.mark.parametrize(("job", "env"), [("env: {OMP_NUM_THREADS: 7}\n", {}), ("", {"OMP_NUM_THREADS": "7"})])
def test_threads_that_the_user_set_stay(longboat: Place, job: str, env: dict[str, str]) -> None:
    assert shown(longboat, f"{job}shape: allreduce\nranks: 2\n", "OMP_NUM_THREADS", env=env) == {"OMP_NUM_THREADS": "7"}


def test_a_single_rank_may_use_all_cores(longboat: Place) -> None:
    assert shown(longboat, "", "OMP_NUM_THREADS") == {"OMP_NUM_THREADS": "unset"}


def test_cpu_asked_for_is_the_number_of_threads(longboat: Place) -> None:
    assert shown(longboat, "resources: {cpu: 3}\n", "OMP_NUM_THREADS") == {"OMP_NUM_THREADS": "3"}


@pytest.mark.parametrize("value", ["3", ""])
def test_visible_gpus_stay_as_they_are_when_none_are_asked_for(longboat: Place, value: str) -> None:
    env = {"CUDA_VISIBLE_DEVICES": value}
    assert shown(longboat, "", "CUDA_VISIBLE_DEVICES", env=env) == env


def test_gpus_are_dealt_out_to_the_ranks_from_those_that_may_be_used(longboat: Place) -> None:
    job = "shape: allreduce\nranks: 2\nresources: {gpu: 2}\n"
    found = shown(longboat, job, "CUDA_VISIBLE_DEVICES", env={"CUDA_VISIBLE_DEVICES": "4,5,6,7"})
    assert found == {"CUDA_VISIBLE_DEVICES": "4,5"}
    assert longboat.log(1) == "CUDA_VISIBLE_DEVICES=6,7\n"


def test_gpus_that_are_not_there_are_refused_with_the_arithmetic(longboat: Place) -> None:
    said = longboat.run(
        "run: 'true'\nshape: ps\nranks: {worker: 2, ps: {count: 1, resources: {gpu: 1}}}\nresources: {gpu: 2}\n",
        env={"CUDA_VISIBLE_DEVICES": "0,1,2"},
    )
    assert said.code == 2
    assert "stage main asks for 5 GPUs (2 x 2 worker + 1 x 1 ps) and this machine has 3" in said.err
    assert longboat.runs == []


def test_variables_of_the_job_its_stage_and_its_role_stand_one_above_the_other(longboat: Place) -> None:
    said = longboat.run(
        """
        env: {A: job, B: job, C: job}
        stages:
          main:
            run: [python, show.py, A, B, C]
            env: {B: stage, C: stage}
            shape: ps
            ranks: {worker: {count: 1, env: {C: role}}, ps: 1}
        """,
        show=SHOW,
    )
    assert said.code == 0, said.err
    assert longboat.log() == "A=job\nB=stage\nC=role\n"


def test_mounts_and_the_data_directory_are_found_by_their_variables(longboat: Place) -> None:
    (longboat.code / "data").mkdir()
    far = "far: {nfs: {server: h, path: /x}}"
    job = f"storage: {{data: {{path: data, read_only: true}}, scratch-space: {{emptyDir: {{}}}}, {far}}}\n"
    names = ("LONGBOAT_DATA_DIR", "LONGBOAT_MOUNT_DATA", "LONGBOAT_MOUNT_SCRATCH_SPACE", "LONGBOAT_MOUNT_FAR")
    found = shown(longboat, job, *names)
    assert found["LONGBOAT_DATA_DIR"] == found["LONGBOAT_MOUNT_DATA"] == str(longboat.code / "data")
    assert os.path.isdir(found["LONGBOAT_MOUNT_SCRATCH_SPACE"])
    assert found["LONGBOAT_MOUNT_FAR"].startswith(str(longboat.dir))


def test_a_read_only_directory_that_is_missing_is_refused(longboat: Place) -> None:
    said = longboat.run("run: 'true'\nstorage: {data: {path: nowhere, read_only: true}}\n")
    assert said.code == 2
    assert f"storage data: {longboat.code / 'nowhere'} is not a directory" in said.err


def test_a_file_where_a_mount_should_be_is_refused(longboat: Place) -> None:
    said = longboat.run("run: 'true'\nstorage: {data: ./job.yaml}\n")
    assert said.code == 2
    assert f"storage data: {longboat.code / 'job.yaml'} is not a directory" in said.err
    assert not longboat.runs


def test_a_mount_that_cannot_be_made_ends_the_run_with_its_path(longboat: Place) -> None:
    said = longboat.run("run: 'true'\nstorage: {data: ./job.yaml/below}\n")
    assert said.code == 2
    assert f"cannot create the directory {longboat.code / 'job.yaml/below'}: Not a directory" in said.err
    assert longboat.status()["state"] == "failed"


def test_a_rank_ignores_no_signal_although_its_launcher_does(longboat: Place) -> None:
    assert longboat.run("run: [grep, SigIgn, /proc/self/status]\n").code == 0
    assert int(longboat.log().split()[1], 16) & 0x7FFFFFFF == 0, "of those a program may set; 32 and up are libc's"


def test_streams_that_the_caller_closed_do_no_harm(longboat: Place) -> None:
    words = [*longboat.python, "-m", "longboat", "run", str(longboat.job("run: echo hi\n"))]
    subprocess.run(["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *words], env=longboat.env, cwd=longboat.code, check=True)
    assert longboat.log() == "hi\n"


def test_requirements_that_cannot_be_installed_end_the_run_with_the_command_to_try(longboat: Place) -> None:
    said = longboat.run("run: 'true'\nrequirements: ['/no/such/wheel.whl']\n")
    assert said.code == 2
    assert "requirements: cannot install /no/such/wheel.whl" in said.err
    assert "hint: run it yourself: " in said.err
    assert longboat.status()["state"] == "failed"


def test_requirements_may_be_wheels_of_the_code_tree(longboat: Place) -> None:
    making.wheel(longboat.code / "wheels")
    said = longboat.run("run: tool\nrequirements: ['--no-index', '--find-links ./wheels', tool]\n")
    assert said.code == 0, said.err
    assert longboat.log() == "tool\n"


def test_the_python_of_the_stage_stands_first_on_the_path(longboat: Place) -> None:
    (longboat.code / "env/bin").mkdir(parents=True)
    longboat.file("env/bin/python", "#!/bin/sh\necho mine\n").chmod(0o755)
    said = longboat.run("run: python train.py\npython: env\n")
    assert said.code == 0, said.err
    assert longboat.log() == "mine\n"


def test_more_ranks_than_open_files_by_default_are_driven_and_keep_that_limit(longboat: Place) -> None:
    longboat.python = ["sh", "-c", 'ulimit -S -n 40; exec "$@"', "sh", *longboat.python]
    said = longboat.run("run: [sh, -c, 'ulimit -S -n']\nshape: allreduce\nranks: 50\n")
    assert said.code == 0, said.err
    assert {longboat.log(rank=rank) for rank in range(50)} == {"40\n"}
