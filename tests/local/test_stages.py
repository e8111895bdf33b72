"""Stages in their order, attempts at them, and gates."""

from __future__ import annotations

import json
from typing import Any

from tests.local.place import Place

REPORT = """
import os, sys, longboat
attempt = int(os.environ["LONGBOAT_ATTEMPT"])
longboat.report(step=attempt, accuracy=float(sys.argv[1]) * attempt)
"""

GATED = """
stages:
  train: {{run: python train.py {value}}}
  good-enough:
    gate: {{of: train, metric: accuracy, {target}}}
  after: {{run: echo deployed, after: good-enough}}
"""


def verdict(longboat: Place) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((longboat.dir / "verdict.json").read_text())
    return found


def test_stages_run_after_those_they_name_and_see_their_output(longboat: Place) -> None:
    said = longboat.run("""
        stages:
          last: {run: 'cat $LONGBOAT_INPUT_FIRST/a $LONGBOAT_INPUT_NEXT_ONE/b', after: next-one}
          next-one: {run: 'cp $LONGBOAT_INPUT_FIRST/a $LONGBOAT_OUTPUT_DIR/b', after: first}
          first: {run: 'echo one > $LONGBOAT_OUTPUT_DIR/a'}
        """)
    assert said.code == 0, said.err
    assert longboat.log(stage="last") == "one\none\n"
    order = [(e["ev"], e["stage"]) for e in longboat.events("stage.started", "stage.ended")]
    assert order == [(ev, s) for s in ("first", "next-one", "last") for ev in ("stage.started", "stage.ended")]


def test_stages_that_do_not_wait_for_each_other_run_side_by_side(longboat: Place) -> None:
    meet = """
        import os, sys, time
        here = os.environ["LONGBOAT_MOUNT_PLACE"]
        open(os.path.join(here, sys.argv[1]), "w").close()
        while not os.path.exists(os.path.join(here, sys.argv[2])):
            time.sleep(0.005)
    """
    said = longboat.run(
        """
        storage: {place: {emptyDir: {}}}
        stages:
          left: {run: python meet.py left right}
          right: {run: python meet.py right left}
        """,
        meet=meet,
    )
    assert said.code == 0, said.err


def test_a_stage_that_fails_for_good_stops_the_others_and_what_comes_after_never_begins(longboat: Place) -> None:
    longboat.file("wait.sh", "echo up; sleep 600\n")
    log = "$LONGBOAT_OUTPUT_DIR/../../logs/endless/worker-0.log"
    longboat.file("fail.sh", f"until grep -q up {log}; do sleep 0.01; done; exit 9\n")
    said = longboat.run("""
        stages:
          endless: {run: sh wait.sh}
          broken: {run: sh fail.sh, restarts: 0}
          later: {run: echo never, after: broken}
        """)
    assert said.code == 1, said.err
    ended = {e["stage"]: e["state"] for e in longboat.events("stage.ended")}
    assert ended == {"broken": "failed", "endless": "stopped"}
    assert (longboat.cause["stage"], longboat.cause["exit_code"]) == ("broken", 9)
    assert "later" not in {e.get("stage") for e in longboat.events()}
    assert longboat.ends()["endless/worker-0"] == "stopped"
    states = {stage["name"]: stage["state"] for stage in longboat.status()["stages"]}
    assert states == {"endless": "stopped", "broken": "failed", "later": "waiting"}


def test_retries_are_new_attempts_after_the_restarts_are_spent(longboat: Place) -> None:
    script = """
        import os, sys
        print(os.environ["LONGBOAT_ATTEMPT"], os.environ["LONGBOAT_GENERATION"], flush=True)
        sys.exit(0 if os.environ["LONGBOAT_ATTEMPT"] == "3" else int(os.environ["LONGBOAT_GENERATION"]))
    """
    said = longboat.run("run: python work.py\nrestarts: 1\nretries: 4\n", work=script)
    assert said.code == 0, said.err
    assert longboat.log() == "1 1\n1 2\n2 3\n2 4\n3 5\n"
    assert longboat.events("stage.ended")[0]["attempts"] == 3


