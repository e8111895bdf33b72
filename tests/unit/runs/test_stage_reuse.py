"""What a run that goes on reuses, and what it runs again."""

from __future__ import annotations

import pytest

from longboat.runs.stage_reuse import decide
from longboat.runtime.errors import LongboatError
from longboat.runtime.plan import Plan, Stage

PLAN = Plan(
    "job",
    stages=(
        Stage("prepare"),
        Stage("train", after=("prepare",)),
        Stage("other", after=("prepare",)),
        Stage("gate", kind="gate", after=("train",)),
        Stage("serve", kind="serve", after=("gate",)),
        Stage("load", after=("serve",)),
    ),
)
PASSED = ("prepare", "train", "other", "gate", "load")


def does(*args: object, **more: object) -> dict[str, str]:
    return {fate.stage: fate.does for fate in decide(PLAN, *args, **more)}  # type: ignore[arg-type]


def test_what_passed_is_reused_and_servers_start_anew() -> None:
    assert does(PASSED, {}) == {**dict.fromkeys(PASSED, "reused"), "serve": "runs"}


def test_a_change_runs_its_stage_and_all_after_it_again() -> None:
    fates = {fate.stage: fate for fate in decide(PLAN, PASSED, {"train": ["train.py"]})}
    assert [name for name, fate in fates.items() if fate.does == "reused"] == ["prepare", "other"]
    assert fates["train"].why == "changed: train.py"
    assert fates["gate"].why == "comes after train"
    assert fates["load"].why == "comes after serve", "it is another model that is served"


def test_what_has_not_passed_runs() -> None:
    assert does(("prepare",), {})["train"] == "runs"
    assert does(("prepare",), {})["prepare"] == "reused"


def test_from_runs_a_stage_and_what_comes_after_and_trusts_the_rest() -> None:
    fates = {fate.stage: fate for fate in decide(PLAN, PASSED, {"prepare": ["prepare.py"]}, first="train")}
    assert fates["prepare"].does == "reused"
    assert fates["prepare"].why == "although changed: prepare.py"
    assert [name for name, fate in fates.items() if fate.does == "runs"] == ["train", "gate", "serve", "load"]


def test_only_runs_one_stage_and_the_server_it_needs() -> None:
    assert [name for name, what in does(PASSED, {}, only="load").items() if what == "runs"] == ["serve", "load"]
    assert does(("prepare",), {}, only="other") == {
        "prepare": "reused",
        "train": "left out",
        "other": "runs",
        "gate": "left out",
        "serve": "left out",
        "load": "left out",
    }


@pytest.mark.parametrize("option", ["first", "only"])
def test_a_stage_whose_inputs_are_missing_is_refused(option: str) -> None:
    with pytest.raises(LongboatError, match="it needs prepare, which has not passed"):
        does((), {}, **{option: "train"})


def test_a_name_that_is_nearly_right_is_suggested() -> None:
    with pytest.raises(LongboatError, match="--only trian") as caught:
        does((), {}, only="trian")
    assert caught.value.hint == "did you mean train?"
