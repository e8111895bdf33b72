"""Params: values, who sets them, `${NAME}`, presets, required ones, env files."""

from __future__ import annotations

from pathlib import Path

import pytest

from longboat.runtime.plan import Param
from tests.unit.spec.jobs import WIDE_DEEP, load, planned, problem, problems, write

PARAMS = """\
name: job
params:
  STEPS: 100
  RATE: 0.5
  WHERE: /data
  FAST: true
  FREE:
  COPY: ${STEPS}
  MODEL: {value: "${WHERE}/model", help: where the model goes}
presets:
  demo: {STEPS: 10, WHERE: 5}
run: train --steps ${STEPS} --rate ${RATE} --to ${WHERE} --model ${MODEL} ${FREE}
"""


def param(directory: Path, name: str, **options: object) -> Param:
    job = load(directory, PARAMS, **options)  # type: ignore[arg-type]
    return next(p for p in job.params if p.name == name)


def command(directory: Path, **options: object) -> str:
    return load(directory, PARAMS, **options).plan().stages[0].roles[0].command[2]  # type: ignore[arg-type]


def test_the_file_gives_values_which_are_put_in_place(tmp_path: Path) -> None:
    assert command(tmp_path) == "train --steps 100 --rate 0.5 --to /data --model /data/model "


def test_each_setter_stands_above_the_one_below(tmp_path: Path) -> None:
    environ = {"LONGBOAT_PARAM_STEPS": "20", "LONGBOAT_PARAM_OTHER_JOB": "x"}
    assert param(tmp_path, "STEPS") == Param("STEPS", 100, set_by="file", count=2)
    assert param(tmp_path, "STEPS", preset="demo").set_by == "preset demo"
    assert param(tmp_path, "STEPS", preset="demo").value == 10
    found = param(tmp_path, "STEPS", preset="demo", environ=environ)
    assert (found.value, found.set_by) == (20, "environment")
    found = param(tmp_path, "STEPS", preset="demo", environ=environ, sets={"STEPS": "30"})
    assert (found.value, found.set_by) == (30, "--set")


def test_changing_one_param_moves_those_that_use_it(tmp_path: Path) -> None:
    assert param(tmp_path, "MODEL", sets={"WHERE": "/mnt"}).value == "/mnt/model"
    assert param(tmp_path, "COPY", sets={"STEPS": "7"}).value == 7


def test_a_text_stays_a_text_and_a_number_a_number(tmp_path: Path) -> None:
    assert param(tmp_path, "WHERE", sets={"WHERE": "5"}).value == "5"
    assert param(tmp_path, "WHERE", preset="demo").value == "5"
    assert param(tmp_path, "FREE", sets={"FREE": "5"}).value == 5
    found = param(tmp_path, "RATE", sets={"RATE": "1"}).value
    assert (found, type(found)) == (1.0, float)


@pytest.mark.parametrize(
    ("name", "text", "must"),
    [
        ("STEPS", "many", "a whole number (the file has 100), not the text"),
        ("STEPS", "0.5", "a whole number (the file has 100), not 0.5"),
        ("RATE", "fast", "a number (the file has 0.5)"),
        ("FAST", "1", "true or false"),
    ],
)
def test_a_value_of_the_wrong_type_names_the_option(tmp_path: Path, name: str, text: str, must: str) -> None:
    found = problem(tmp_path, PARAMS, sets={name: text})
    assert (found.file, found.line) == (f"--set {name}", 0)
    assert must in found.message
    assert problem(tmp_path, PARAMS, environ={f"LONGBOAT_PARAM_{name}": text}).file == f"LONGBOAT_PARAM_{name}"


def test_an_unknown_param_or_preset_gets_the_nearest(tmp_path: Path) -> None:
    assert problem(tmp_path, PARAMS, sets={"STEP": "1"}).hint == "did you mean `STEPS`?"
    assert problem(tmp_path, PARAMS, preset="dmo").hint == "did you mean `demo`?"
    found = problem(tmp_path, PARAMS.replace("{STEPS: 10", "{STEP: 10"))
    assert (found.line, found.message, found.hint) == (11, "unknown param `STEP`", "did you mean `STEPS`?")
    assert problem(tmp_path, PARAMS.replace("STEPS: 10, W", "STEPS: ten, W")).line == 11


