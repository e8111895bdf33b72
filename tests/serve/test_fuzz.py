"""A small part of the fuzzing in every test run; `python -m tests.serve.fuzz` plays 100,000 cases a protocol."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.serve import fuzz
from tests.serve.serving import Serving


@pytest.mark.parametrize("protocol", fuzz.MAKERS)
def test_nothing_that_is_sent_makes_it_fail(server: Serving, protocol: str) -> None:
    told = asyncio.run(fuzz.fuzz(server, protocol, 1000, seed=20))
    assert told.total() == 1000
    assert len(told) > 1, "cases that all end alike test little"
    assert "Traceback" not in server.said.read_text()


@pytest.mark.parametrize("protocol", fuzz.MAKERS)
def test_a_case_is_made_from_its_number_alone(protocol: str) -> None:
    make = fuzz.MAKERS[protocol]
    assert make(random.Random("0 x 7")) == make(random.Random("0 x 7"))
    assert len({str(make(random.Random(f"0 x {number}"))) for number in range(50)}) > 40
