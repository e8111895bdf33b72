"""The plan as JSON, and back."""

from __future__ import annotations

import json

import pytest

from longboat.runtime import plan
from longboat.runtime.light_dataclasses import FrozenInstanceError
from longboat.runtime.plan import Gate, Mount, Param, Plan, Resources, Role, Secret, Security, Stage, Variable

FULL = Plan(
    "job",
    file="/jobs/job.yaml",
    params=(Param("STEPS", 5), Param("RATE", 0.5), Param("ON", True), Param("NONE", None), Param("TEXT", "5")),
    requirements=("numpy>=2",),
    secrets=(Secret("TOKEN", "env", "MY_TOKEN"),),
    storage=(Mount("data", "path", "/data", True, "/data"),),
    security=Security(1000, annotations=(("a", "b"),)),
    stages=(
        Stage(
            "train",
            shape="ps",
            roles=(
                Role("worker", 2, alone=True, command=("sh", "-c", "x"), resources=Resources(1.5, 2**30, 1)),
                Role("ps", 1, finishes=False, env=(Variable("A", "b"), Variable("T", secret="TOKEN"))),
            ),
            node_selector=(("disk", "ssd"),),
        ),
        Stage("gate", kind="gate", after=("train",), gate=Gate("train", "accuracy", at_least=0.5)),
    ),
    notes=("a note",),
)


def test_a_plan_survives_json() -> None:
    assert plan.from_json(plan.to_json(FULL)) == FULL
    assert plan.from_json(plan.to_json(FULL, indent=None)) == FULL


def test_every_part_of_a_plan_has_a_default_that_survives_json() -> None:
    assert plan.from_json(plan.to_json(Plan("x"))) == Plan("x")


def test_a_plan_of_a_newer_version_loses_only_what_this_one_does_not_know() -> None:
    data = json.loads(plan.to_json(FULL))
    data["new"] = {"a": 1}
    data["stages"][0]["new"] = 1
    data["stages"][0]["roles"][0]["resources"]["tpu"] = 8
    assert plan.from_json(json.dumps(data)) == FULL


def test_a_plan_of_an_older_version_gets_defaults() -> None:
    data = json.loads(plan.to_json(FULL))
    del data["stages"][0]["grace"]
    del data["security"]
    found = plan.from_json(json.dumps(data))
    assert found.stage("train").grace == 10.0
    assert found.security == Security()


def test_a_plan_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        FULL.name = "other"  # type: ignore[misc]
    assert isinstance(plan.from_json(plan.to_json(FULL)).stages[0].roles[0].command, tuple)


def test_stages_and_roles_are_found_by_name() -> None:
    assert FULL.stage("train").role("ps").ranks == 1
    assert FULL.stage("train").ranks == 3
    with pytest.raises(KeyError):
        FULL.stage("no")
    with pytest.raises(KeyError):
        FULL.stage("train").role("chief")


def test_a_plan_of_ten_thousand_ranks_is_as_small_as_one_of_two() -> None:
    def sized(ranks: int) -> int:
        return len(plan.to_json(Plan("x", stages=(Stage("s", shape="allreduce", roles=(Role("worker", ranks),)),))))

    assert sized(10_000) - sized(2) == 4
