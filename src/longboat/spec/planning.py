"""Builds the Plan from the validated job file. `stages` builds its single stages.

It uses neither clock nor network, and checks the file system only for the existence of named files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from longboat.runtime import plan
from longboat.runtime.buckets.bucket_mounts import SCHEMES
from longboat.runtime.light_dataclasses import replace
from longboat.spec import job_keys, serving_commands, stages
from longboat.spec.problems import Problems, Span, did_you_mean
from longboat.spec.stage_order import ordered
from longboat.spec.validation import Section

LABEL = 63
"""Maximum length of a Service name and of a label value in Kubernetes."""

LOCAL_NOTES = {
    "nfs": "NFS is not mounted locally; a directory of the run replaces it",
    "pvc": "volume claims do not exist locally; a directory of the run replaces it",
    "emptyDir": "a directory of the run",
    "gs": "downloaded into a directory of the run before a rank starts, uploaded after it ends",
    "s3": "downloaded into a directory of the run before a rank starts, uploaded after it ends",
}

INLINE_NOTE = "namespaces that enforce restricted Pod Security reject it; use a claim (`pvc`) there"


def build(
    root: Section,
    directory: str,
    engine: str,
    remote: bool,
    env: Mapping[str, str],
    environ: Mapping[str, str],
    problems: Problems,
) -> plan.Plan:
    """The Plan without file, preset, params and requirements, which the loader adds."""
    notes: list[str] = []
    secrets = _secrets(root, directory, remote, environ, problems, notes)
    around = stages.JobContext(directory, remote, _variables(root, env, secrets, problems))
    return plan.Plan(
        name=root.text("name"),
        engine=engine,
        code=_code(root, directory, problems),
        image=root.text("image"),
        base=root.text("base"),
        pull_secrets=root.texts("pull_secrets"),
        secrets=secrets,
        storage=_storage(root, directory, remote, notes, problems),
        security=_security(root),
        board=_board(root),
        stages=_stages(root, around, problems),
        notes=tuple(notes),
    )


def absolute(directory: str, path: str) -> str:
    """A path in the job file as an absolute path; `~` is the user's home."""
    return os.path.normpath(os.path.join(directory, os.path.expanduser(path)))


def _code(root: Section, directory: str, problems: Problems) -> str:
    path = absolute(directory, root.text("code"))
    if not os.path.isdir(path):
        problems.add(root.where("code"), f"directory {path} does not exist", "`code` is relative to the job file")
    return path


def _variables(
    root: Section, env: Mapping[str, str], secrets: tuple[plan.Secret, ...], problems: Problems
) -> tuple[plan.Variable, ...]:
    """Variables of every rank: env files, overridden by `env`, and the secrets."""
    stages.check_variables(root.section("env"), problems)
    from_env = stages.variables(root.map("env"))
    variables = {name: plan.Variable(name, value) for name, value in env.items()} | {v.name: v for v in from_env}
    given = root.section("secrets")
    for secret in secrets:
        if given is not None and secret.name in variables:
            where = given.where(secret.name)
            problems.add(where, f"`{secret.name}` is also defined in `env` or an env file", "keep one of them")
        variables[secret.name] = plan.Variable(secret.name, secret=secret.name)
    return tuple(variables.values())


def _secrets(
    root: Section, directory: str, remote: bool, environ: Mapping[str, str], problems: Problems, notes: list[str]
) -> tuple[plan.Secret, ...]:
    given = root.section("secrets")
    stages.check_variables(given, problems)
    secrets = []
    for name, value in (given.values if given else {}).items():
        if not isinstance(value, Section):
            continue
        if value.text("env"):
            secret = plan.Secret(name, "env", value.text("env"))
            if environ and secret.ref not in environ:
                notes.append(f"secret {name}: variable {secret.ref} is not set")
        elif value.text("file"):
            secret = plan.Secret(name, "file", absolute(directory, value.text("file")))
            if not os.path.exists(secret.ref):
                notes.append(f"secret {name}: file {secret.ref} does not exist")
        elif value.text("secret"):
            secret = plan.Secret(name, "cluster", value.text("secret"), value.text("key"))
            if not value.has("key"):
                problems.add(value.span, "`secret` needs `key`", "add `key:`, the key in the Secret")
            if not remote:
                notes.append(f"secret {name}: Secret {secret.ref} is in a cluster and not available locally")
        else:
            continue
        secrets.append(secret)
    return tuple(secrets)


