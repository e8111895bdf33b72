"""One stage of the job file into one Stage of the Plan: command, shape, roles and ranks."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from longboat.runtime import plan
from longboat.runtime.shapes import SHAPES, RoleRule, Shape, finishing_roles
from longboat.spec.problems import Problems, Span, did_you_mean
from longboat.spec.stage_keys import MOST_RANKS, STAGE
from longboat.spec.validation import Section


class JobContext(NamedTuple):
    """What a stage takes from its job."""

    directory: str
    remote: bool
    env: tuple[plan.Variable, ...]


def build(name: str, section: Section, around: JobContext, problems: Problems) -> plan.Stage:
    """The stage without its `after`, which is the business of the whole job."""
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
    """A text goes to the shell, a list is executed."""
    if isinstance(value, str):
        return ("sh", "-c", value)
    return value if isinstance(value, tuple) else ()


def variables(values: Mapping[str, object]) -> tuple[plan.Variable, ...]:
    return tuple(plan.Variable(name, str(value or "")) for name, value in values.items())


def check_variables(section: Section | None, problems: Problems) -> None:
    for name, span in (section.spans if section else {}).items():
        if name.startswith("LONGBOAT_"):
            problems.add(span, f"`{name}`: variables that begin with LONGBOAT_ are Longboat's own")


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
                    section.where(key), f"`{key}` has no meaning in shape {shape.name}", "it belongs to shape average"
                )
    if section.integer("rounds", 1) > 1 and not section.has("merge"):
        problems.add(section.where("rounds"), "`rounds` needs `merge`", "the command that merges after each round")
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
    """The job's variables, and above them the stage's own."""
    check_variables(section.section("env"), problems)
    found = {variable.name: variable for variable in (*around.env, *variables(section.map("env")))}
    return tuple(found.values())


def _python(section: Section, around: JobContext, problems: Problems) -> str:
    given = section.text("python")
    if not given:
        return ""
    if around.remote:
        # A path inside an image, which cannot be looked at from here.
        name = os.path.basename(given)
        return os.path.dirname(given) if re.fullmatch(r"python[0-9.]*", name) else os.path.join(given, "bin")
    path = os.path.normpath(os.path.join(around.directory, os.path.expanduser(given)))
    if os.path.isdir(path):
        directory = path if os.path.basename(path) == "bin" else os.path.join(path, "bin")
        found = any(os.path.exists(os.path.join(directory, name)) for name in ("python", "python3"))
    else:
        directory, found = os.path.dirname(path), os.access(path, os.X_OK)
        plain = os.path.join(directory, "python")
        if found and not (os.path.exists(plain) and os.path.samefile(plain, path)):
            hint = f"leave `python` out and write {path} in `run`"
            problems.add(section.where("python"), f"{directory} has no `python` that is {path}", hint)
    if not found:
        hint = "give the path of an interpreter, or of an environment such as .venv"
        problems.add(section.where("python"), f"there is no Python at {path}", hint)
    return directory


class _Asked(NamedTuple):
    """What the file says of one role."""

    ranks: int | None
    span: Span
    section: Section | None = None


def _shape_and_roles(
    section: Section, run: tuple[str, ...], problems: Problems
) -> tuple[Shape | None, tuple[plan.Role, ...]]:
    ranks = section.values.get("ranks")
    asked = _asked(ranks) if isinstance(ranks, Section) else {}
    name = section.text("shape")
    if section.has("shape") and not name:
        return None, ()
    shape = SHAPES[name] if name else _guess(section, ranks, asked)
    if shape is None:
        known = {rule.name for other in SHAPES.values() for rule in other.roles}
        _check_roles(asked, known, "no shape has a role", problems)
        if known.issuperset(asked):
            problems.add(section.where("ranks"), "no shape has these roles together", f"shapes: {', '.join(SHAPES)}")
        return None, ()
    _check_roles(asked, {rule.name for rule in shape.roles}, f"shape {shape.name} has no role", problems)
    if isinstance(ranks, int):
        one = _role_of_a_number(shape)
        if one is None:
            example = ", ".join(f"{rule.name}: {rule.default}" for rule in shape.roles if rule.default)
            problems.add(
                section.where("ranks"),
                f"shape {shape.name} needs ranks for each role",
                f"for example `ranks: {{{example}}}`",
            )
            return shape, ()
        asked = {one.name: _Asked(ranks, section.where("ranks"))}
    return shape, _roles(shape, asked, section, run, problems)


def _asked(ranks: Section) -> dict[str, _Asked]:
    found = {}
    for role, value in ranks.values.items():
        inner = value if isinstance(value, Section) else None
        count = inner.whole("count") if inner else value
        span = inner.where("count") if inner else ranks.where(role)
        found[role] = _Asked(count if isinstance(count, int) else None, span, inner)
    return found


def _guess(section: Section, ranks: object, asked: Mapping[str, _Asked]) -> Shape | None:
    """The shape where the file names none: `average` for a merge, else the first that fits the ranks."""
    if section.has("merge"):
        return SHAPES["average"]
    for shape in SHAPES.values():
        rules = {rule.name: rule for rule in shape.roles}
        if isinstance(ranks, int):
            one = _role_of_a_number(shape)
            if one is not None and (not one.most or ranks <= one.most):
                return shape
        elif all(
            role in rules and (not rules[role].most or (a.ranks or 0) <= rules[role].most) for role, a in asked.items()
        ):
            return shape
    return None


def _role_of_a_number(shape: Shape) -> RoleRule | None:
    """The role that a bare number of ranks means, if the shape leaves no doubt."""
    needed = [rule for rule in shape.roles if rule.least]
    many = [rule for rule in needed if not rule.most] or needed
    return many[0] if len(many) == 1 else None


def _check_roles(asked: Mapping[str, _Asked], known: set[str], message: str, problems: Problems) -> None:
    for role, ask in asked.items():
        if role not in known:
            problems.add(ask.span, f"{message} `{role}`", did_you_mean(role, sorted(known), what="its roles"))


def _roles(
    shape: Shape, asked: Mapping[str, _Asked], section: Section, run: tuple[str, ...], problems: Problems
) -> tuple[plan.Role, ...]:
    counts: dict[str, int] = {}
    for rule in shape.roles:
        ask = asked.get(rule.name)
        count = rule.default if ask is None or ask.ranks is None else ask.ranks
        most = rule.most or MOST_RANKS
        if ask is not None and not rule.least <= count <= most:
            allowed = str(most) if rule.least == most else f"from {rule.least} to {most}"
            hint = "shape allreduce has many workers" if shape.name == "single" and count > 1 else ""
            problems.add(ask.span, f"shape {shape.name} takes {allowed} ranks of role {rule.name}, not {count}", hint)
        counts[rule.name] = count
    if sum(counts.values()) > MOST_RANKS:
        problems.add(section.where("ranks"), f"the stage has {sum(counts.values())} ranks; {MOST_RANKS} is the most")
    finishes = finishing_roles(shape.name, counts)
    base = section.section("resources")
    found = []
    for rule in shape.roles:
        ask = asked.get(rule.name)
        own = ask.section if ask else None
        resources = _resources(base, own.section("resources") if own else None, problems)
        if not counts[rule.name]:
            continue
        role = plan.Role(rule.name, counts[rule.name], finishes[rule.name], rule.alone, run, resources)
        if own is not None:
            check_variables(own.section("env"), problems)
            role = replace(
                role,
                command=command(own.values.get("run")) or run,
                env=variables(own.map("env")),
                image=own.text("image"),
                pull_policy=own.text("pull_policy"),
            )
        found.append(role)
    return tuple(found)


def _resources(base: Section | None, own: Section | None, problems: Problems) -> plan.Resources:
    """What the role says, and from the stage what it leaves out."""
    given = [section for section in (own, base) if section is not None]
    limits = [part for section in given if (part := section.section("limits")) is not None]

    def first(sections: list[Section], key: str) -> float | None:
        return next((s.number(key) for s in sections if s.has(key) and s.number(key) is not None), None)

    cpu, memory, gpu = (first(given, key) for key in ("cpu", "memory", "gpu"))
    cpu_limit, memory_limit = (first(limits, key) for key in ("cpu", "memory"))
    for key, request, limit in (("cpu", cpu, cpu_limit), ("memory", memory, memory_limit)):
        if request is not None and limit is not None and limit < request:
            span = next(section.where(key) for section in limits if section.has(key))
            problems.add(span, f"the limit of {key}, {limit:g}, is below what is asked for, {request:g}")
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
        problems.add(part.where("at_least"), f"no figure is at least {least:g} and at most {most:g}")
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
            problems.add(where, "`autoscale` counts in per cent of the cores asked for, and none are", _ASK_CPU)
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
        message = f"all {bench.iterations} iterations are warm-up ({bench.warm_up}): nothing would be measured"
        problems.add(where, message, "`iterations` counts the warm-up too: give more of them, or a smaller `warm_up`")
    return replace(stage, bench=bench)


_OTHERS = {"gate": _gate, "serve": _serve, "bench": _bench}
