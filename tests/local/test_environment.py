"""What a rank finds in its environment, and what is refused before a rank is started."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.local.place import Place
from tests.unit.images import making
from windlass import machine

SHOW = """
import os, sys
for name in sys.argv[1:]:
    print(name + "=" + os.environ.get(name, "unset"), flush=True)
"""


def shown(windlass: Place, job: str, *names: str, env: dict[str, str] | None = None) -> dict[str, str]:
    said = windlass.run(job + f"run: [python, show.py, {', '.join(names)}]\n", env=env, show=SHOW)
    assert said.code == 0, said.err
    found: dict[str, str] = dict(line.split("=", 1) for line in windlass.log().splitlines())
    return found


def test_two_ranks_share_the_cores_of_the_machine(windlass: Place) -> None:
    share = str(max(1, int(machine.cores().usable) // 2))
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NPROC", "PYTHONUNBUFFERED")
    found = shown(windlass, "shape: allreduce\nranks: 2\n", *names)
    assert found == {"OMP_NUM_THREADS": share, "MKL_NUM_THREADS": share, "NPROC": share, "PYTHONUNBUFFERED": "1"}


@pytest.mark.parametrize(("job", "env"), [("env: {OMP_NUM_THREADS: 7}\n", {}), ("", {"OMP_NUM_THREADS": "7"})])
def test_threads_that_the_user_set_stay(windlass: Place, job: str, env: dict[str, str]) -> None:
    assert shown(windlass, f"{job}shape: allreduce\nranks: 2\n", "OMP_NUM_THREADS", env=env) == {"OMP_NUM_THREADS": "7"}


def test_a_single_rank_may_use_all_cores(windlass: Place) -> None:
    assert shown(windlass, "", "OMP_NUM_THREADS") == {"OMP_NUM_THREADS": "unset"}


def test_cpu_asked_for_is_the_number_of_threads(windlass: Place) -> None:
    assert shown(windlass, "resources: {cpu: 3}\n", "OMP_NUM_THREADS") == {"OMP_NUM_THREADS": "3"}


@pytest.mark.parametrize("value", ["3", ""])
def test_visible_gpus_stay_as_they_are_when_none_are_asked_for(windlass: Place, value: str) -> None:
    env = {"CUDA_VISIBLE_DEVICES": value}
    assert shown(windlass, "", "CUDA_VISIBLE_DEVICES", env=env) == env


def test_gpus_are_dealt_out_to_the_ranks_from_those_that_may_be_used(windlass: Place) -> None:
    job = "shape: allreduce\nranks: 2\nresources: {gpu: 2}\n"
    found = shown(windlass, job, "CUDA_VISIBLE_DEVICES", env={"CUDA_VISIBLE_DEVICES": "4,5,6,7"})
    assert found == {"CUDA_VISIBLE_DEVICES": "4,5"}
    assert windlass.log(1) == "CUDA_VISIBLE_DEVICES=6,7\n"


def test_gpus_that_are_not_there_are_refused_with_the_arithmetic(windlass: Place) -> None:
    said = windlass.run(
        "run: 'true'\nshape: ps\nranks: {worker: 2, ps: {count: 1, resources: {gpu: 1}}}\nresources: {gpu: 2}\n",
        env={"CUDA_VISIBLE_DEVICES": "0,1,2"},
    )
    assert said.code == 2
    assert "stage main asks for 5 GPUs (2 x 2 worker + 1 x 1 ps) and this machine has 3" in said.err
    assert windlass.runs == []


def test_variables_of_the_job_its_stage_and_its_role_stand_one_above_the_other(windlass: Place) -> None:
    said = windlass.run(
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
    assert windlass.log() == "A=job\nB=stage\nC=role\n"


def test_mounts_and_the_data_directory_are_found_by_their_variables(windlass: Place) -> None:
    (windlass.code / "data").mkdir()
    far = "far: {nfs: {server: h, path: /x}}"
    job = f"storage: {{data: {{path: data, read_only: true}}, scratch-space: {{emptyDir: {{}}}}, {far}}}\n"
    names = ("WINDLASS_DATA_DIR", "WINDLASS_MOUNT_DATA", "WINDLASS_MOUNT_SCRATCH_SPACE", "WINDLASS_MOUNT_FAR")
    found = shown(windlass, job, *names)
    assert found["WINDLASS_DATA_DIR"] == found["WINDLASS_MOUNT_DATA"] == str(windlass.code / "data")
    assert os.path.isdir(found["WINDLASS_MOUNT_SCRATCH_SPACE"])
    assert found["WINDLASS_MOUNT_FAR"].startswith(str(windlass.dir))


def test_a_read_only_directory_that_is_missing_is_refused(windlass: Place) -> None:
    said = windlass.run("run: 'true'\nstorage: {data: {path: nowhere, read_only: true}}\n")
    assert said.code == 2
    assert f"storage data: {windlass.code / 'nowhere'} is not a directory" in said.err


def test_a_file_where_a_mount_should_be_is_refused(windlass: Place) -> None:
    said = windlass.run("run: 'true'\nstorage: {data: ./job.yaml}\n")
    assert said.code == 2
    assert f"storage data: {windlass.code / 'job.yaml'} is not a directory" in said.err
    assert not windlass.runs


def test_a_mount_that_cannot_be_made_ends_the_run_with_its_path(windlass: Place) -> None:
    said = windlass.run("run: 'true'\nstorage: {data: ./job.yaml/below}\n")
    assert said.code == 2
    assert f"the directory {windlass.code / 'job.yaml/below'} cannot be made: Not a directory" in said.err
    assert windlass.status()["state"] == "failed"


def test_a_rank_ignores_no_signal_although_its_launcher_does(windlass: Place) -> None:
    assert windlass.run("run: [grep, SigIgn, /proc/self/status]\n").code == 0
    assert int(windlass.log().split()[1], 16) & 0x7FFFFFFF == 0, "of those a program may set; 32 and up are libc's"


def test_streams_that_the_caller_closed_do_no_harm(windlass: Place) -> None:
    words = [*windlass.python, "-m", "windlass", "run", str(windlass.job("run: echo hi\n"))]
    subprocess.run(["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *words], env=windlass.env, cwd=windlass.code, check=True)
    assert windlass.log() == "hi\n"


def test_requirements_that_cannot_be_installed_end_the_run_with_the_command_to_try(windlass: Place) -> None:
    said = windlass.run("run: 'true'\nrequirements: ['/no/such/wheel.whl']\n")
    assert said.code == 2
    assert "requirements: /no/such/wheel.whl could not be installed" in said.err
    assert "hint: try it by hand: " in said.err
    assert windlass.status()["state"] == "failed"


def test_requirements_may_be_wheels_of_the_code_tree(windlass: Place) -> None:
    making.wheel(windlass.code / "wheels")
    said = windlass.run("run: tool\nrequirements: ['--no-index', '--find-links ./wheels', tool]\n")
    assert said.code == 0, said.err
    assert windlass.log() == "tool\n"


def test_the_python_of_the_stage_stands_first_on_the_path(windlass: Place) -> None:
    (windlass.code / "env/bin").mkdir(parents=True)
    windlass.file("env/bin/python", "#!/bin/sh\necho mine\n").chmod(0o755)
    said = windlass.run("run: python train.py\npython: env\n")
    assert said.code == 0, said.err
    assert windlass.log() == "mine\n"


def test_more_ranks_than_open_files_by_default_are_driven_and_keep_that_limit(windlass: Place) -> None:
    windlass.python = ["sh", "-c", 'ulimit -S -n 40; exec "$@"', "sh", *windlass.python]
    said = windlass.run("run: [sh, -c, 'ulimit -S -n']\nshape: allreduce\nranks: 50\n")
    assert said.code == 0, said.err
    assert {windlass.log(rank=rank) for rank in range(50)} == {"40\n"}
