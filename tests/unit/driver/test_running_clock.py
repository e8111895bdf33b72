"""The driver's clock stands still while the driver does not run."""

from __future__ import annotations

from longboat.runtime.driver.running_clock import PAUSE, RunningClock


def test_a_pause_does_not_count_and_a_short_wait_does() -> None:
    time = 100.0
    clock = RunningClock(lambda: time)
    assert clock() == 100.0
    time += PAUSE
    assert (clock(), clock.paused) == (100.0 + PAUSE, 0.0)
    time += 3600.0
    assert (clock(), clock.paused) == (100.0 + PAUSE, 3600.0)
    time += 1.0
    assert clock() == 101.0 + PAUSE
