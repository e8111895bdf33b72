"""The commands that look at a job file: plan, params, set, schema."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from longboat import spec
from longboat.cli.plan_text import command, plan_text, seconds, size
from longboat.runtime import plan as plans
from longboat.spec.json_schema import document
from tests.commands import Longboat
from tests.unit.spec.jobs import SHORT, WIDE_DEEP, write


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write(tmp_path, WIDE_DEEP)


def test_plan_shows_what_a_person_would_check(longboat: Longboat, job: Path) -> None:
    said = longboat("plan", "job.yaml", "--preset", "demo", env={"MY_TOKEN": "hunter2"})
    assert said.code == 0
    lines = [" ".join(line.split()) for line in said.out.splitlines()]
    for expected in (
        "job wide-deep",
        f"file {job}",
        "engine local",
        f"code {job.parent}",
        "preset demo",
        "# STAGE SHAPE RANKS EACH AFTER RUNS",
        "1 train ps chief x 1 0.5 cpu, 4Gi, 1 gpu (most 8Gi) - python train.py --steps 200",
        'ps x 2 0.5 cpu, 2Gi, 1 gpu (most 8Gi) "',
        "2 good-enough gate - train accuracy of train: at least 0; 10 retries",
        "3 serve serve server x 3 good-enough, train the model of train, REST 8501, gRPC 8500, NodePort",
        "4 load-test bench client x 1 serve 40 requests (10 warm-up) of 32 from eval.csv over grpc",
        "data path /datasets read only does not exist on this machine yet",
        "output nfs 10.0.0.1:/exports -> directory of the run read, write",
        "every stage OMP_NUM_THREADS, MODE",
        "train ps PS",
        "secret TOKEN from env MY_TOKEN (not shown)",
        "DATASET_DIR /datasets file required, still as in the file input dataset directory",
        "STEPS 200 preset demo",
        "- required and still as in the file: DATASET_DIR",
    ):
        assert expected in lines, said.out
    assert any(line.startswith("train 5 restarts, 1h30m at most for an attempt, hung after 5m") for line in lines)
    assert "hunter2" not in said.out + said.err
    assert "next:\n  longboat run job.yaml --preset demo\n" in said.err


def test_plan_as_json_is_the_plan_itself(longboat: Longboat, job: Path) -> None:
    said = longboat("plan", "--json", "--set", "STEPS=7", "--on", "kubernetes")
    assert (
        plans.from_json(said.out)
        == spec.load(job, sets={"STEPS": "7"}, engine="kubernetes", remote=True, environ={"A": "b"}).plan()
    )
    assert said.err == ""


def test_without_a_job_file_the_way_to_one_is_shown(
    longboat: Longboat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = longboat("plan")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("error: no job.yaml in this directory\n\nhint: create one with `longboat init`")


def test_problems_are_printed_with_one_error_each(longboat: Longboat, job: Path) -> None:
    write(job.parent, SHORT + "colour: red\nranks: -1\n")
    said = longboat("plan")
    assert (said.code, said.out) == (2, "")
    assert said.err == (
        "error: job.yaml:3:1: unknown key `colour`\n"
        "  3 | colour: red\n"
        "    | ^^^^^^\n"
        "\n"
        "error: job.yaml:4:8: `ranks` must be a whole number from 1 to 100000, not -1\n"
        "  4 | ranks: -1\n"
        "    |        ^^\n"
        "\n"
        "2 problems in job.yaml\n"
    )


def test_options_that_are_wrong_are_told(longboat: Longboat, job: Path) -> None:
    assert longboat("plan", "--set", "STEPS").err.startswith("error: --set STEPS: must be NAME=VALUE")
    assert longboat("plan", "--on", "mars").err.startswith("error: unknown engine 'mars'")
    said = longboat("plan", "--set", "STEP=5")
    assert (said.code, said.err) == (2, "error: --set STEP: unknown param\n  hint: did you mean `STEPS`?\n")


def test_params_lists_them_in_three_forms(longboat: Longboat, job: Path) -> None:
    table = longboat("params", "job.yaml", "--set", "STEPS=5", env={"LONGBOAT_PARAM_PORT": "9000"})
    lines = [" ".join(line.split()) for line in table.out.splitlines()]
    assert lines[0] == "NAME VALUE SET BY DESCRIPTION COUNT REQUIRED"
    assert "DATASET_DIR /datasets file input dataset directory 1 Yes" in lines
    assert "STEPS 5 --set 1 No" in lines
    assert "PORT 9000 environment 1 No" in lines
    markdown = longboat("params", "--markdown").out.splitlines()
    assert markdown[:3] == [
        "| NAME | VALUE | SET BY | DESCRIPTION | COUNT | REQUIRED |",
        "| --- | --- | --- | --- | --- | --- |",
        "| DATASET_DIR | /datasets | file | input dataset directory | 1 | Yes |",
    ]
    found = json.loads(longboat("params", "--json").out)
    assert found[1] == {
        "name": "TARGET_ACCURACY",
        "value": 0.75,
        "help": "the model must reach this",
        "required": True,
        "set_by": "file",
        "count": 1,
    }


def test_params_can_be_listed_while_a_required_one_is_missing(longboat: Longboat, job: Path) -> None:
    write(job.parent, SHORT + "params: {HOST: {value: 0.0.0.0, required: true}}\n")
    assert longboat("params").code == 0
    said = longboat("plan")
    assert said.code == 2
    assert "the required param `HOST` is still the placeholder 0.0.0.0" in said.err


def test_set_changes_the_file_and_tells_what_it_was(longboat: Longboat, job: Path) -> None:
    said = longboat("set", "job.yaml", "STEPS", "2000")
    assert (said.code, said.out) == (0, "set STEPS to 2000 (was 1000), used in 1 place\n")
    assert "STEPS: 2000   # a try" in job.read_text()
    assert longboat("set", ".", "IMAGE_SUFFIX", "-x").out == "set IMAGE_SUFFIX to -x (was nothing), used in 1 place\n"
    assert longboat("set", "job.yaml", "STEP", "1").code == 2
    assert longboat("set", "job.yaml", "STEPS", "1", "2").err.startswith("error: STEPS needs one value, not 2")
    assert longboat("set", "job.yaml", "STEPS").code == 2


def test_schema_is_printed_as_json(longboat: Longboat) -> None:
    assert json.loads(longboat("schema").out) == document()


def test_the_environment_may_not_bring_in_heavy_packages(job: Path) -> None:
    """`longboat plan` is on the path of every start: yaml is the one package it may import."""
    code = (
        "import sys\n"
        "before = {name.partition('.')[0] for name in sys.modules}\n"
        "from longboat.cli.main import main\nfrom longboat.cli.console import Console\n"
        "main(['plan', 'job.yaml'], Console())\n"
        "now = {name.partition('.')[0] for name in sys.modules} - before - set(sys.stdlib_module_names)\n"
        "print(sorted(name for name in now if 'cython' not in name and name != '_yaml'), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=job.parent)
    assert done.stderr.splitlines()[-1] == "['longboat', 'yaml']"


def test_commands_are_shortened_for_a_terminal_alone(tmp_path: Path) -> None:
    write(tmp_path, f"name: job\nrun: echo {'x' * 300}\n")
    found = spec.load(tmp_path).plan()
    assert "x" * 300 in plan_text(found)
    narrow = plan_text(found, columns=80)
    assert "x" * 300 not in narrow
    assert "…" in narrow


def test_amounts_are_written_as_in_a_job_file() -> None:
    assert [size(n) for n in (4 << 30, 500_000_000, 1 << 20, 123)] == ["4Gi", "500M", "1Mi", "123"]
    assert [seconds(s) for s in (0, 30, 90, 5400, 172800, 0.5)] == ["0s", "30s", "1m30s", "1h30m", "2d", "0.5s"]
    assert command(("sh", "-c", "a\nb")) == "a b"
    assert command(("echo", "a b")) == "echo 'a b'"


@pytest.mark.parametrize("run", ["BAD ID", "-x", "x-", "a" * 47])
def test_an_export_refuses_an_id_that_no_cluster_takes(longboat: Longboat, tmp_path: Path, run: str) -> None:
    said = longboat("export", str(write(tmp_path, SHORT)), f"--run={run}")
    assert (said.code, said.out) == (2, "")
    assert f"--run {run!r} is not a valid run id" in said.err


def test_a_viewer_closes_what_is_open_and_not_all_that_might_be() -> None:
    """A container may allow a thousand million open files."""
    script = """
import os
from longboat.cli.run_viewer import close_inherited
os.dup2(1, 3), os.dup2(1, 200), os.pipe()
os.closerange = None
close_inherited()
print(sum(os.path.exists(f"/proc/self/fd/{n}") for n in range(1000)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "3\n", done.stderr