def test_a_scalar_that_is_one_param_takes_its_type_and_others_are_text(tmp_path: Path) -> None:
    text = """\
    name: job
    params: {N: 3, TEXT: "3", NOTHING: }
    stages:
      a:
        run: "true"
        ranks: ${N}
        retries: 1${N}
        timeout: ${NOTHING}
      b: {run: ["x", "${N}", "${TEXT}"]}
    """
    plan = planned(tmp_path, text)
    assert (plan.stage("a").ranks, plan.stage("a").retries, plan.stage("a").timeout) == (3, 13, 0)
    assert plan.stage("b").roles[0].command == ("x", "3", "3")
    assert (
        "must be a whole number"
        in problem(tmp_path, 'name: job\nparams: {TEXT: "3"}\nrun: x\nranks: ${TEXT}\n').message
    )


def test_numbers_are_put_in_place_as_they_were_written(tmp_path: Path) -> None:
    plan = planned(tmp_path, "name: job\nparams: {LR: 1e-3, OK: true}\nrun: train ${LR} ${OK}\n")
    assert plan.stages[0].roles[0].command[2] == "train 1e-3 true"
    assert plan.params[0].value == 0.001


def test_what_the_shell_means_is_left_to_the_shell(tmp_path: Path) -> None:
    plan = planned(tmp_path, "name: job\nrun: echo $HOME $(date) $${HOME:-x} $$ $5 {x}\n")
    assert plan.stages[0].roles[0].command[2] == "echo $HOME $(date) ${HOME:-x} $$ $5 {x}"


def test_an_unknown_name_gets_the_nearest_and_the_way_to_the_shell(tmp_path: Path) -> None:
    found = problem(tmp_path, "name: job\nparams: {STEPS: 5}\nrun: train ${STEP}\n")
    assert found.message == "unknown param `STEP`"
    assert found.hint == "did you mean `STEPS`? write `$${STEP}` to pass `${STEP}` to the shell"
    found = problem(tmp_path, "name: job\nrun: |\n  cd x\n  train ${STEP} now\n")
    assert (found.line, found.column, found.length) == (4, 9, 7)
    assert "${X:-y}" in problem(tmp_path, "name: job\nrun: echo ${X:-y}\n").hint
    assert problem(tmp_path, 'name: job\nrun: "echo ${X"\n').message == "`${` has no `}`"


def test_a_param_that_refers_to_itself_is_a_problem(tmp_path: Path) -> None:
    found = problem(tmp_path, "name: job\nparams:\n  A: x${A}\nrun: echo ${A}\n")
    assert (found.line, found.message) == (3, "the param `A` refers to itself")


def test_params_that_refer_to_each_other_are_named_as_a_path(tmp_path: Path) -> None:
    found = problem(tmp_path, "name: job\nparams:\n  A: ${B}\n  B: ${C}\n  C: x${A}\nranks: ${A}\nrun: echo\n")
    assert found.message == "params refer to each other: A → B → C → A"


def test_a_value_from_outside_is_taken_as_it_is(tmp_path: Path) -> None:
    assert param(tmp_path, "WHERE", sets={"WHERE": "${STEPS}"}).value == "${STEPS}"


@pytest.mark.parametrize("value", ["", '""', "null", "0.0.0.0", "'  '"])
def test_a_required_param_without_a_value_can_be_looked_at_but_not_planned(tmp_path: Path, value: str) -> None:
    host = f"{{value: {value}, help: the server, required: true}}"
    text = f"name: job\nparams:\n  HOST: {host}\nrun: x ${{HOST}}\nranks: 2\n"
    assert load(tmp_path, text).params[0].name == "HOST"
    found = problem(tmp_path, text)
    assert (found.line, found.column) == (3, 3)
    assert "the required param `HOST`" in found.message
    assert found.hint.startswith("the server: set it")
    assert load(tmp_path, text, sets={"HOST": "me"}).plan().stages[0].roles[0].command[2] == "x me"


def test_an_unset_required_param_is_told_once_and_not_again_where_it_is_used(tmp_path: Path) -> None:
    text = "name: job\nparams: {N: {required: true}}\nrun: x\nranks: ${N}\nretries: ${N}\ncolour: red\n"
    assert [p.message for p in problems(tmp_path, text)] == [
        "the required param `N` has no value",
        "unknown key `colour`",
    ]


