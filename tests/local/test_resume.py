"""Runs that go on: what is reused, what a change repeats, and one stage alone."""

from __future__ import annotations

from tests.local.place import Place

JOB = """
stages:
  first: {run: python first.py}
  second: {run: python second.py, after: first}
  third: {run: python third.py, after: second}
"""
COUNT = """
import os
name = os.path.join(os.environ["LONGBOAT_OUTPUT_DIR"], "count")
open(name, "a").write("x")
"""
BROKEN = "raise SystemExit('not yet')"


def begun(longboat: Place) -> list[str]:
    """The stages that the newest part of the run began."""
    names: list[str] = []
    for event in longboat.events("run.started", "stage.started"):
        names = [] if event["ev"] == "run.started" else [*names, event["stage"]]
    return names


def test_a_run_goes_on_at_the_stage_that_failed_once_its_code_is_mended(longboat: Place) -> None:
    assert longboat.run(JOB, first=COUNT, second=COUNT, third=BROKEN).code == 1
    longboat.file("third.py", COUNT)
    shown = longboat("plan", "--resume", "demo")
    assert "first   reused" in shown.out
    assert "third   runs: it has not passed yet" in shown.out
    assert longboat("run", "--resume", "demo").code == 0
    assert begun(longboat) == ["third"]


def test_changed_code_repeats_its_stage_and_what_comes_after_and_keeps_the_old_results(longboat: Place) -> None:
    assert longboat.run(JOB, first=COUNT, second=COUNT, third=COUNT).code == 0
    nothing = longboat("run", "--resume", "demo")
    assert (nothing.code, "nothing has changed" in nothing.err) == (2, True)
    longboat.file("second.py", COUNT + "\n# better")
    said = longboat("run", "--resume", "demo")
    assert (said.code, "second  runs: changed: second.py" in said.err) == (0, True), said.err
    assert begun(longboat) == ["second", "third"]
    assert (longboat.dir / "output/second/count").read_text() == "x"
    assert (longboat.dir / "superseded/second-1/output/count").read_text() == "x"
    assert longboat("run", "--resume", "demo").code == 2, "the new code is what the results were made with"


def test_another_value_of_a_param_repeats_what_uses_it(longboat: Place) -> None:
    job = "params: {N: 1}\n" + JOB.replace("python second.py", "'python second.py ${N}'")
    assert longboat.run(job, first=COUNT, second=COUNT, third=COUNT).code == 0
    said = longboat("run", "job.yaml", "--set", "N=2", "--resume", "demo")
    assert said.code == 0, said.err
    assert begun(longboat) == ["second", "third"]
    assert "second.py 2" in (longboat.dir / "plan.json").read_text()


def test_from_and_only_say_it_outright(longboat: Place) -> None:
    assert longboat.run(JOB, first=COUNT, second=COUNT, third=COUNT).code == 0
    assert longboat("run", "--resume", "demo", "--from", "second").code == 0
    assert begun(longboat) == ["second", "third"]
    assert longboat("run", "--resume", "demo", "--only", "second").code == 0
    assert begun(longboat) == ["second"]
    assert longboat("run", "--only", "first").code == 0
    refused = longboat("run", "--only", "third")
    assert refused.code == 2
    assert "it needs second, first, which have not passed" in refused.err
    assert longboat("run", "--only", "a", "--from", "b").code == 2
