"""Short texts about a run and its stages, shared by the live display, status and attach."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longboat.cli.console import next_lines
from longboat.runs import explanation, formatting
from longboat.runs.run_state import RankState, RunState, StageState, Verdict
from longboat.runtime import run_layout

ORDER = ("running", "waiting", "succeeded", "failed", "killed", "stopped", "lost")


def metrics(values: Mapping[str, float]) -> str:
    return " ".join(f"{name}={formatting.figure(value)}" for name, value in values.items())


def progress(stage: StageState | RankState) -> str:
    """`120/200 60%`, `120`, or nothing."""
    if stage.step is None:
        return ""
    if not stage.total:
        return f"{stage.step:g}"
    return f"{stage.step:g}/{stage.total:g} {100 * stage.step / stage.total:.0f}%"


def gang(stage: StageState) -> str:
    """The ranks' states by role: `worker 3/4 running, 1 failed; ps 2/2 running`."""
    roles: dict[str, Counter[str]] = {}
    for rank in stage.ranks:
        roles.setdefault(rank.role, Counter())[rank.state] += 1
    texts = []
    for role, states in roles.items():
        all_of = states.total()
        (first, count), *rest = sorted(
            states.items(), key=lambda item: (-item[1], ORDER.index(item[0]) if item[0] in ORDER else 9)
        )
        texts.append(", ".join([f"{role} {count}/{all_of} {first}", *(f"{number} {state}" for state, number in rest)]))
    return "; ".join(texts)


def verdict(value: Verdict) -> str:
    held = "no value" if value.value is None else formatting.figure(value.value)
    asked = f", asked for {value.condition}" if value.condition else ", nothing asked for"
    return f"{'passed' if value.passed else 'not met'}: {value.metric} {held}{asked}"


def serving(facts: Mapping[str, Any], over: bool = False) -> list[str]:
    """Address of a server, and one of its answers."""
    grpc = f", gRPC {facts['grpc']}" if facts.get("grpc") else ""
    lines = [f"{facts['model']} {'answered' if over else 'answers'} at {facts['url']}{grpc}"]
    lines += [] if over else [f"page: {facts.get('page', facts['url'])}"]
    if "prediction" in facts:
        truth = f" (labelled {facts['label']})" if facts.get("label") is not None else ""
        lines.append(
            f"asked {_short(facts.get('example'))}{truth}: {facts.get('answer') or _short(facts['prediction'])}"
        )
    return lines


def _short(value: object, most: int = 100) -> str:
    if isinstance(value, Mapping) and len(value) == 1:
        value = next(iter(value.values()))
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_short(held, 40)}" for key, held in value.items())
    if isinstance(value, float):
        return formatting.figure(value)
    if isinstance(value, list):
        value = f"[{', '.join(_short(each) for each in value[:10])}{', ...' if len(value) > 10 else ''}]"
    text = " ".join(str(value).split())
    return text if len(text) <= most else text[: most - 1] + "…"


def ending(run: RunState, run_dir: Path, now: float) -> str:
    """The summary of a run that is over."""
    lines = [f"{explanation.headline(run)} ({explanation.took(run, now)})"]
    for stage in run.stages:
        text = " ".join(filter(None, [progress(stage), metrics(stage.metrics)]))
        if stage.verdict is not None:
            text = verdict(stage.verdict)
        if stage.serving:
            lines += [f"  {stage.name}: {line}" for line in serving(stage.serving, over=True)]
        elif text:
            lines.append(f"  {stage.name}: {text}")
    cause = run.cause
    if cause is not None and cause.frame:
        lines.append(f"  at {cause.frame}")
    lines += [f"output: {path}" for path in outputs(run, run_dir)]
    commands = list(explanation.next_commands(run))
    if run.state != "succeeded" and run.cause is not None:
        commands.insert(0, f"longboat why {run.id}")
    return "\n".join(lines + next_lines(commands))


def outputs(run: RunState, run_dir: Path) -> list[Path]:
    """Output directories that are not empty."""
    paths = []
    for stage in run.stages:
        path = Path(run_layout.output(str(run_dir), stage.name))
        try:
            if os.listdir(path):
                paths.append(path)
        except OSError:
            pass
    return paths