def _storage(
    root: Section, directory: str, remote: bool, notes: list[str], problems: Problems
) -> tuple[plan.Mount, ...]:
    mounts = []
    given = root.section("storage")
    for name, value in (given.values if given else {}).items():
        mount = _mount(name, value)
        made = value.values.get("make") if isinstance(value, Section) else None
        if made is not None:
            mount = _made(root.text("name"), name, value, made, problems)
        if mount is None:
            if given is not None and _is_empty(value):
                problems.add(given.where(name), f"mount `{name}` is empty")
            continue
        mount = _here(mount, directory, remote)
        if mount.note:
            notes.append(f"mount {name}: {mount.note}")
        mounts.append(mount)
    return tuple(mounts)


def _here(mount: plan.Mount, directory: str, remote: bool) -> plan.Mount:
    """The mount on this engine, with its path and a note for the user."""
    if mount.kind in ("path", "hostPath"):
        path = absolute(directory, mount.source)
        mount = replace(mount, source=path, path="" if remote else path)
        if remote and mount.kind == "path":
            return _in_the_run(mount)
        if remote:
            return replace(mount, note=INLINE_NOTE)
        missing = mount.read_only and not os.path.exists(mount.path)
        return replace(mount, note="does not exist on this machine yet") if missing else mount
    if not remote:
        return replace(mount, in_run=True, note=LOCAL_NOTES[mount.kind])
    if mount.make is not None:
        return replace(mount, note=_made_note(mount, mount.make))
    return replace(mount, note=INLINE_NOTE) if mount.kind == "nfs" else mount


def _in_the_run(mount: plan.Mount) -> plan.Mount:
    """A local directory on a cluster: if it is empty and writable, a directory of the run replaces it."""
    if mount.read_only or os.path.lexists(mount.source) and not _is_empty_directory(mount.source):
        return replace(mount, note="a directory on this machine: a cluster cannot access it")
    return replace(mount, kind="run", source="", in_run=True, note="on a cluster a directory of the run replaces it")


def _is_empty_directory(path: str) -> bool:
    try:
        return not os.listdir(path)
    except OSError:
        return False


def _is_empty(value: object) -> bool:
    if isinstance(value, Section):
        return any(value.values.get(kind) == "" for kind in job_keys.MOUNT.one_of)
    return value in (None, "")


def _mount(name: str, value: object) -> plan.Mount | None:
    if isinstance(value, str) and value:
        kind = next((bucket for bucket in SCHEMES if value.startswith(f"{bucket}://")), "path")
        return plan.Mount(name, kind, value)
    if not isinstance(value, Section):
        return None
    kind = next((key for key in job_keys.MOUNT.one_of if value.has(key)), "")
    nfs = value.section("nfs")
    source = f"{nfs.text('server')}:{nfs.text('path')}" if nfs else "" if kind == "emptyDir" else value.text(kind)
    if not kind or not (source or kind == "emptyDir"):
        return None
    return plan.Mount(name, kind, source, value.flag("read_only"))


def _made(job: str, name: str, value: object, made: object, problems: Problems) -> plan.Mount | None:
    """The mount of a created volume, named after job and mount so that the next run reuses it."""
    if not isinstance(value, Section):
        return None
    if isinstance(made, Section):
        make = plan.Make(
            made.integer("size"),
            made.text("class"),
            made.text("mode"),
            made.flag("nfs"),
            made.text("disk"),
            made.text("image"),
        )
        for key in ("disk", "image"):
            if made.text(key) and not make.nfs:
                problems.add(made.where(key), f"`{key}` needs `nfs: true`", "add `nfs: true`")
        if make.nfs and make.mode == "ReadWriteOnce":
            problems.add(made.where("mode"), "`nfs: true` is always ReadWriteMany", "remove `mode`")
        if not make.size and not make.disk:
            problems.add(made.span, f"`make` of mount `{name}` needs a size", "add `size: 10Gi`")
    else:
        make = plan.Make(int(str(made)))
    if len(f"{job}-{name}-disk") > LABEL:
        problems.add(value.span, f"`{job}-{name}` is too long for a claim", "give the job or the mount a shorter name")
    return plan.Mount(name, "pvc", f"{job}-{name}", value.flag("read_only"), make=make)


def _made_note(mount: plan.Mount, make: plan.Make) -> str:
    by = f"the NFS server {mount.source}-nfs with its claim" if make.nfs else "the claim"
    kept = "`longboat rm` keeps it, `rm --data` deletes it with its data"
    return f"{by} {mount.source} is created if it does not exist; {kept}"


