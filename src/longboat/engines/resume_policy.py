"""What a resumed run runs again: one policy for all engines.

A stage that passed is reused unless something it depends on changed, or what it was made from is unknown; so is every
stage after one that runs again. `--from` and `--only` override that (`runs.stage_reuse`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from longboat.engines.interface import Resumption, RunRequest
from longboat.runs import stage_reuse
from longboat.runtime.driver.history import look_back
from longboat.runtime.errors import LongboatError
from longboat.runtime.journal import Event
from longboat.runtime.plan import Plan

if TYPE_CHECKING:
    from longboat.spec.fingerprint import Fingerprint

UNKNOWN = ["what it was made from is not recorded"]


def decide(
    run: str,
    request: RunRequest,
    own_plan: Plan | None,
    events: Iterable[Event],
    recorded: Mapping[str, Fingerprint],
    current: Mapping[str, Fingerprint] | None,
) -> Resumption:
    """recorded: what stages were made from; current: what they would be made from now, None if that is the same."""
    if request.plan is not None and not run.startswith(request.plan.name + "-"):
        raise LongboatError(
            f"{run} is not a run of the job {request.plan.name}", f"its runs: longboat status {request.plan.name}"
        )
    plan = request.plan or own_plan
    if plan is None:
        raise LongboatError(f"cannot read the plan of {run}", "name the job file too")
    events = list(events)
    passed = tuple(look_back(events).passed)
    changes = {}
    if current is not None:
        known = [stage for stage in passed if stage in current]
        changes = {stage: recorded[stage].changed(current[stage]) if stage in recorded else UNKNOWN for stage in known}
    decisions = stage_reuse.decide(plan, passed, changes, request.choice.first, request.choice.only)
    return Resumption(plan, len(events), passed, decisions)


def check_something_runs(run: str, resumption: Resumption) -> None:
    """Raises if a resumed run would do nothing."""
    if resumption.passed and not stages(resumption, stage_reuse.RUNS):
        raise LongboatError(
            f"{run} has succeeded and nothing has changed since; there is nothing to resume",
            f"see longboat status {run}, or run a stage again: --resume {run} --from STAGE",
        )


def stages(resumption: Resumption, does: str) -> tuple[str, ...]:
    return tuple(decision.stage for decision in resumption.decisions if decision.does == does)


def run_again(resumption: Resumption) -> tuple[str, ...]:
    """Stages that had passed and run again."""
    return tuple(stage for stage in stages(resumption, stage_reuse.RUNS) if stage in resumption.passed)


def taken(run: str, where: str = "") -> LongboatError:
    return LongboatError(f"somebody else has just resumed {run}", f"watch it: longboat attach {run}{where}")
