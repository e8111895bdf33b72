"""Shapes: how the processes of a stage work together, one row for each shape.

This table has everything that differs between shapes and matters to more than one package: which roles there are, which
must finish, which restart alone. Code elsewhere reads the table and never compares names of shapes.
"""

from __future__ import annotations

from typing import Dict, Mapping, Tuple

from longboat.runtime.light_dataclasses import dataclass


@dataclass(frozen=True)
class RoleRule:
    """A shape's rules for one of its roles."""

    name: str
    least: int = 0
    most: int = 0
    """0: no upper limit except the job file's."""
    default: int = 0
    finishes: bool = True
    """The stage succeeds when every rank of such roles has exited 0 in one generation."""
    alone: bool = False
    """A lost rank of this role restarts alone; its peers keep training."""


@dataclass(frozen=True)
class Shape:
    """A way of training together: its roles, and who starts whom."""

    name: str
    help: str
    roles: Tuple[RoleRule, ...]
    launcher: str = ""
    """The role that starts the others (mpirun); they have no agents of their own."""
    own_checkpoints: bool = False
    """Each rank resumes from its own checkpoint; otherwise they share one."""

    def rule(self, role: str) -> RoleRule:
        for rule in self.roles:
            if rule.name == role:
                return rule
        raise KeyError(role)


SHAPES: Mapping[str, Shape] = {
    shape.name: shape
    for shape in (
        Shape("single", "one process", (RoleRule("worker", least=1, most=1, default=1),)),
        Shape(
            "allreduce",
            "N equal workers that train in step; one lost rank restarts them all",
            (RoleRule("worker", least=1, default=2),),
        ),
        Shape(
            "ps",
            "parameter servers and workers; with a chief, the chief's end is the stage's end",
            (
                RoleRule("chief", most=1),
                RoleRule("worker", least=1, default=2, alone=True),
                RoleRule("ps", least=1, default=1, finishes=False),
                RoleRule("evaluator", most=1, finishes=False, alone=True),
            ),
        ),
        Shape(
            "mpi",
            "mpirun starts N workers",
            (
                RoleRule("launcher", least=1, most=1, default=1),
                RoleRule("worker", least=1, default=2, finishes=False),
            ),
            launcher="launcher",
        ),
        Shape(
            "average",
            "N independent trainers, then a merge; one lost trainer restarts alone",
            (RoleRule("worker", least=1, default=2, alone=True),),
            own_checkpoints=True,
        ),
    )
}

MERGE_ROLE = "merge"
"""The one process that runs an `average` stage's `merge:` command after its trainers."""


def finishing_roles(shape: str, ranks: Mapping[str, int]) -> Dict[str, bool]:
    """Role -> whether its ranks must exit 0 for the stage to succeed. If there is a chief, only the chief counts."""
    with_chief = ranks.get("chief", 0) > 0
    finishing = {}
    for rule in SHAPES[shape].roles:
        if ranks.get(rule.name, 0):
            finishing[rule.name] = rule.name == "chief" if with_chief else rule.finishes
    return finishing
