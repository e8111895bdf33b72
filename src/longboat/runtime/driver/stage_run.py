"""A stage that is under way, and the rules that its gang lives by."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Dict, List, Set, Tuple

from longboat.runtime.gang import gang_events as g
from longboat.runtime.gang.machine import Gang
from longboat.runtime.plan import Stage
from longboat.runtime.shapes import MERGE_ROLE, SHAPES

LEASE, LEASE_PER_SEAT = 15.0, 0.05
"""Seconds of silence after which an agent is fenced. A crowd on one machine is slow, not dead."""


@dataclass
class StageRun:
    """A stage that is under way: the gang of its trainers or of its merge."""

    stage: Stage
    attempt: int
    gang: Gang
    round: int = 1
    merging: bool = False
    observed: Set[int] = field(default_factory=set)
    """MPI workers that are known to run."""
    ready: Set[int] = field(default_factory=set)
    """Servers that answer."""
    first_fall: str = ""
    halted: bool = False
    swept: int = 0
    """The generation before which nothing half done is left on the disk."""
    stacks: Dict[str, Tuple[List[str], str]] = field(default_factory=dict)
    """What hung ranks were doing: the state of their processes, and Python's stacks."""


def rules_of(stage: Stage, merging: bool, pods: bool) -> g.GangRules:
    """pods: agents come when there is room for them, and the ranks that a launcher starts have agents too."""
    shape = SHAPES[stage.shape]
    seats = {
        (role.name, rank): (role.finishes or bool(shape.launcher), role.alone)
        for role in stage.roles
        if not shape.launcher or role.name == shape.launcher or pods
        for rank in range(role.ranks)
    }
    if merging:
        seats = {(MERGE_ROLE, 0): (True, False)}
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
