"""Whether a Python has what a job requires, also where it has no pip to say so."""

from __future__ import annotations

import subprocess
import sys

import pytest

from longboat.runtime.pod import pip_requirements

WITHOUT_PIP = "import sys; sys.modules['packaging'] = sys.modules['pip'] = None\n"
CASES = [
    (True, "PyYAML"),
    (True, "pyyaml>=6.0.0"),
    (True, "PyYAML >= 5, < 99"),
    (False, "PyYAML>=99"),
    (False, "PyYAML<6"),
    (False, "PyYAML>1,!=1.0,<2"),
    (False, "no-such-distribution"),
    (False, "PyYAML[extra]"),
]


@pytest.mark.parametrize(("there", "requirement"), CASES)
def test_a_requirement_is_met_or_not(there: bool, requirement: str) -> None:
    assert pip_requirements.has([requirement, "--no-index"], {}) is there


@pytest.mark.parametrize(("there", "requirement"), CASES)
def test_it_is_known_without_pip(there: bool, requirement: str) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_PIP + pip_requirements._HAS, requirement], check=False)
    assert (done.returncode == 0) is there
