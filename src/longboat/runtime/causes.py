"""Why ranks, stages and runs end: the kinds of causes, and `Cause` with its evidence.

A cause follows from evidence, which it carries along. Status is derived from causes, never the other
way round. This module does not inspect the machine: agent, driver and readers of a run pass in what
they observed.
"""

from __future__ import annotations

import signal
from enum import Enum
from typing import Tuple

from longboat.runtime.light_dataclasses import dataclass, replace
from longboat.runtime.seat import Seat


class CauseKind(str, Enum):
    """Every kind of cause. The value is what the journal holds."""

    USER_ERROR = "user_error"
    NOT_FOUND = "command_not_found"
    NOT_EXECUTABLE = "command_not_executable"
    OUT_OF_MEMORY = "out_of_memory"
    KILLED = "killed_by_signal"
    PREEMPTED = "preempted"
    NODE_LOST = "node_lost"
    AGENT_LOST = "agent_lost"
    DRIVER_LOST = "driver_lost"
    STALLED = "stalled"
    TIMED_OUT = "timed_out"
    LOST_RENDEZVOUS = "lost_rendezvous"
    NO_NAME = "name_not_resolved"
    MPI_MISMATCH = "mpi_mismatch"
    DISK_FULL = "disk_full"
    NOT_WRITABLE = "not_writable"
    MISSING_INPUT = "missing_input"
    UNSCHEDULABLE = "unschedulable"
    IMAGE_PULL = "image_pull"
    NO_PYTHON = "image_without_python"
    VOLUME = "volume_not_mounted"
    QUOTA = "quota_exceeded"
    REFUSED = "refused_by_cluster"
    FORBIDDEN = "forbidden"
    GATE_NOT_MET = "gate_not_met"
    STOPPED = "stopped_by_user"
    INTERNAL = "internal_error"


HOPELESS = frozenset(
    {
        CauseKind.NOT_FOUND,
        CauseKind.NOT_EXECUTABLE,
        CauseKind.DISK_FULL,
        CauseKind.NOT_WRITABLE,
        CauseKind.MPI_MISMATCH,
        CauseKind.MISSING_INPUT,
        CauseKind.UNSCHEDULABLE,
        CauseKind.IMAGE_PULL,
        CauseKind.NO_PYTHON,
        CauseKind.VOLUME,
        CauseKind.QUOTA,
        CauseKind.REFUSED,
        CauseKind.FORBIDDEN,
    }
)
"""Causes that neither a restart nor a retry can fix."""


@dataclass(frozen=True)
class Cause:
    """Why a rank, a stage or a run ended as it did."""

    kind: CauseKind
    message: str
    """One sentence for users, without the evidence."""
    stage: str = ""
    role: str = ""
    rank: int = -1
    """-1: no single rank."""
    generation: int = 0
    exit_code: int = -1
    """-1: killed by a signal, or never ran."""
    signal: int = 0
    frame: str = ""
    """Innermost frame of the last Python traceback in the log: `file:line in function`."""
    error: str = ""
    """The traceback's last line, `ValueError: ...`."""
    lines: Tuple[str, ...] = ()
    """The last lines the rank printed."""
    evidence: Tuple[str, ...] = ()
    """Facts behind the kind: counters, limits, times."""

    @property
    def seat(self) -> Seat:
        return Seat(self.stage, self.role, self.rank)

    def at(self, seat: Seat) -> Cause:
        """This cause with the stage, role and rank of a seat."""
        return replace(self, stage=seat.stage, role=seat.role, rank=seat.rank)

    @property
    def where(self) -> str:
        """`stage/role-rank`, or as much of it as is known."""
        if self.rank < 0:
            return self.stage
        return self.seat.name if self.stage else self.seat.rank_name


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
