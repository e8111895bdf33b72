"""A running stage, and the rules of its gang."""

from __future__ import annotations

import math
from typing import Dict, List, Set, Tuple

from longboat.runtime.gang import gang_events as g
from longboat.runtime.gang.machine import Gang
from longboat.runtime.light_dataclasses import dataclass, field
from longboat.runtime.plan import Stage
from longboat.runtime.seat import Seat
from longboat.runtime.shapes import MERGE_ROLE, SHAPES

LEASE, LEASE_PER_SEAT = 15.0, 0.05
"""Seconds of silence after which an agent is fenced. Many agents on one machine are slow, not dead."""


@dataclass
class StageRun:
    """A running stage: the gang of its trainers or of its merge."""

    stage: Stage
    attempt: int
    gang: Gang
    round: int = 1
    merging: bool = False
    observed: Set[int] = field(default_factory=set)
    """MPI workers known to be running."""
    ready: Set[int] = field(default_factory=set)
    """Servers that respond."""
    first_failure: str = ""
    halted: bool = False
    swept: int = 0
    """Incomplete checkpoints of generations before this one are removed."""
    stacks: Dict[str, Tuple[List[str], str]] = field(default_factory=dict)
    """What hung ranks were doing: process states, and Python stacks."""


def rules_of(stage: Stage, merging: bool, pods: bool) -> g.GangRules:
    """The gang's rules from the plan. pods: agents may wait for resources, and ranks that a launcher starts have
    agents too."""
    shape = SHAPES[stage.shape]
    seats = {
        Seat(stage.name, role.name, rank): (role.finishes or bool(shape.launcher), role.alone)
        for role in stage.roles
        if not shape.launcher or role.name == shape.launcher or pods
        for rank in range(role.ranks)
    }
    if merging:
        seats = {Seat(stage.name, MERGE_ROLE, 0): (True, False)}
    return g.GangRules(
        seats,
        restarts=stage.restarts,
        timeout=stage.timeout,
        stall_after=0.0 if merging else stage.stall_after,
        restart_on_stall=stage.on_stall == "restart",
        grace=stage.grace,
        lease=LEASE + LEASE_PER_SEAT * len(seats),
        form_timeout=math.inf if pods else 300.0,
    )
