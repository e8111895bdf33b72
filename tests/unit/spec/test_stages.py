"""Stages: commands, shapes, roles and ranks, resources, gates, servers, load tests, order."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from longboat.runtime import plan
from longboat.spec.stage_order import ordered
from tests.unit.spec.jobs import SHORT, WIDE_DEEP, load, planned, problem, problems, stage


def test_a_text_goes_to_the_shell_and_a_list_is_executed(tmp_path: Path) -> None:
    assert stage(tmp_path, "run: echo a | cat").roles[0].command == ("sh", "-c", "echo a | cat")
    assert stage(tmp_path, "run: [echo, 5, 1.50, true]").roles[0].command == ("echo", "5", "1.50", "true")


def test_a_file_without_stages_is_a_job_of_one(tmp_path: Path) -> None:
    found = planned(tmp_path, SHORT + "ranks: 3\nenv: {A: 1}\nimage: img\nrestarts: 0\n")
    assert [(s.name, s.shape, s.ranks, s.restarts) for s in found.stages] == [("main", "allreduce", 3, 0)]
    assert found.image == "img"
    assert found.stages[0].env == (plan.Variable("A", "1"),)


def test_a_key_of_a_stage_beside_stages_is_told_where_to_go(tmp_path: Path) -> None:
    found = problem(tmp_path, "name: job\nranks: 2\nstages:\n  a: {run: x}\n")
    assert (found.line, found.message) == (2, "`ranks` is a key of a stage")


def test_a_file_with_nothing_to_run_is_a_problem(tmp_path: Path) -> None:
    assert problem(tmp_path, "name: job\n").message == "the file needs `run` or `stages`"
    assert problem(tmp_path, "name: job\nstages: {}\n").message == "`stages` is empty"
    assert problem(tmp_path, "name: job\nsteps: {}\n").hint == "did you mean `stages`?"
    assert problem(tmp_path, 'name: job\nrun: ""\n').message == "`run` is empty"


RANKS = [
    ("", "single", {"worker": 1}),
    ("ranks: 1", "single", {"worker": 1}),
    ("ranks: 4", "allreduce", {"worker": 4}),
    ("ranks: {worker: 1}", "single", {"worker": 1}),
    ("ranks: {worker: 4}", "allreduce", {"worker": 4}),
    ("ranks: {ps: 2, worker: 3}", "ps", {"worker": 3, "ps": 2}),
    ("ranks: {ps: 2}", "ps", {"worker": 2, "ps": 2}),
    ("ranks: {launcher: 1, worker: 3}", "mpi", {"launcher": 1, "worker": 3}),
    ("shape: allreduce", "allreduce", {"worker": 2}),
    ("shape: mpi\nranks: 5", "mpi", {"launcher": 1, "worker": 5}),
    ("shape: mpi", "mpi", {"launcher": 1, "worker": 2}),
    ("shape: ps", "ps", {"worker": 2, "ps": 1}),
    ("shape: ps\nranks: {chief: 0, worker: 1, evaluator: 1}", "ps", {"worker": 1, "ps": 1, "evaluator": 1}),
    ("shape: average\nranks: 3", "average", {"worker": 3}),
    ("merge: python merge.py\nranks: 1", "average", {"worker": 1}),
    ("ranks: {worker: {count: 2, env: {A: b}}}", "allreduce", {"worker": 2}),
]


@pytest.mark.parametrize(("lines", "shape", "ranks"), RANKS, ids=[lines or "nothing" for lines, _, _ in RANKS])
def test_shape_and_ranks_fill_each_other_in(tmp_path: Path, lines: str, shape: str, ranks: dict[str, int]) -> None:
    found = stage(tmp_path, f"run: x\n{lines}")
    assert found.shape == shape
    assert {role.name: role.ranks for role in found.roles} == ranks


def test_who_must_finish_and_who_restarts_alone_come_from_the_shape(tmp_path: Path) -> None:
    found = stage(tmp_path, "run: x\nranks: {chief: 1, worker: 2, ps: 1, evaluator: 1}")
    assert [(r.name, r.finishes, r.alone) for r in found.roles] == [
        ("chief", True, False),
        ("worker", False, True),
        ("ps", False, False),
        ("evaluator", False, True),
    ]
    assert stage(tmp_path, "run: x\nshape: ps").role("worker").finishes


def test_a_role_may_have_a_command_resources_and_an_image_of_its_own(tmp_path: Path) -> None:
    found = stage(
        tmp_path,
        """\
        run: work
        resources: {cpu: 2, memory: 4Gi, limits: {memory: 8Gi}}
        ranks:
          worker: 2
          ps: {count: 3, run: [ps], resources: {memory: 500M}, env: {A: 1}, image: other, pull_policy: Never}
        """,
    )
    assert found.role("worker").resources == plan.Resources(2.0, 4 << 30, 0, None, 8 << 30)
    ps = found.role("ps")
    assert ps.resources == plan.Resources(2.0, 500_000_000, 0, None, 8 << 30)
    assert (ps.command, ps.env, ps.image, ps.pull_policy) == (("ps",), (plan.Variable("A", "1"),), "other", "Never")


BAD = [
    ("shape: alreduce", "`shape` cannot be `alreduce`", "did you mean `allreduce`?"),
    ("ranks: 0", "`ranks` must be a whole number from 1 to 100000, not 0", ""),
    ("ranks: -3", "`ranks` must be a whole number from 1 to 100000, not -3", ""),
    ("ranks: 1000000000", "`ranks` must be a whole number from 1 to 100000, not 1000000000", ""),
    ("ranks: 2.5", "`ranks` must be a whole number from 1 to 100000, not 2.5", ""),
    ('ranks: "2"', "`ranks` must be a whole number", "remove the quotes"),
    ("ranks: true", "`ranks` must be a whole number from 1 to 100000, not true", ""),
    ("ranks: [2]", "`ranks` must be a whole number from 1 to 100000 or a mapping of roles, not a list", ""),
    ("ranks: {worker: 0}", "shape single takes 1 ranks of role worker, not 0", ""),
    ("shape: allreduce\nranks: {worker: 0}", "shape allreduce takes from 1 to 100000 ranks of role worker, not 0", ""),
    ("shape: single\nranks: 2", "shape single takes 1 ranks of role worker, not 2", "shape allreduce has many workers"),
    ("shape: ps\nranks: {chief: 2}", "shape ps takes from 0 to 1 ranks of role chief, not 2", ""),
    ("shape: ps\nranks: 4", "shape ps needs ranks for each role", "for example `ranks: {worker: 2, ps: 1}`"),
    ("shape: allreduce\nranks: {wrker: 2}", "shape allreduce has no role `wrker`", "did you mean `worker`?"),
    ("ranks: {wrker: 2}", "no shape has a role `wrker`", "did you mean `worker`?"),
    ("ranks: {launcher: 1, ps: 1}", "no shape has these roles together", ""),
    ("ranks: {ps: 60000, worker: 60000}", "the stage has 120000 ranks; the maximum is 100000", ""),
    ("merge: x\nshape: allreduce", "`merge` cannot be used with shape allreduce", "use it with shape average"),
    ("rounds: 3\nshape: average", "`rounds` needs `merge`", ""),
    ("timeout: 5 parsecs", "`timeout` must be a duration", ""),
    ("timeout: -5", "`timeout` must be a duration", ""),
    ("resources: {memory: lots}", "`memory` must be an amount of memory", ""),
    ("resources: {cpu: 0}", "`cpu` must be a number of cores", ""),
    ("resources: {gpus: 1}", "unknown key `gpus`", "did you mean `gpu`?"),
    ("resources: {memory: 4Gi, limits: {memory: 2Gi}}", "the memory limit 2.14748e+09 is below", ""),
    ("on_stall: ignore", "`on_stall` cannot be `ignore`", "known here: restart, fail"),
    ("after: train", "stage `train` depends on itself", ""),
    ("env: {LONGBOAT_RANK: 1}", "`LONGBOAT_RANK`: variables that start with LONGBOAT_ are reserved", ""),
    ("env: {A-B: 1}", "the variable `A-B` must be letters, digits and _", ""),
    ("env: [A]", "`env` must be a mapping, not a list", ""),
    ("python: nowhere/.venv", "no Python found at ", "set it to the path of an interpreter"),
    ("python: job.yaml", "no Python found at ", "set it to the path of an interpreter"),
    ('env: {A: "x\\0y"}', "`A` contains a NUL character", ""),
]


@pytest.mark.parametrize(("lines", "message", "hint"), BAD, ids=[lines for lines, _, _ in BAD])
def test_a_wrong_value_says_what_is_allowed(tmp_path: Path, lines: str, message: str, hint: str) -> None:
    body = "".join(f"    {line}\n" for line in lines.split("\n"))
    found = problems(tmp_path, f"name: job\nstages:\n  train:\n    run: x\n{body}")
    assert len(found) == 1, found
    assert found[0].message.startswith(message)
    assert found[0].hint.startswith(hint)


def test_a_stage_named_twice_in_after_is_told(tmp_path: Path) -> None:
    text = "name: job\nstages:\n  a: {run: x}\n  b: {run: x, after: [a, a]}\n"
    assert problem(tmp_path, text).message == "`a` is listed twice in `after`"


def test_a_key_of_another_system_gets_ours(tmp_path: Path) -> None:
    for key, ours in {
        "comand": "run",
        "command": "run",
        "needs": "after",
        "replicas": "ranks",
        "nodeSelector": "node_selector",
    }.items():
        found = problems(tmp_path, f"name: job\nstages:\n  train:\n    {key}: x\n    python: {sys.prefix}\n")
        unknown = next(p for p in found if p.message == f"unknown key `{key}`")
        assert (unknown.line, unknown.column, unknown.length) == (4, 5, len(key))
        assert unknown.hint == f"did you mean `{ours}`?"


def test_a_misspelt_run_is_one_problem_not_two(tmp_path: Path) -> None:
    assert problem(tmp_path, "name: job\nstages:\n  train: {comand: x}\n").hint == "did you mean `run`?"


def test_python_is_the_directory_of_an_interpreter_or_environment(tmp_path: Path) -> None:
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "python").touch(mode=0o755)
    for given in ("env", "env/bin", "env/bin/python"):
        assert stage(tmp_path, f"run: x\npython: {given}").python == str(tmp_path / "env" / "bin")
    text = "name: job\nrun: x\npython: /opt/conda/bin/python3.12\n"
    assert planned(tmp_path, text, engine="kubernetes").stages[0].python == "/opt/conda/bin"


def test_the_whole_example_is_planned(tmp_path: Path) -> None:
    found = planned(tmp_path, WIDE_DEEP)
    assert [s.name for s in found.stages] == ["train", "good-enough", "serve", "load-test"]
    assert [s.after for s in found.stages] == [(), ("train",), ("good-enough", "train"), ("serve",)]
    train, gate, serve, bench = found.stages
    assert (train.timeout, train.stall_after, train.restarts, train.grace) == (5400, 300, 5, 10)
    assert json.loads(train.tolerations) == [{"key": "gpu", "operator": "Exists"}]
    assert json.loads(train.pod) == {"spec": {"priorityClassName": "high"}}
    assert train.node_selector == (("disk", "ssd"),)
    assert gate.gate == plan.Gate("train", "accuracy", 0.75, None, 10)
    assert serve.serve == plan.Serve("train", 3, 8501, 8500, "NodePort", name="wide-deep")
    assert serve.roles[0].command[2] == (
        'exec python -m longboat serve "$LONGBOAT_INPUT_TRAIN" '
        "--name wide-deep --port 8501 --grpc-port 8500 --workers 3"
    )
    assert bench.roles[0].command[2] == (
        "exec python -m longboat bench grpc://127.0.0.1:8500/wide-deep -b 32 -n 40 -w 10 -c 1 "
        '-d "eval.csv" --html "$LONGBOAT_OUTPUT_DIR/report.html"'
    )
    assert bench.bench == plan.Bench("eval.csv", 32, 40, 10, 1, "grpc")
    assert plan.from_json(plan.to_json(found)) == found


def other_stage(lines: str) -> str:
    return f"name: job\nstages:\n  train: {{run: x}}\n  serve: {{serve: {{model: train}}}}\n  other: {lines}\n"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("{gate: {metric: a}}", "`of` is missing in `gate`"),
        ("{gate: {of: train}}", "`metric` is missing in `gate`"),
        ("{gate: {of: tran, metric: a}}", "unknown stage `tran`"),
        ("{gate: {of: serve, metric: a}}", "stage `serve` is a `serve` stage and trains no model"),
        ("{gate: {of: train, metric: a, at_least: 2, at_most: 1}}", "`at_least: 2` is greater than `at_most: 1`"),
        ("{gate: {of: train, metric: a, at_least: high}}", "`at_least` must be a number"),
        ("{gate: {of: train, metric: a}, ranks: 2}", "`ranks` cannot be used with `gate`"),
        ("{gate: {of: train, metric: a}, run: x}", "`gate` cannot be used with `run`"),
        ("{serve: {model: train, port: 8500}}", "`port` and `grpc_port` are both 8500"),
        ("{serve: {model: train, port: 99999}}", "`port` must be a whole number from 1 to 65535"),
        (
            "{serve: {model: train, replicas: 3, autoscale: {max: 2}}, resources: {cpu: 1}}",
            "`max: 2` is less than `replicas: 3`",
        ),
        ("{serve: {model: train, autoscale: {max: 2}}}", "`autoscale` needs a CPU request"),
        ("{serve: {model: train, token: KEY}}", "unknown secret `KEY`"),
        ("{serve: {model: train, expose: nodeport}}", "`expose` cannot be `nodeport`"),
        ("{bench: {data: x}}", "load test `other` does not come after a `serve` stage"),
        ("{after: serve, bench: {data: x, iterations: 10}}", "all 10 iterations are warm-up (10)"),
        ("{after: serve}", "`other` needs `run`, `gate`, `serve` or `bench`"),
        ("5", "`other` must be a mapping, not 5"),
        ("", "`other` must be a mapping, not nothing"),
    ],
)
def test_gates_servers_and_load_tests_are_checked(tmp_path: Path, lines: str, message: str) -> None:
    assert problem(tmp_path, other_stage(lines)).message.startswith(message)


@pytest.mark.parametrize("empty", ["", "''"])
def test_a_gate_without_a_target_checks_nothing(tmp_path: Path, empty: str) -> None:
    stages = "stages:\n  a: {run: x}\n  b: {gate: {of: a, metric: m, at_least: '${T}'}}\n"
    text = f"name: job\nparams: {{T: {empty}}}\n{stages}"
    assert planned(tmp_path, text).stage("b").gate == plan.Gate("a", "m")


def test_a_cycle_of_stages_is_named_as_a_path(tmp_path: Path) -> None:
    text = """\
    name: job
    stages:
      a: {run: x, after: c}
      b: {run: x, after: [a]}
      c: {run: x, after: b}
      d: {run: x, after: c}
    """
    found = problem(tmp_path, text)
    assert (found.line, found.message) == (3, "stages depend on each other: a → c → b → a")


def test_a_stage_that_is_not_there_gets_the_nearest(tmp_path: Path) -> None:
    found = problem(tmp_path, "name: job\nstages:\n  train: {run: x}\n  test: {run: x, after: trian}\n")
    assert (found.message, found.hint) == ("unknown stage `trian`", "did you mean `train`?")


def test_stages_keep_the_order_in_which_they_are_written_where_they_may() -> None:
    after = {"d": ["c"], "b": [], "a": ["b"], "c": []}
    assert ordered(after) == (["b", "a", "c", "d"], [])


def test_a_job_of_a_thousand_ranks_is_as_small_as_one_of_two(tmp_path: Path) -> None:
    small = plan.to_json(planned(tmp_path, SHORT + "ranks: 2\n"))
    large = plan.to_json(planned(tmp_path, SHORT + "ranks: 1000\n"))
    assert len(large) == len(small) + 3


def test_a_version_that_is_not_ours_is_all_that_is_said(tmp_path: Path) -> None:
    found = problem(tmp_path, "longboat: 2\nnaem: x\n")
    assert found.message == "job file version 2 is not supported; this Longboat reads version 1"
    assert problem(tmp_path, SHORT + "longboat: one\n").message.startswith("`longboat` must be a whole number")


def test_names_must_be_fit_for_a_cluster(tmp_path: Path) -> None:
    for name in ("Big", "a_b", "-a", "a-", "a" * 41, "a.b"):
        assert problem(tmp_path, f"name: {name}\nrun: x\n").message.startswith("`name` must be 1 to 40 characters")
        assert problem(tmp_path, f"name: a\nstages:\n  {name}: {{run: x}}\n").message.startswith(f"the stage `{name}`")
    assert load(tmp_path, f"name: {'a' * 40}\nrun: x\n").name == "a" * 40
    assert problem(tmp_path, "run: x\n").message == "`name` is missing"
