"""Progress, from a rank's call or printed line to `windlass status`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.local.place import Place


def rank(windlass: Place, number: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = windlass.status()["stages"][0]["ranks"][number]
    return found


def test_reports_reach_the_journal_in_order_and_the_newest_reaches_status(windlass: Place) -> None:
    script = """
        import windlass
        for step in range(1, 2001):
            windlass.report(step=step, total=2000, loss=1 / step)
    """
    said = windlass.run("run: python work.py\n", work=script)
    assert said.code == 0, said.err
    points = [point for event in windlass.events("rank.report") for point in event["points"]]
    assert [point["step"] for point in points] == list(range(1, 2001))
    assert (rank(windlass)["step"], rank(windlass)["total"], rank(windlass)["metrics"]["loss"]) == (2000, 2000, 0.0005)
    assert "step 2000/2000 100%" in said.err


def test_a_printed_line_counts_as_a_report_and_stays_in_the_log(windlass: Place) -> None:
    said = windlass.run("run: \"echo 'windlass: step=7 total=9 loss=0.25'; echo 'so windlass: step=8'\"\n")
    assert said.code == 0
    assert (rank(windlass)["step"], rank(windlass)["total"], rank(windlass)["metrics"]) == (7, 9, {"loss": 0.25})
    assert windlass.log() == "windlass: step=7 total=9 loss=0.25\nso windlass: step=8\n"


def test_nan_and_infinity_are_told_and_leave_the_journal_valid_json(windlass: Place) -> None:
    script = """
        import math, windlass
        windlass.report(step=1, loss=math.nan, norm=math.inf, low=-math.inf)
    """
    assert windlass.run("run: python work.py\n", work=script).code == 0
    assert "NaN" not in (windlass.dir / "events.jsonl").read_text()
    assert "Infinity" not in (windlass.dir / "events.jsonl").read_text()
    point = windlass.events("rank.report")[0]["points"][0]
    assert (point["loss"], point["norm"], point["low"]) == ("nan", "inf", "-inf")
    assert "loss=nan" in windlass("status", windlass.id).out


def test_a_metric_that_is_no_number_fails_in_the_script_with_its_name(windlass: Place) -> None:
    said = windlass.run("run: python work.py\nrestarts: 0\n", work="import windlass\nwindlass.report(loss='low')\n")
    assert said.code == 1
    assert windlass.cause["error"] == "TypeError: windlass.report: loss='low' is not a number"


def test_reporting_works_in_an_interpreter_that_has_no_windlass_installed(windlass: Place) -> None:
    bare = Path(sys.executable).resolve()
    script = """
        import sys, windlass
        assert not any("site-packages" in path and "windlass" in path for path in sys.path)
        windlass.report(step=5)
        print(sys.prefix == sys.base_prefix, windlass.stopping(), flush=True)
    """
    said = windlass.run(f"run: [{bare}, -I, -c, 'import windlass']\npython: {bare}\nrestarts: 0\n")
    assert said.code == 1, "without our variables that interpreter must not know windlass, or this test shows nothing"
    said = windlass.run(f"run: {bare} work.py\npython: {bare}\n", work=script)
    assert said.code == 0, windlass.log()
    assert windlass.log() == "True False\n"
    assert rank(windlass)["step"] == 5


def test_a_forked_helper_and_a_thread_of_a_rank_may_report_too(windlass: Place) -> None:
    script = """
        import os, threading, windlass
        windlass.report(step=1)
        if os.fork() == 0:
            windlass.report(step=2)
            os._exit(0)
        os.wait()
        other = threading.Thread(target=windlass.report, kwargs={"step": 3})
        other.start()
        other.join()
        windlass.stopping()
    """
    assert windlass.run("run: python work.py\n", work=script).code == 0
    points = [point for event in windlass.events("rank.report") for point in event["points"]]
    assert [point["step"] for point in points] == [1, 2, 3]


def test_the_users_own_sitecustomize_still_runs(windlass: Place) -> None:
    (windlass.code / "own").mkdir()
    windlass.file("own/sitecustomize.py", "print('custom', flush=True)\n")
    said = windlass.run("run: python -c 'import windlass'\nenv: {PYTHONPATH: own}\n")
    assert said.code == 0, windlass.log()
    assert windlass.log() == "custom\n"


def test_lines_that_look_like_progress_and_are_none_do_no_harm(windlass: Place) -> None:
    script = """
        import os, time
        lines = ("step=nan", "step=inf loss=1", "step=1e999", "step=1__0_ loss=2__0", "step=-5")
        for line in (*lines, "loss=" + "9" * 4000):
            print("windlass: " + line, flush=True)
        with open(os.environ["WINDLASS_REPORT_FILE"], "a") as file:
            file.write('{"step": "abc", "loss": NaN}\\n{"step": 1e400}\\n{"checkpoint": {}}\\nrubbish\\n')
        print("windlass: step=7", flush=True)
    """
    said = windlass.run("run: [python, work.py]\n", work=script)
    assert said.code == 0, said.err
    assert [e["gen"] for e in windlass.events("gen.started")] == [1]
    assert rank(windlass)["step"] == 7
    assert not {"NaN", "Infinity"} & set((windlass.dir / "events.jsonl").read_text().replace('"', " ").split())
