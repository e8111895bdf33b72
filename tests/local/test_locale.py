"""Job files are UTF-8, whatever the locale of the machine."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.local.place import Place

JOB = """
env: {WHO: "Jürgen → you", NAME: "Jürgen"}
run: [python, work.py, "grün → blau"]
restarts: 0
"""
WORK = """
import os, sys
sys.stdout.buffer.write(b"|".join([os.environb[b"WHO"], os.environb[b"NAME"], os.fsencode(sys.argv[1])]))
raise ValueError("\u2192 nein")
"""


@pytest.fixture(params=["ASCII", "ISO-8859-1"])
def locale(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Variables of a locale whose encoding is this."""
    plain = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    if request.param == "ASCII":
        return {**plain, "LC_ALL": "C"}
    made = tmp_path / "de_DE.ISO-8859-1"
    words = ["localedef", "-i", "de_DE", "-f", "ISO-8859-1", str(made)]
    if subprocess.run(["sh", "-c", '"$@"', "sh", *words], capture_output=True, check=False).returncode:
        pytest.skip("this locale cannot be made here")
    return {**plain, "LC_ALL": made.name, "LOCPATH": str(tmp_path)}


def test_a_job_runs_and_is_read_back_under_a_locale_without_its_characters(
    longboat: Place, locale: dict[str, str]
) -> None:
    (longboat.code / "job.yaml").write_text("name: demo\n" + JOB, encoding="utf-8")
    longboat.file("work.py", WORK)
    said = longboat("run", longboat.code / "job.yaml", env=locale)
    assert said.code == 1, said.err
    plan = json.loads((longboat.dir / "plan.json").read_text(encoding="utf-8"))
    assert plan["stages"][0]["roles"][0]["command"][-1] == "grün → blau"
    name = "Jürgen".encode("latin-1" if "LOCPATH" in locale else "utf-8")
    (log,) = [path.read_bytes() for path in (longboat.dir / "logs").rglob("*") if path.is_file()]
    assert log.startswith("Jürgen → you|".encode() + name + "|grün → blau".encode())
    assert longboat.cause["kind"] == "user_error"
    for command in ("status", "why", "logs"):
        told = longboat(command, longboat.id, env=locale)
        assert told.code == 0, told.err
        assert "bug" not in told.err
    assert longboat("run", "--resume", longboat.id, env=locale).code == 1
