from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from longboat import job_scaffold
from tests.commands import Longboat

SCRIPTS = {
    "import jax\njax.distributed.initialize()\n": "allreduce",
    "import torch.distributed as dist\ndist.init_process_group('gloo')\n": "allreduce",
    "import tensorflow as tf\ns = tf.distribute.MultiWorkerMirroredStrategy()\n": "allreduce",
    "import tensorflow as tf\ns = tf.distribute.ParameterServerStrategy(r)\n": "ps",
    "from mpi4py import MPI\nimport torch.distributed\n": "mpi",
    "import horovod.torch as hvd\n": "mpi",
    "import os\nshard, of = os.environ['LONGBOAT_RANK'], os.environ['LONGBOAT_WORLD_SIZE']\n": "average",
    "print('hello')\n": "single",
    "def broken(:\n": "single",
}


@pytest.mark.parametrize(("source", "shape"), SCRIPTS.items())
def test_what_a_script_uses_tells_its_shape(source: str, shape: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(source)
    assert job_scaffold.read(str(script)).shape == shape


@pytest.mark.parametrize(("source", "shape"), SCRIPTS.items())
def test_the_job_file_written_around_a_script_makes_a_plan(
    source: str, shape: str, tmp_path: Path, longboat: Longboat
) -> None:
    script = tmp_path / "my train.py"
    script.write_text(source)
    said = longboat("init", "--from", script)
    assert said.code == 0
    assert said.out.strip() == str(tmp_path / "job.yaml")
    planned = longboat("plan", tmp_path / "job.yaml")
    assert planned.code == 0, planned.err
    assert shape in planned.out


def test_what_the_script_takes_becomes_params(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "p.add_argument('--steps', type=int, default=10)\n"
        "p.add_argument('-l', '--learning-rate', default=1e-3, help='rate (of learning)')\n"
        "p.add_argument('--name', default='x')\n"
        "p.add_argument('--fast', action='store_true')\n"
        "p.add_argument('--rest', nargs='*', default=[])\n"
        "p.add_argument('--data', required=True, help='where ${x} lies')\n"
        "p.add_argument('target')\n"
    )
    text = job_scaffold.job_file(job_scaffold.read(str(script)), str(tmp_path))
    job = yaml.safe_load(text)
    assert job["params"] == {
        "STEPS": {"value": 10, "help": "--steps of the script"},
        "LEARNING_RATE": {"value": 0.001, "help": "rate (of learning)"},
        "NAME": {"value": "x", "help": "--name of the script"},
        "DATA": {"value": "", "help": "where $${x} lies", "required": True},
        "TARGET": {"value": "", "help": "target of the script", "required": True},
    }
    assert job["stages"]["train"]["run"] == (
        "python train.py --steps ${STEPS} --learning-rate ${LEARNING_RATE}"
        ' --name "${NAME}" --data "${DATA}" "${TARGET}"'
    )
    assert "# It also takes --fast." in text
    assert job["code"] == "."


def test_a_shell_script_is_run_as_it_is(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\npython -m torch.distributed.run x\n")
    job = yaml.safe_load(job_scaffold.job_file(job_scaffold.read(str(script)), str(tmp_path / "jobs")))
    assert job["stages"]["train"] == {"run": "sh train.sh", "shape": "single", "restarts": 3}
    script.chmod(0o755)
    job = yaml.safe_load(job_scaffold.job_file(job_scaffold.read(str(script)), str(tmp_path / "jobs")))
    assert job["stages"]["train"]["run"] == "./train.sh"
    assert job["code"] == ".."


def test_an_existing_job_file_is_replaced_only_by_force(tmp_path: Path, longboat: Longboat) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "job.yaml").write_text("mine")
    refused = longboat("init", "--from", tmp_path / "train.py")
    assert refused.code == 2
    assert "already exists" in refused.err
    assert (tmp_path / "job.yaml").read_text() == "mine"
    assert longboat("init", "--from", tmp_path / "train.py", "--force").code == 0
    assert (tmp_path / "job.yaml").read_text() != "mine"


def test_a_script_that_is_not_there_is_said_so(tmp_path: Path, longboat: Longboat) -> None:
    said = longboat("init", "--from", tmp_path / "none.py")
    assert said.code == 2
    assert "none.py does not exist" in said.err
    assert list(tmp_path.iterdir()) == []


def test_options_of_from_without_it_are_wrong_use(longboat: Longboat) -> None:
    assert longboat("init", "spirals", "--force").code == 2
    assert longboat("init", "spirals", "--from", "x.py").code == 2
