"""A plan as text, to check before it runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from longboat.cli import table
from longboat.runtime.plan import Make, Mount, Plan, Resources, Secret, Stage, Variable
from longboat.spec.scalars import written

_INDENT = "  "


def plan_text(plan: Plan, columns: int = 0, warnings: Iterable[str] = ()) -> str:
    """The text; commands are shortened to a terminal of that many columns, 0: not at all. warnings: of the engine."""
    parts = [
        _header(plan),
        _titled("stages", _stages(plan, columns)),
        _titled("limits", _limits(plan)),
        _titled("mounts", table.render(("MOUNT", "KIND", "DIRECTORY", "ACCESS", ""), [_mount(m) for m in plan.storage])
                if plan.storage else ""),
        _titled("environment", _environment(plan)),
        _titled("params", _params(plan)),
        _titled("notes", "\n".join(f"- {note}" for note in (*_notes(plan), *warnings))),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part)


def _titled(title: str, text: str) -> str:
    return f"{title}\n" + "\n".join(f"{_INDENT}{line}" for line in text.split("\n")) if text else ""


def _header(plan: Plan) -> str:
    rows = [("job", plan.name), ("file", plan.file), ("engine", plan.engine), ("code", plan.code)]
    security = ", ".join(
        f"{name} {value}"
        for name, value in (
            ("user", plan.security.user),
            ("group", plan.security.group),
            ("fs_group", plan.security.fs_group),
            ("service account", plan.security.service_account or None),
        )
        if value is not None
    )
    optional = [
        ("preset", plan.preset),
        ("image", plan.image),
        ("built on", plan.base),
        ("pull secrets", ", ".join(plan.pull_secrets)),
        ("packages", ", ".join(plan.requirements)),
        ("security", security),
    ]
    return table.render((), [*rows, *((name, value) for name, value in optional if value)])


def _stages(plan: Plan, columns: int) -> str:
    rows: list[tuple[str, ...]] = []
    for number, stage in enumerate(plan.stages, 1):
        lines = _PARTS[stage.kind](stage)
        after = ", ".join(stage.after) or "-"
        kind = stage.shape if stage.kind == "gang" else stage.kind
        for i, (what, resources, does) in enumerate(lines):
            start = (str(number), stage.name, kind) if i == 0 else ("", "", "")
            rows.append((*start, what, resources, after if i == 0 else "", does))
    room = max(1, columns - len(_INDENT)) if columns else 0
    return table.render(("#", "STAGE", "SHAPE", "RANKS", "EACH", "AFTER", "RUNS"), rows, columns=room)


Line = tuple[str, str, str]
"""Ranks, what each of them asks for, what they do."""


def _gang(stage: Stage) -> list[Line]:
    lines = [(f"{role.name} x {role.ranks}", resources(role.resources), command(role.command)) for role in stage.roles]
    commands = {role.command for role in stage.roles}
    if len(commands) == 1:
        lines = [(what, asks, does if i == 0 else '"') for i, (what, asks, does) in enumerate(lines)]
    if stage.merge:
        rounds = f", {stage.rounds} rounds" if stage.rounds > 1 else ""
        lines.append((f"merge x 1{rounds}", "", command(stage.merge)))
    return lines


def _gate(stage: Stage) -> list[Line]:
    gate = stage.gate
    if gate is None:
        return []
    targets = [f"at least {gate.at_least:g}"] if gate.at_least is not None else []
    targets += [f"at most {gate.at_most:g}"] if gate.at_most is not None else []
    retries = f"; {gate.retries} retries" if gate.retries else ""
    return [("-", "", f"{gate.metric} of {gate.of}: {' and '.join(targets) or 'not checked'}{retries}")]


def _serve(stage: Stage) -> list[Line]:
    serve = stage.serve
    if serve is None:
        return []
    image = f", image {serve.image}" if serve.image else ""
    text = f"the model of {serve.model}, REST {serve.port}, gRPC {serve.grpc_port}, {serve.expose}{image}"
    asked = resources(stage.roles[0].resources) if stage.roles else ""
    return [(f"server x {serve.replicas}", "" if asked == "-" else asked, text)]


def _bench(stage: Stage) -> list[Line]:
    bench = stage.bench
    if bench is None:
        return []
    requests = f"{bench.iterations} requests ({bench.warm_up} warm-up) of {bench.batch}"
    text = f"{requests} from {bench.data} over {bench.protocol}"
    return [(f"client x {bench.concurrency}", "", text)]


_PARTS = {"gang": _gang, "gate": _gate, "serve": _serve, "bench": _bench}


def command(words: Sequence[str]) -> str:
    """A command in one line, as it would be typed; what goes to the shell as it was written."""
    if tuple(words[:2]) == ("sh", "-c") and len(words) == 3:
        return " ".join(words[2].split("\n")).strip()
    return shlex.join(words)


def resources(asked: Resources) -> str:
    parts = [
        f"{asked.cpu:g} cpu" if asked.cpu is not None else "",
        size(asked.memory) if asked.memory is not None else "",
        f"{asked.gpu} gpu" if asked.gpu else "",
    ]
    limits = [
        f"{asked.cpu_limit:g} cpu" if asked.cpu_limit is not None else "",
        size(asked.memory_limit) if asked.memory_limit is not None else "",
    ]
    text = ", ".join(part for part in parts if part)
    most = ", ".join(part for part in limits if part)
    return f"{text} (most {most})".strip() if most else text or "-"


def size(count: int) -> str:
    """Bytes as they would be written: 4Gi, 500M, 1234."""
    for factor, unit in ((1024**4, "Ti"), (1024**3, "Gi"), (1024**2, "Mi"), (10**9, "G"), (10**6, "M"), (1024, "Ki")):
        if count % factor == 0 and count:
            return f"{count // factor}{unit}"
    return str(count)


def seconds(value: float) -> str:
    """Seconds as they would be written: 1h30m, 45s."""
    text, rest = "", value
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if rest >= length:
            text += f"{int(rest // length)}{unit}"
            rest %= length
    return text + (f"{rest:g}s" if rest or not text else "")


def _limits(plan: Plan) -> str:
    """What differs from the defaults, a line for each stage where something does."""
    rows = [(stage.name, settings) for stage in plan.stages if (settings := ", ".join(_unusual(stage)))]
    return table.render((), rows) if rows else ""


def _unusual(stage: Stage) -> Iterable[str]:
    if stage.kind == "gang" and stage.restarts != Stage.restarts:
        yield f"{stage.restarts} restarts"
    if stage.retries:
        yield f"{stage.retries} retries"
    if stage.timeout:
        yield f"{seconds(stage.timeout)} at most for an attempt"
    if stage.stall_after:
        yield f"hung after {seconds(stage.stall_after)} without progress: {stage.on_stall}"
    if stage.grace != Stage.grace:
        yield f"{seconds(stage.grace)} to stop"
    if stage.per_node != 1:
        yield f"{stage.per_node} ranks a node"
    if stage.python:
        yield f"python from {stage.python}"
    if stage.node_selector:
        yield "nodes with " + ", ".join(f"{key}={value}" for key, value in stage.node_selector)
    if stage.topology:
        yield f"spread over {stage.topology}"
    if stage.pod != "{}":
        yield "pod template changed"


def _mount(mount: Mount) -> tuple[str, ...]:
    source = mount.path or (f"{mount.source} -> directory of the run" if mount.source else "directory of the run")
    place = source if mount.path or mount.in_run else mount.source or "-"
    kind = mount.kind if mount.make is None else _made(mount.make)
    return mount.name, kind, place, "read only" if mount.read_only else "read, write", _short_note(mount)


def _made(make: Make) -> str:
    asked = (size(make.size) if make.size else "", make.storage_class, make.mode, "nfs" if make.nfs else "", make.disk)
    return f"made ({', '.join(filter(None, asked))})"


def _short_note(mount: Mount) -> str:
    return "" if mount.in_run or mount.make is not None else mount.note


def _environment(plan: Plan) -> str:
    """Names of variables only: values may be long; the JSON has them."""
    secrets = {secret.name: secret for secret in plan.secrets}
    gangs = [stage for stage in plan.stages if stage.kind == "gang"]
    common = set(gangs[0].env).intersection(*(stage.env for stage in gangs)) if gangs else set()
    rows = [("every stage", _names(v for v in gangs[0].env if v in common))] if gangs else []
    for stage in gangs:
        rows.append((stage.name, _names(v for v in stage.env if v not in common)))
        rows += [(f"{stage.name} {role.name}", _names(role.env)) for role in stage.roles]
    rows = [row for row in rows if row[1]]
    rows += [("secret", f"{name} from {_source(secret)} (not shown)") for name, secret in secrets.items()]
    return table.render((), rows) if rows else ""


def _names(variables: Iterable[Variable]) -> str:
    return ", ".join(variable.name for variable in variables if not variable.secret)


def _source(secret: Secret) -> str:
    return f"Secret {secret.ref}, key {secret.key}" if secret.source == "cluster" else f"{secret.source} {secret.ref}"


def _params(plan: Plan) -> str:
    rows = [
        (
            p.name,
            written(p.value) or '""',
            p.set_by,
            "required, still as in the file" if _untouched(p.required, p.set_by) else "",
            p.help,
        )
        for p in plan.params
    ]
    return table.render(("NAME", "VALUE", "SET BY", "REQUIRED", "DESCRIPTION"), rows) if rows else ""


def _untouched(required: bool, set_by: str) -> bool:
    return required and set_by == "file"


def _notes(plan: Plan) -> list[str]:
    left = [param.name for param in plan.params if _untouched(param.required, param.set_by)]
    unset = [f"required and still as in the file: {', '.join(left)}"] if left else []
    return [*plan.notes, *unset]