def test_uses_are_counted_in_the_file_and_an_alias_counts_once(tmp_path: Path) -> None:
    text = """\
    name: job
    params: {A: 1, B: "${A}", C: unused}
    presets: {p: {B: "x${A}"}}
    x-run: &run [echo, "${A}${A}"]
    stages:
      one: {run: *run}
      two: {run: *run, env: {X: "${A}"}}
    """
    assert [(p.name, p.count) for p in load(tmp_path, text).params] == [("A", 5), ("B", 0), ("C", 0)]
    assert load(tmp_path, text, sets={"B": "9"}).params[0].count == 5


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ("{A: [1]}", "`A` must be"),
        ("{A: {vale: 1}}", "unknown key `vale`"),
        ("{A: {value: {x: 1}}}", "`value` must be"),
        ("{A: {required: maybe}}", "`required` must be true or false"),
        ("{1A: 1}", "the param `1A` must be"),
        ("{A: .inf}", "`A` must be a finite number"),
        ("[A]", "`params` must be a mapping"),
    ],
)
def test_a_param_that_is_none_is_a_problem(tmp_path: Path, params: str, message: str) -> None:
    assert message in problem(tmp_path, f"name: job\nparams: {params}\nrun: x\n").message


def test_the_preset_of_the_whole_example_is_taken(tmp_path: Path) -> None:
    plan = load(tmp_path, WIDE_DEEP, preset="demo").plan()
    assert plan.preset == "demo"
    assert plan.stage("train").roles[0].command[2].endswith("--steps 200")
    gate = plan.stage("good-enough").gate
    assert gate is not None
    assert gate.at_least == 0


def env_of(directory: Path, files: dict[str, str], extra: str = "", more: tuple[str, ...] = ()) -> dict[str, str]:
    for name, text in files.items():
        write(directory, text, name)
    text = f"name: job\nparams: {{ROOT_OF_ALL: /p}}\nenv_files: [{', '.join(files)}]\nrun: x\n{extra}"
    paths = [str(directory / name) for name in more]
    return {v.name: v.value for v in load(directory, text, env_files=paths).plan().stages[0].env}


def test_an_env_file_reads_as_a_shell_would(tmp_path: Path) -> None:
    text = (
        "# comment\r\n\r\nROOT=/data\r\nexport MODEL_DIR=${ROOT}/model # here\r\n"
        'QUOTED="a \\"b\\" #c\\n${ROOT}" # d\r\nSINGLE=\'${ROOT} $X\'\r\n'
        "EMPTY=\r\nP=${ROOT_OF_ALL}/x\r\nLIT=$${ROOT} $HOME\r\n"
    )
    assert env_of(tmp_path, {"a.env": text}) == {
        "ROOT": "/data",
        "MODEL_DIR": "/data/model",
        "QUOTED": 'a "b" #c\n/data',
        "SINGLE": "${ROOT} $X",
        "EMPTY": "",
        "P": "/p/x",
        "LIT": "${ROOT} $HOME",
    }


def test_later_env_files_win_and_env_stands_above_them(tmp_path: Path) -> None:
    write(tmp_path, "C=3\nB=3\n", "c.env")
    found = env_of(tmp_path, {"a.env": "A=1\nB=1\nD=1\n", "b.env": "B=2\nD=2\n"}, "env: {D: 9}\n", ("c.env",))
    assert found == {"A": "1", "B": "3", "D": "9", "C": "3"}


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("A=1\nnonsense\n", 2, "not a KEY=VALUE line"),
        ("1A=1\n", 1, "not a KEY=VALUE line"),
        ("A='x\n", 1, "the value of `A` has an unclosed quote"),
        ('A="x" y\n', 1, "the value of `A` has an unclosed quote"),
        ("B=2\nA=${ROOT}\n", 2, "`${ROOT}` is not a variable defined above or a param"),
        ("LONGBOAT_RANK=1\n", 1, "`LONGBOAT_RANK`: variables that start with LONGBOAT_"),
    ],
)
def test_a_bad_line_of_an_env_file_is_told_with_its_place(tmp_path: Path, text: str, line: int, message: str) -> None:
    write(tmp_path, text, "a.env")
    found = problem(tmp_path, "name: job\nenv_files: a.env\nrun: x\n")
    assert (found.file, found.line) == ("a.env", line)
    assert found.message.startswith(message)


def test_an_env_file_that_is_not_there_is_told_where_it_is_named(tmp_path: Path) -> None:
    assert problem(tmp_path, "name: job\nenv_files: a.env\nrun: x\n").line == 2
    assert problem(tmp_path, "name: job\nrun: x\n", env_files=["/no/b.env"]).file == "--env-file /no/b.env"
