"""A seat: a place in a gang. The process in it may be replaced; the seat stays."""

from __future__ import annotations

from typing import NamedTuple


class Seat(NamedTuple):
    """Stage, role and rank."""

    stage: str
    role: str
    rank: int

    @property
    def name(self) -> str:
        """`train/worker-0`"""
        return f"{self.stage}/{self.rank_name}"

    @property
    def rank_name(self) -> str:
        """`worker-0`"""
        return f"{self.role}-{self.rank}"

    @classmethod
    def parse(cls, name: str) -> Seat:
        """The seat of a name; ValueError if it is not one."""
        stage, _, rest = name.rpartition("/")
        role, _, rank = rest.rpartition("-")
        return cls(stage, role, int(rank))
