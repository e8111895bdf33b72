"""Builds the Plan's Stage from a stage of the job file: command, shape, roles and ranks."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from longboat.runtime import plan
from longboat.runtime.light_dataclasses import replace
from longboat.runtime.shapes import SHAPES, RoleRule, Shape, finishing_roles
from longboat.spec.problems import Problems, Span, did_you_mean
from longboat.spec.stage_keys import MOST_RANKS, STAGE
from longboat.spec.validation import Section


class JobContext(NamedTuple):
    """Settings that a stage inherits from its job."""

    directory: str
    remote: bool
    env: tuple[plan.Variable, ...]


def build(name: str, section: Section, around: JobContext, problems: Problems) -> plan.Stage:
    """The stage without `after`, which `planning` adds."""
    kind = next((key for key in STAGE.one_of if section.has(key)), "run")
    stage = plan.Stage(
        name,
        kind="gang" if kind == "run" else kind,
        timeout=section.seconds("timeout"),
        grace=section.seconds("grace"),
        node_selector=tuple((key, str(value)) for key, value in section.map("node_selector").items()),
        tolerations=section.json("tolerations", "[]"),
        topology=section.text("topology"),
        pod=section.json("pod", "{}"),
    )
    if stage.kind == "gang":
        return _gang(stage, section, around, problems)
    if stage.kind != "gate":
        stage = replace(stage, env=_env(section, around, problems))
    return _OTHERS[stage.kind](stage, section, problems)


def command(value: object) -> tuple[str, ...]:
    """The command as arguments: a text is run by the shell, a list is executed directly."""
    if isinstance(value, str):
        return ("sh", "-c", value)
    return value if isinstance(value, tuple) else ()


def variables(values: Mapping[str, object]) -> tuple[plan.Variable, ...]:
    return tuple(plan.Variable(name, str(value or "")) for name, value in values.items())


def check_variables(section: Section | None, problems: Problems) -> None:
    for name, span in (section.spans if section else {}).items():
        if name.startswith("LONGBOAT_"):
            problems.add(span, f"`{name}`: variables that start with LONGBOAT_ are reserved")


def _gang(stage: plan.Stage, section: Section, around: JobContext, problems: Problems) -> plan.Stage:
    run = command(section.values.get("run"))
    for key in ("run", "merge"):
        if section.has(key) and section.values.get(key) in ("", ()):
            problems.add(section.where(key), f"`{key}` is empty")
    shape, roles = _shape_and_roles(section, run, problems)
    merge = command(section.values.get("merge"))
    if shape is not None and shape.name != "average":
        for key in ("merge", "rounds"):
            if section.has(key):
                problems.add(
                    section.where(key), f"`{key}` cannot be used with shape {shape.name}", "use it with shape average"
                )
    if section.integer("rounds", 1) > 1 and not section.has("merge"):
        problems.add(
            section.where("rounds"),
            "`rounds` needs `merge`",
            "add `merge:`, the command that merges the models after each round",
        )
    return replace(
        stage,
        shape=shape.name if shape else "",
        roles=roles,
        merge=merge,
        rounds=section.integer("rounds", 1),
        per_node=section.integer("per_node", 1),
        env=_env(section, around, problems),
        python=_python(section, around, problems),
        restarts=section.integer("restarts", 3),
        retries=section.integer("retries"),
        stall_after=section.seconds("stall_after"),
        on_stall=section.text("on_stall"),
    )


def _env(section: Section, around: JobContext, problems: Problems) -> tuple[plan.Variable, ...]:
    """The stage's variables, which override the job's."""
    check_variables(section.section("env"), problems)
    merged = {variable.name: variable for variable in (*around.env, *variables(section.map("env")))}
    return tuple(merged.values())


def _python(section: Section, around: JobContext, problems: Problems) -> str:
    given = section.text("python")
    if not given:
        return ""
    if around.remote:
        # A path inside the image, which cannot be checked here.
        name = os.path.basename(given)
        return os.path.dirname(given) if re.fullmatch(r"python[0-9.]*", name) else os.path.join(given, "bin")
    path = os.path.normpath(os.path.join(around.directory, os.path.expanduser(given)))
    if os.path.isdir(path):
        directory = path if os.path.basename(path) == "bin" else os.path.join(path, "bin")
        exists = any(os.path.exists(os.path.join(directory, name)) for name in ("python", "python3"))
    else:
        directory, exists = os.path.dirname(path), os.access(path, os.X_OK)
        plain = os.path.join(directory, "python")
        if exists and not (os.path.exists(plain) and os.path.samefile(plain, path)):
            hint = f"remove `python` and use {path} in `run`"
            problems.add(section.where("python"), f"`python` in {directory} is not {path}", hint)
    if not exists:
        hint = "set it to the path of an interpreter or of a virtual environment such as .venv"
        problems.add(section.where("python"), f"no Python found at {path}", hint)
    return directory


class _RoleRequest(NamedTuple):
    """The request for one role in the file: rank count, position, settings."""

    ranks: int | None
    span: Span
    section: Section | None = None


def _shape_and_roles(
    section: Section, run: tuple[str, ...], problems: Problems
) -> tuple[Shape | None, tuple[plan.Role, ...]]:
    ranks = section.values.get("ranks")
    requests = _requests(ranks) if isinstance(ranks, Section) else {}
    name = section.text("shape")
    if section.has("shape") and not name:
        return None, ()
    shape = SHAPES[name] if name else _guess(section, ranks, requests)
    if shape is None:
        known = {rule.name for other in SHAPES.values() for rule in other.roles}
        _check_roles(requests, known, "no shape has a role", problems)
        if known.issuperset(requests):
            problems.add(section.where("ranks"), "no shape has these roles together", f"shapes: {', '.join(SHAPES)}")
        return None, ()
    _check_roles(requests, {rule.name for rule in shape.roles}, f"shape {shape.name} has no role", problems)
    if isinstance(ranks, int):
        rule = _role_of_a_number(shape)
        if rule is None:
            example = ", ".join(f"{rule.name}: {rule.default}" for rule in shape.roles if rule.default)
            problems.add(
                section.where("ranks"),
                f"shape {shape.name} needs ranks for each role",
                f"for example `ranks: {{{example}}}`",
            )
            return shape, ()
        requests = {rule.name: _RoleRequest(ranks, section.where("ranks"))}
    return shape, _roles(shape, requests, section, run, problems)


def _requests(ranks: Section) -> dict[str, _RoleRequest]:
    requests = {}
    for role, value in ranks.values.items():
        inner = value if isinstance(value, Section) else None
        count = inner.whole("count") if inner else value
        span = inner.where("count") if inner else ranks.where(role)
        requests[role] = _RoleRequest(count if isinstance(count, int) else None, span, inner)
    return requests


def _guess(section: Section, ranks: object, requests: Mapping[str, _RoleRequest]) -> Shape | None:
    """The default shape: `average` if there is a merge, else the first that fits the ranks."""
    if section.has("merge"):
        return SHAPES["average"]
    for shape in SHAPES.values():
        rules = {rule.name: rule for rule in shape.roles}
        if isinstance(ranks, int):
            rule = _role_of_a_number(shape)
            if rule is not None and (not rule.most or ranks <= rule.most):
                return shape
        elif all(
            role in rules and (not rules[role].most or (request.ranks or 0) <= rules[role].most)
            for role, request in requests.items()
        ):
            return shape
    return None


def _role_of_a_number(shape: Shape) -> RoleRule | None:
    """The role meant by a plain number of ranks, or None if that is ambiguous."""
    needed = [rule for rule in shape.roles if rule.least]
    many = [rule for rule in needed if not rule.most] or needed
    return many[0] if len(many) == 1 else None


def _check_roles(requests: Mapping[str, _RoleRequest], known: set[str], message: str, problems: Problems) -> None:
    for role, request in requests.items():
        if role not in known:
            problems.add(request.span, f"{message} `{role}`", did_you_mean(role, sorted(known), what="its roles"))


def _roles(
    shape: Shape, requests: Mapping[str, _RoleRequest], section: Section, run: tuple[str, ...], problems: Problems
) -> tuple[plan.Role, ...]:
    counts: dict[str, int] = {}
    for rule in shape.roles:
        request = requests.get(rule.name)
        count = rule.default if request is None or request.ranks is None else request.ranks
        most = rule.most or MOST_RANKS
        if request is not None and not rule.least <= count <= most:
            allowed = str(most) if rule.least == most else f"from {rule.least} to {most}"
            hint = "shape allreduce has many workers" if shape.name == "single" and count > 1 else ""
            problems.add(
                request.span, f"shape {shape.name} takes {allowed} ranks of role {rule.name}, not {count}", hint
            )
        counts[rule.name] = count
    if sum(counts.values()) > MOST_RANKS:
        problems.add(section.where("ranks"), f"the stage has {sum(counts.values())} ranks; the maximum is {MOST_RANKS}")
    finishes = finishing_roles(shape.name, counts)
    base = section.section("resources")
    roles = []
    for rule in shape.roles:
        request = requests.get(rule.name)
        role_section = request.section if request else None
        resources = _resources(base, role_section.section("resources") if role_section else None, problems)
        if not counts[rule.name]:
            continue
        role = plan.Role(rule.name, counts[rule.name], finishes[rule.name], rule.alone, run, resources)
        if role_section is not None:
            check_variables(role_section.section("env"), problems)
            role = replace(
                role,
                command=command(role_section.values.get("run")) or run,
                env=variables(role_section.map("env")),
                image=role_section.text("image"),
                pull_policy=role_section.text("pull_policy"),
            )
        roles.append(role)
    return tuple(roles)


def _resources(base: Section | None, role: Section | None, problems: Problems) -> plan.Resources:
    """Resources of the role; keys it leaves out come from the stage."""
    given = [section for section in (role, base) if section is not None]
    limits = [part for section in given if (part := section.section("limits")) is not None]

    def first(sections: list[Section], key: str) -> float | None:
        return next((s.number(key) for s in sections if s.has(key) and s.number(key) is not None), None)

    cpu, memory, gpu = (first(given, key) for key in ("cpu", "memory", "gpu"))
    cpu_limit, memory_limit = (first(limits, key) for key in ("cpu", "memory"))
    for key, request, limit in (("cpu", cpu, cpu_limit), ("memory", memory, memory_limit)):
        if request is not None and limit is not None and limit < request:
            span = next(section.where(key) for section in limits if section.has(key))
            problems.add(span, f"the {key} limit {limit:g} is below the request {request:g}")
    return plan.Resources(
        cpu,
        None if memory is None else int(memory),
        int(gpu or 0),
        cpu_limit,
        None if memory_limit is None else int(memory_limit),
    )


def _gate(stage: plan.Stage, section: Section, problems: Problems) -> plan.Stage:
    part = section.section("gate")
    if part is None:
        return stage
    least, most = part.number("at_least"), part.number("at_most")
    if least is not None and most is not None and least > most:
        problems.add(
            part.where("at_least"), f"`at_least: {least:g}` is greater than `at_most: {most:g}`: no value can pass"
        )
    gate = plan.Gate(part.text("of"), part.text("metric"), least, most, part.integer("retries"))
    return replace(stage, gate=gate)


def _serve(stage: plan.Stage, section: Section, problems: Problems) -> plan.Stage:
    part = section.section("serve")
    if part is None:
        return stage
    serve = plan.Serve(
        part.text("model"),
        part.integer("replicas"),
        part.integer("port"),
        part.integer("grpc_port"),
        part.text("expose"),
        part.text("image"),
        part.text("name"),
        _autoscale(part),
        part.text("token"),
    )
    if serve.port == serve.grpc_port:
        problems.add(part.where("port"), f"`port` and `grpc_port` are both {serve.port}")
    role = plan.Role("server", serve.replicas, resources=_resources(section.section("resources"), None, problems))
    if serve.autoscale is not None:
        where = part.where("autoscale")
        if serve.autoscale.most < serve.replicas:
            problems.add(where, f"`max: {serve.autoscale.most}` is less than `replicas: {serve.replicas}`")
        if role.resources.cpu is None:
            problems.add(where, "`autoscale` needs a CPU request: its target is a percentage of it", _ASK_CPU)
    return replace(stage, serve=serve, roles=(role,))


_ASK_CPU = "add `resources: {cpu: 1}` to the stage"


def _autoscale(part: Section) -> plan.Autoscale | None:
    given = part.section("autoscale")
    return None if given is None else plan.Autoscale(given.integer("max"), given.integer("cpu"))


def _bench(stage: plan.Stage, section: Section, problems: Problems) -> plan.Stage:
    part = section.section("bench")
    if part is None:
        return stage
    bench = plan.Bench(
        part.text("data"),
        part.integer("batch"),
        part.integer("iterations"),
        part.integer("warm_up"),
        part.integer("concurrency"),
        part.text("protocol"),
    )
    if bench.warm_up >= bench.iterations:
        where = part.where("warm_up" if part.has("warm_up") else "iterations")
        message = f"all {bench.iterations} iterations are warm-up ({bench.warm_up}): nothing is left to measure"
        problems.add(where, message, "`iterations` includes the warm-up: raise it, or lower `warm_up`")
    return replace(stage, bench=bench)


_OTHERS = {"gate": _gate, "serve": _serve, "bench": _bench}