def _security(root: Section) -> plan.Security:
    given = root.section("security")
    if given is None:
        return plan.Security()
    annotations = tuple((key, str(value)) for key, value in given.map("annotations").items())
    return plan.Security(
        given.whole("user"),
        given.whole("group"),
        given.whole("fs_group"),
        given.text("user_name"),
        given.text("group_name"),
        given.text("service_account") or (root.text("name") if annotations else ""),
        annotations,
    )


def _board(root: Section) -> plan.Board | None:
    given = root.section("board")
    return None if given is None else plan.Board(given.text("image"), given.integer("port"), given.text("expose"))


def _stages(root: Section, around: stages.JobContext, problems: Problems) -> tuple[plan.Stage, ...]:
    given = root.section("stages")
    if given is None:
        return ()
    sections = {name: value for name, value in given.values.items() if isinstance(value, Section)}
    built = {name: stages.build(name, section, around, problems) for name, section in sections.items()}
    after = {name: _after(name, section, given, problems) for name, section in sections.items()}
    for name, stage in built.items():
        _check_kind_of(stage, sections[name], built, problems)
    order, cycles = ordered(after)
    for cycle in cycles:
        if len(cycle) > 2:
            where = _where_after(sections[cycle[0]], given, cycle[0])
            problems.add(
                where, f"stages depend on each other: {' → '.join(cycle)}", "`a → b` means that a comes after b"
            )
    for name in order:
        if built[name].kind == "bench" and not _has_before(name, after, built, "serve"):
            problems.add(
                given.where(name),
                f"load test `{name}` does not come after a `serve` stage",
                "add `after:` with the name of the `serve` stage",
            )
    secrets = root.section("secrets")
    for name, stage in built.items():
        if stage.serve is not None and stage.serve.token:
            _check_token(stage.serve, sections[name], list(secrets.values) if secrets else [], problems)
    complete = {name: replace(built[name], after=tuple(after[name])) for name in order}
    return tuple(serving_commands.with_commands(complete, root.text("name"), around.remote).values())


def _after(name: str, section: Section, given: Section, problems: Problems) -> list[str]:
    """The stages this one waits for: those in `after` and the one that its gate or server names."""
    wanted = list(section.texts("after"))
    implied = [part.text(key) for kind, key in _NAMED if (part := section.section(kind)) is not None and part.text(key)]
    where = section.where("after")
    for other in {other: None for other in wanted if wanted.count(other) > 1}:
        problems.add(where, f"`{other}` is listed twice in `after`")
    after = []
    for other in dict.fromkeys([*wanted, *implied]):
        span = where if other in wanted else _where_after(section, given, name)
        if other == name:
            problems.add(span, f"stage `{name}` depends on itself")
        elif other not in given.spans:
            others = [stage for stage in given.spans if stage != name]
            problems.add(span, f"unknown stage `{other}`", did_you_mean(other, others, what="the other stages"))
        elif isinstance(given.values.get(other), Section):
            after.append(other)
    return after


_NAMED = (("gate", "of"), ("serve", "model"))


def _where_after(section: Section, given: Section, name: str) -> Span:
    if section.has("after"):
        return section.where("after")
    for kind, key in _NAMED:
        part = section.section(kind)
        if part is not None and part.has(key):
            return part.where(key)
    return given.where(name)


def _check_kind_of(stage: plan.Stage, section: Section, built: Mapping[str, plan.Stage], problems: Problems) -> None:
    """Check that gates and servers name a stage with `run`."""
    for kind, key in _NAMED:
        part = section.section(kind)
        other = built.get(part.text(key)) if part is not None else None
        if part is not None and other is not None and other.kind != "gang" and other.name != stage.name:
            problems.add(
                part.where(key),
                f"stage `{other.name}` is a `{other.kind}` stage and trains no model",
                "name a stage with `run`",
            )


def _check_token(serve: plan.Serve, section: Section, secrets: list[str], problems: Problems) -> None:
    part = section.section("serve")
    assert part is not None
    if serve.token not in secrets:
        hint = did_you_mean(serve.token, secrets, what="the secrets") or "add it to `secrets:`"
        problems.add(part.where("token"), f"unknown secret `{serve.token}`", hint)
    if serve.image:
        problems.add(
            part.where("token"), "`token` works only with Longboat's own server, not with `image`", "remove one of them"
        )


def _has_before(name: str, after: Mapping[str, list[str]], built: Mapping[str, plan.Stage], kind: str) -> bool:
    waiting, seen = list(after[name]), set()
    while waiting:
        other = waiting.pop()
        if built[other].kind == kind:
            return True
        if other not in seen:
            seen.add(other)
            waiting += after[other]
    return False
