"""Causes that the gang determines itself; all others arrive with events."""

from __future__ import annotations

from typing import List

from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.gang.gang_events import GangRules
from longboat.runtime.seat import Seat


def replaced(seat: Seat) -> Cause:
    return Cause(CauseKind.AGENT_LOST, "another agent took over its seat").at(seat)


def moved(seat: Seat) -> Cause:
    text = "the rank came back with a different address, which its peers do not know"
    return Cause(CauseKind.AGENT_LOST, text).at(seat)


def preempted(seat: Seat, generation: int) -> Cause:
    text = "its machine was preempted"
    return Cause(CauseKind.PREEMPTED, text, generation=generation).at(seat)


def driver_lost_ending_rank() -> Cause:
    return Cause(CauseKind.DRIVER_LOST, "the driver stopped unexpectedly while it was stopping this rank")


def driver_lost_between() -> Cause:
    text = "the driver stopped unexpectedly while it was starting or stopping the gang"
    return Cause(CauseKind.DRIVER_LOST, text)


def not_back(seats: List[Seat]) -> Cause:
    return Cause(CauseKind.NODE_LOST, f"{_names(seats)} did not reconnect after the driver restarted")


def never_formed(rules: GangRules, missing: List[Seat]) -> Cause:
    text = f"the gang did not form within {rules.form_timeout:g} s: waiting for {_names(missing)}"
    return Cause(CauseKind.LOST_RENDEZVOUS, text)


def timed_out(rules: GangRules, generation: int) -> Cause:
    text = f"the stage ran longer than its timeout of {rules.timeout:g} s"
    return Cause(CauseKind.TIMED_OUT, text, generation=generation)


def gang_stalled(rules: GangRules, generation: int) -> Cause:
    return Cause(CauseKind.STALLED, _no_progress(rules), generation=generation)


def rank_stalled(rules: GangRules, seat: Seat) -> Cause:
    return Cause(CauseKind.STALLED, _no_progress(rules)).at(seat)


def _no_progress(rules: GangRules) -> str:
    return f"no progress was reported for {rules.stall_after:g} s"


def _names(seats: List[Seat], most: int = 8) -> str:
    names = [seat.rank_name for seat in seats]
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