def test_a_gate_that_is_met_lets_the_next_stage_begin(longboat: Place) -> None:
    said = longboat.run(GATED.format(value=0.9, target="at_least: 0.8"), train=REPORT)
    assert said.code == 0, said.err
    assert longboat.log(stage="after") == "deployed\n"
    assert verdict(longboat)["passed"] is True
    assert verdict(longboat)["tries"][0]["value"] == 0.9


def test_a_gate_that_is_missed_ends_the_run_with_code_3_and_the_figures(longboat: Place) -> None:
    said = longboat.run(GATED.format(value=0.5, target="at_least: 0.8"), train=REPORT)
    assert said.code == 3
    assert longboat.events("run.ended")[0]["state"] == "gate_missed"
    assert longboat.cause["message"] == "accuracy is 0.5 at the first try and must be at least 0.8"
    assert verdict(longboat)["passed"] is False
    assert longboat.log(stage="after") == ""
    assert "missed its gate" in said.err
    assert longboat("wait", longboat.id).code == 3


def test_a_gate_without_a_target_checks_nothing(longboat: Place) -> None:
    said = longboat.run(GATED.format(value=0.1, target="retries: 2"), train=REPORT)
    assert said.code == 0, said.err
    assert verdict(longboat)["passed"] is None
    assert [e["attempt"] for e in longboat.events("stage.started") if e["stage"] == "train"] == [1]


def test_a_metric_that_was_never_reported_misses_the_gate_and_is_not_retried(longboat: Place) -> None:
    said = longboat.run("""
        stages:
          train: {run: 'true'}
          good-enough: {gate: {of: train, metric: accuracy, at_least: 0.5, retries: 5}}
        """)
    assert said.code == 3
    assert "stage train never reported accuracy, which must be at least 0.5" in said.err
    assert [e["attempt"] for e in longboat.events("stage.started")] == [1]


def test_a_missed_gate_sends_its_stage_through_more_attempts_until_it_is_met(longboat: Place) -> None:
    said = longboat.run(GATED.format(value=0.2, target="at_least: 0.55, retries: 5"), train=REPORT)
    assert said.code == 0, said.err
    assert [e["attempt"] for e in longboat.events("stage.started") if e["stage"] == "train"] == [1, 2, 3]
    tries = verdict(longboat)["tries"]
    assert [each["passed"] for each in tries] == [False, False, True]
    assert round(tries[-1]["value"], 3) == 0.6
    assert longboat.log(stage="after") == "deployed\n"


def test_attempts_that_follow_each_other_at_once_keep_their_agents_and_cost_no_restart(longboat: Place) -> None:
    said = longboat.run("""
        stages:
          train: {shape: allreduce, ranks: 2, restarts: 0, run: 'echo "longboat: step=1 accuracy=0.$LONGBOAT_ATTEMPT"'}
          good-enough: {gate: {of: train, metric: accuracy, at_least: 0.75, retries: 8}}
        """)
    assert said.code == 0, said.err
    ended = longboat.events("rank.ended")
    assert [(e["gen"], e["state"]) for e in ended] == [(gen, "succeeded") for gen in range(1, 9) for _ in range(2)]


def test_a_gates_retries_come_to_an_end(longboat: Place) -> None:
    said = longboat.run(GATED.format(value=0.01, target="at_least: 0.5, retries: 2"), train=REPORT)
    assert said.code == 3
    assert "accuracy is 0.03 after 3 tries and must be at least 0.5" in said.err


def test_a_nan_is_not_good_enough(longboat: Place) -> None:
    said = longboat.run(GATED.format(value="nan", target="at_most: 5"), train=REPORT)
    assert said.code == 3
    assert verdict(longboat)["passed"] is False
