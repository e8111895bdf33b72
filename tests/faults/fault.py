"""A fault to inject: the job that has it, who does it harm, and what `longboat why` must make of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from longboat.runtime.causes import CauseKind
from tests.local.place import Place

Injection = Callable[[Place, "Fault"], None]


def run(longboat: Place, fault: Fault) -> None:
    """The fault is in the job itself: it only has to be run."""
    longboat.run(fault.job, "--quiet", env=dict(fault.env), **fault.scripts)


@dataclass(frozen=True)
class Fault:
    name: str
    """What goes wrong, in words; the docs list it."""
    kind: CauseKind
    job: str
    where: str = "main/worker-0"
    """The seat that `why` must blame: `stage/role-rank`, a stage, or nothing."""
    says: tuple[str, ...] = ()
    """Words that must stand in what `why` prints."""
    not_says: tuple[str, ...] = ()
    because: tuple[str, ...] = ()
    """The ranks that fell as a consequence."""
    next: str = "longboat run --resume {id}"
    """A command that must be among the last lines."""
    state: str = "failed"
    work: str = ""
    """The text of work.py."""
    files: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    inject: Injection = run

    @property
    def scripts(self) -> dict[str, str]:
        return {"work": self.work} if self.work else {}
