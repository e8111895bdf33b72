"""Decides which stages a resumed run runs again and which it reuses. Pure.

A passed stage is reused while nothing that it depends on has changed. A stage after one that runs again also runs
again. `--from` and `--only` override this.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from longboat.runtime.errors import LongboatError
from longboat.runtime.light_dataclasses import dataclass
from longboat.runtime.plan import Plan, Stage

REUSED, RUNS, LEFT_OUT = "reused", "runs", "left out"
ANEW = "servers always start again"
"""Why a server runs although nothing has changed."""


@dataclass(frozen=True)
class StageChoice:
    """Which stages the user asked for."""

    first: str | None = None
    """--from: run this stage and all that come after it."""
    only: str | None = None
    keep: bool = False
    """Keep servers running when everything else is done."""


ALL_STAGES = StageChoice()


@dataclass(frozen=True)
class StageDecision:
    stage: str
    does: str
    """reused, runs or left out."""
    why: str = ""
    unchanged: bool = False
    """It runs although nothing has changed, so that stages after it can be reused."""


def decide(
    plan: Plan,
    passed: Collection[str],
    changes: Mapping[str, list[str]],
    first: str | None = None,
    only: str | None = None,
) -> tuple[StageDecision, ...]:
    """The decision for each stage. changes: stage -> descriptions of what has changed since it passed."""
    for option, name in (("--from", first), ("--only", only)):
        if name is not None:
            _known(plan, option, name)
    if only is not None:
        return _only(plan, passed, plan.stage(only))
    decisions: dict[str, StageDecision] = {}
    for stage in plan.stages:
        decisions[stage.name] = _decision(plan, stage, passed, changes.get(stage.name, []), first, decisions)
    return tuple(decisions.values())


def _decision(
    plan: Plan,
    stage: Stage,
    passed: Collection[str],
    changes: list[str],
    first: str | None,
    decisions: Mapping[str, StageDecision],
) -> StageDecision:
    again = [name for name in stage.after if decisions[name].does == RUNS and not decisions[name].unchanged]
    if stage.name == first:
        missing = [name for name in _needed(plan, stage) if name not in passed]
        if missing:
            raise _missing("--from", stage.name, missing)
        return StageDecision(stage.name, RUNS, "requested by --from")
    if stage.kind == "serve":
        return StageDecision(stage.name, RUNS, f"comes after {', '.join(again)}" if again else ANEW, not again)
    if stage.name not in passed:
        return StageDecision(stage.name, RUNS, "" if not passed else "it has not passed yet")
    if again:
        return StageDecision(stage.name, RUNS, f"comes after {', '.join(again)}")
    if changes and first is None:
        return StageDecision(stage.name, RUNS, f"changed: {'; '.join(changes)}")
    return StageDecision(stage.name, REUSED, f"although changed: {'; '.join(changes)}" if changes else "")


def _only(plan: Plan, passed: Collection[str], stage: Stage) -> tuple[StageDecision, ...]:
    needed = _needed(plan, stage)
    missing = [name for name in needed if name not in passed and plan.stage(name).kind != "serve"]
    if missing:
        raise _missing("--only", stage.name, missing)
    decisions = []
    for each in plan.stages:
        if each.name == stage.name:
            decisions.append(StageDecision(each.name, RUNS, "requested by --only"))
        elif each.name in needed and each.kind == "serve":
            decisions.append(StageDecision(each.name, RUNS, f"serves {stage.name}"))
        else:
            decisions.append(StageDecision(each.name, REUSED if each.name in passed else LEFT_OUT))
    return tuple(decisions)


def _needed(plan: Plan, stage: Stage) -> list[str]:
    """All stages before this one, direct or indirect."""
    needed: list[str] = []
    waiting = list(stage.after)
    while waiting:
        name = waiting.pop(0)
        if name not in needed:
            needed.append(name)
            waiting += plan.stage(name).after
    return [name for name in needed if plan.stage(name).kind != "gate"] if stage.kind == "gate" else needed


def _known(plan: Plan, option: str, name: str) -> None:
    names = [stage.name for stage in plan.stages]
    if name not in names:
        import difflib

        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"its stages: {', '.join(names)}"
        raise LongboatError(f"{option} {name}: unknown stage", hint)


def _missing(option: str, name: str, missing: list[str]) -> LongboatError:
    verb = "has" if len(missing) == 1 else "have"
    return LongboatError(
        f"{option} {name}: it needs {', '.join(missing)}, which {verb} not passed",
        f"resume a run in which {'it has' if len(missing) == 1 else 'they have'} passed: --resume RUN {option} {name}",
    )
