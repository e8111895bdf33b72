"""Progress, from a rank's call or printed line to `longboat status`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.local.place import Place


def rank(longboat: Place, number: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = longboat.status()["stages"][0]["ranks"][number]
    return found


def test_reports_reach_the_journal_in_order_and_the_newest_reaches_status(longboat: Place) -> None:
    script = """
        import longboat
        for step in range(1, 2001):
            longboat.report(step=step, total=2000, loss=1 / step)
    """
    said = longboat.run("run: python work.py\n", work=script)
    assert said.code == 0, said.err
    points = [point for event in longboat.events("rank.report") for point in event["points"]]
    assert [point["step"] for point in points] == list(range(1, 2001))
    assert (rank(longboat)["step"], rank(longboat)["total"], rank(longboat)["metrics"]["loss"]) == (2000, 2000, 0.0005)
    assert "step 2000/2000 100%" in said.err


def test_a_printed_line_counts_as_a_report_and_stays_in_the_log(longboat: Place) -> None:
    said = longboat.run("run: \"echo 'longboat: step=7 total=9 loss=0.25'; echo 'so longboat: step=8'\"\n")
    assert said.code == 0
    assert (rank(longboat)["step"], rank(longboat)["total"], rank(longboat)["metrics"]) == (7, 9, {"loss": 0.25})
    assert longboat.log() == "longboat: step=7 total=9 loss=0.25\nso longboat: step=8\n"


def test_nan_and_infinity_are_told_and_leave_the_journal_valid_json(longboat: Place) -> None:
    script = """
        import math, longboat
        longboat.report(step=1, loss=math.nan, norm=math.inf, low=-math.inf)
    """
    assert longboat.run("run: python work.py\n", work=script).code == 0
    assert "NaN" not in (longboat.dir / "events.jsonl").read_text()
    assert "Infinity" not in (longboat.dir / "events.jsonl").read_text()
    point = longboat.events("rank.report")[0]["points"][0]
    assert (point["loss"], point["norm"], point["low"]) == ("nan", "inf", "-inf")
    assert "loss=nan" in longboat("status", longboat.id).out


def test_a_metric_that_is_no_number_fails_in_the_script_with_its_name(longboat: Place) -> None:
    said = longboat.run("run: python work.py\nrestarts: 0\n", work="import longboat\nlongboat.report(loss='low')\n")
    assert said.code == 1
    assert longboat.cause["error"] == "TypeError: longboat.report: loss='low' is not a number"


def test_reporting_works_in_an_interpreter_that_has_no_longboat_installed(longboat: Place) -> None:
    bare = Path(sys.executable).resolve()
    script = """
        import sys, longboat
        assert not any("site-packages" in path and "longboat" in path for path in sys.path)
        longboat.report(step=5)
        print(sys.prefix == sys.base_prefix, longboat.stopping(), flush=True)
    """
    said = longboat.run(f"run: [{bare}, -I, -c, 'import longboat']\npython: {bare}\nrestarts: 0\n")
    assert said.code == 1, "without our variables that interpreter must not know longboat, or this test shows nothing"
    said = longboat.run(f"run: {bare} work.py\npython: {bare}\n", work=script)
    assert said.code == 0, longboat.log()
    assert longboat.log() == "True False\n"
    assert rank(longboat)["step"] == 5


def test_a_forked_helper_and_a_thread_of_a_rank_may_report_too(longboat: Place) -> None:
    script = """
        import os, threading, longboat
        longboat.report(step=1)
        if os.fork() == 0:
            longboat.report(step=2)
            os._exit(0)
        os.wait()
        other = threading.Thread(target=longboat.report, kwargs={"step": 3})
        other.start()
        other.join()
        longboat.stopping()
    """
    assert longboat.run("run: python work.py\n", work=script).code == 0
    points = [point for event in longboat.events("rank.report") for point in event["points"]]
    assert [point["step"] for point in points] == [1, 2, 3]


def test_the_users_own_sitecustomize_still_runs(longboat: Place) -> None:
    (longboat.code / "own").mkdir()
    longboat.file("own/sitecustomize.py", "print('custom', flush=True)\n")
    said = longboat.run("run: python -c 'import longboat'\nenv: {PYTHONPATH: own}\n")
    assert said.code == 0, longboat.log()
    assert longboat.log() == "custom\n"


def test_lines_that_look_like_progress_and_are_none_do_no_harm(longboat: Place) -> None:
    script = """
        import os, time
        lines = ("step=nan", "step=inf loss=1", "step=1e999", "step=1__0_ loss=2__0", "step=-5")
        for line in (*lines, "loss=" + "9" * 4000):
            print("longboat: " + line, flush=True)
        with open(os.environ["LONGBOAT_REPORT_FILE"], "a") as file:
            file.write('{"step": "abc", "loss": NaN}\\n{"step": 1e400}\\n{"checkpoint": {}}\\nrubbish\\n')
        print("longboat: step=7", flush=True)
    """
    said = longboat.run("run: [python, work.py]\n", work=script)
    assert said.code == 0, said.err
    assert [e["gen"] for e in longboat.events("gen.started")] == [1]
    assert rank(longboat)["step"] == 7
    assert not {"NaN", "Infinity"} & set((longboat.dir / "events.jsonl").read_text().replace('"', " ").split())
