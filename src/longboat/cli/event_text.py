"""Events and progress as lines of text: one table from event names to texts.

Pure: the drawn and the plain display share it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from longboat.cli import run_summary
from longboat.runs import cause_texts, explanation, formatting
from longboat.runs.run_state import RunState, StageState, Verdict
from longboat.runtime.causes import Cause, signal_name
from longboat.runtime.journal import Event, cause_of


def tell(event: Event) -> str | None:
    """An event as `HH:MM:SS text`; None if it has no text or is malformed."""
    describe = _TEXTS.get(event["ev"])
    if describe is None:
        return None
    try:
        text = describe(event)
        return f"{formatting.clock(event['t'])} {text}" if text else None
    except (KeyError, TypeError, ValueError):
        return None


def _run_started(event: Event) -> str:
    return f"{event['run']} {'resumed' if event.get('resumed') else 'started'} pid {event.get('pid')}"


def _stage_started(event: Event) -> str:
    more = [f"{name} {event[name]}" for name in ("attempt", "round") if event.get(name, 0) > 1]
    return " ".join([event["stage"], "started", *more])


def _gen_started(event: Event) -> str:
    known = {kind.value: text.phrase for kind, text in cause_texts.WORDS.items()}
    reason = known.get(event.get("reason", ""))
    if reason is None:
        again = event.get("round", 1) > 1 and not event.get("merging")
        return f"{event['stage']} round {event['round']} started" if again else ""
    step = event.get("resume_step")
    start = f"from the checkpoint of step {step}" if step is not None else "from the beginning"
    return f"{event['stage']} restarts as generation {event['gen']} {start}: {reason}"


def _rank(event: Event) -> str:
    return f"{event['stage']}/{event['role']}-{event['rank']}"


def _rank_started(event: Event) -> str:
    again = f" restart {event['restart']}" if event.get("restart") else ""
    gen = f" generation {event['gen']}" if event.get("gen", 1) > 1 else ""
    if event.get("pod"):
        return f"{_rank(event)} started in the pod {event['pod']} on {event.get('node')}{again}"
    return f"{_rank(event)} started pid {event.get('pid')}{gen}{again}"


def _rank_ended(event: Event) -> str:
    if event.get("because"):
        return f"{_rank(event)} stopped because {event['because']} failed"
    cause = cause_of(event)
    text = f"{_rank(event)} {event['state']}"
    if event["state"] == "succeeded":
        return text
    if isinstance(event.get("code"), int) and event["code"] >= 0:
        text += f" exit {event['code']}"
    elif event.get("signal"):
        text += f" {signal_name(event['signal'])}"
    return text if cause is None else f"{text}: {explanation.cause_text(cause)}"


def _stage_ended(event: Event) -> str:
    cause = cause_of(event)
    attempts = f" after {event['attempts']} attempts" if event.get("attempts", 1) > 1 else ""
    return f"{event['stage']} {event['state']}{attempts}" + (f": {_of_stage(cause)}" if cause else "")


def _gen_ended(event: Event) -> str:
    cause = cause_of(event)
    if cause is None or cause.rank >= 0:
        return ""
    return f"{event['stage']} generation {event['gen']} {event['state']}: {explanation.cause_text(cause)}"


def _of_stage(cause: Cause) -> str:
    """A stage's cause; the line names the stage already, so only a rank is added."""
    return explanation.brief(cause) if cause.rank >= 0 else explanation.cause_text(cause)


def _verdict(event: Event) -> str:
    figures = (event["of"], event["metric"], event.get("value"), event.get("at_least"), event.get("at_most"))
    verdict = Verdict(event["stage"], *figures, passed=bool(event["passed"]), attempt=event.get("attempt", 1))
    return f"{event['stage']} {run_summary.verdict(verdict)}"


def _stage_ready(event: Event) -> str:
    lines = run_summary.serving(event) if "url" in event else ["it answers"]
    return "\n".join(f"{event['stage']}: {line}" for line in lines)


def _stopping(event: Event) -> str:
    by = f" ({event['by']})" if event.get("by") else ""
    return ("stopping now" if event.get("now") else "stopping") + by


def _note(event: Event) -> str:
    return f"{'warning' if event.get('level') == 'warning' else 'note'}: {event['text']}"


_TEXTS: Mapping[str, Callable[[Event], str]] = {
    "run.started": _run_started,
    "stage.started": _stage_started,
    "stage.reused": lambda event: f"{event['stage']} reused: it had passed before",
    "gen.started": _gen_started,
    "rank.started": _rank_started,
    "rank.ended": _rank_ended,
    "gen.ended": _gen_ended,
    "stage.ended": _stage_ended,
    "verdict": _verdict,
    "stage.ready": _stage_ready,
    "run.serving": lambda _event: "all is done; serving until it is stopped",
    "stopping": _stopping,
    "note": _note,
    "checkpoint.damaged": lambda event: f"warning: {formatting.damaged_checkpoint(event)}",
}


class Rates:
    """Steps per second of each stage, over its newest points."""

    def __init__(self) -> None:
        self._points: dict[str, deque[tuple[float, float]]] = {}

    def rate(self, stage: StageState) -> float | None:
        """Adds the stage's newest point and returns the rate; None until there are two points."""
        if stage.leader is None or stage.step is None:
            return None
        points = self._points.setdefault(stage.name, deque(maxlen=64))
        point = (stage.leader.reported, float(stage.step))
        if points and point[1] < points[-1][1]:
            points.clear()
        if not points or point != points[-1]:
            points.append(point)
        while len(points) > 2 and points[-1][0] - points[0][0] > 60:
            points.popleft()
        passed = points[-1][0] - points[0][0]
        return (points[-1][1] - points[0][1]) / passed if passed > 0 else None

    def speed(self, stage: StageState) -> tuple[str, str]:
        """Rate and time left as texts; empty if unknown."""
        rate = self.rate(stage)
        if not rate or rate < 0 or stage.step is None:
            return "", ""
        left = formatting.span((stage.total - stage.step) / rate) if stage.total and stage.state == "running" else ""
        return f"{formatting.figure(rate)}/s", left


def progress_line(stage: StageState, rates: Rates) -> str:
    """`train step 120/200 60% 35.2/s eta 2.3s loss=0.31`."""
    rate, left = rates.speed(stage)
    step = f"step {run_summary.progress(stage)}" if stage.step is not None else ""
    parts = [stage.name, step, rate, f"eta {left}" if left else "", run_summary.metrics(stage.metrics)]
    return " ".join(filter(None, parts))


def stage_of(state: RunState, name: str) -> StageState | None:
    return next((stage for stage in state.stages if stage.name == name), None)
