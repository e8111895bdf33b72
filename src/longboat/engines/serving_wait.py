"""Waiting until a run serves, for `longboat url`: the same rules on every engine."""

from __future__ import annotations

import time
from collections.abc import Callable

from longboat.engines.interface import EndpointRequest, RunHandle
from longboat.runs import explanation, formatting
from longboat.runs.run_state import RunState, StageState
from longboat.runtime.errors import LongboatError


def await_serving(
    run: RunHandle, request: EndpointRequest, interval: float, stands: Callable[[], bool] | None = None
) -> StageState | None:
    """The stage once it serves. Raises when it never will, or when that takes longer than the request waits.
    `stands`: whether servers of a run that has ended are still there; None is returned for those."""
    due = time.monotonic() + (request.wait or 0.0)
    while (stage := serving_stage(state := run.state(), request.stage)) is None:
        if state.over and stands is not None and stands():
            return None
        _check(state, request, due)
        time.sleep(interval)
    return stage


def serving_stage(state: RunState, name: str) -> StageState | None:
    stages = [stage for stage in state.stages if stage.state == "serving" and stage.serving]
    return next((stage for stage in stages if not name or stage.name == name), None)


def _check(state: RunState, request: EndpointRequest, due: float) -> None:
    if state.over:
        raise LongboatError(
            f"{state.id} does not serve: {explanation.state_text(state.state)}", f"longboat why {state.id}"
        )
    if not any(stage.kind == "serve" for stage in state.stages):
        raise LongboatError(f"{state.id} has no `serve:` stage", f"longboat status {state.id}")
    if request.wait is None:
        raise LongboatError(f"{state.id} does not serve yet: it is {state.state}", f"longboat url {state.id} --wait")
    if time.monotonic() > due:
        waited = formatting.span(request.wait)
        raise LongboatError(f"{state.id} does not serve after {waited}", f"longboat why {state.id}")
