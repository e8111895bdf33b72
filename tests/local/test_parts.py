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
name = os.path.join(os.environ["WINDLASS_OUTPUT_DIR"], "count")
open(name, "a").write("x")
"""
BROKEN = "raise SystemExit('not yet')"


def begun(windlass: Place) -> list[str]:
    """The stages that the newest part of the run began."""
    names: list[str] = []
    for event in windlass.events("run.started", "stage.started"):
        names = [] if event["ev"] == "run.started" else [*names, event["stage"]]
    return names


def test_a_run_goes_on_at_the_stage_that_failed_once_its_code_is_mended(windlass: Place) -> None:
    assert windlass.run(JOB, first=COUNT, second=COUNT, third=BROKEN).code == 1
    windlass.file("third.py", COUNT)
    shown = windlass("plan", "--resume", "demo")
    assert "first   reused" in shown.out
    assert "third   runs: it has not passed yet" in shown.out
    assert windlass("run", "--resume", "demo").code == 0
    assert begun(windlass) == ["third"]


def test_changed_code_repeats_its_stage_and_what_comes_after_and_keeps_the_old_results(windlass: Place) -> None:
    assert windlass.run(JOB, first=COUNT, second=COUNT, third=COUNT).code == 0
    nothing = windlass("run", "--resume", "demo")
    assert (nothing.code, "nothing has changed" in nothing.err) == (2, True)
    windlass.file("second.py", COUNT + "\n# better")
    said = windlass("run", "--resume", "demo")
    assert (said.code, "second  runs: changed: second.py" in said.err) == (0, True), said.err
    assert begun(windlass) == ["second", "third"]
    assert (windlass.dir / "output/second/count").read_text() == "x"
    assert (windlass.dir / "superseded/second-1/output/count").read_text() == "x"
    assert windlass("run", "--resume", "demo").code == 2, "the new code is what the results were made with"


def test_another_value_of_a_param_repeats_what_uses_it(windlass: Place) -> None:
    job = "params: {N: 1}\n" + JOB.replace("python second.py", "'python second.py ${N}'")
    assert windlass.run(job, first=COUNT, second=COUNT, third=COUNT).code == 0
    said = windlass("run", "job.yaml", "--set", "N=2", "--resume", "demo")
    assert said.code == 0, said.err
    assert begun(windlass) == ["second", "third"]
    assert "second.py 2" in (windlass.dir / "plan.json").read_text()


def test_from_and_only_say_it_outright(windlass: Place) -> None:
    assert windlass.run(JOB, first=COUNT, second=COUNT, third=COUNT).code == 0
    assert windlass("run", "--resume", "demo", "--from", "second").code == 0
    assert begun(windlass) == ["second", "third"]
    assert windlass("run", "--resume", "demo", "--only", "second").code == 0
    assert begun(windlass) == ["second"]
    assert windlass("run", "--only", "first").code == 0
    refused = windlass("run", "--only", "third")
    assert refused.code == 2
    assert "second, first have not passed, and third comes after" in refused.err
    assert windlass("run", "--only", "a", "--from", "b").code == 2
