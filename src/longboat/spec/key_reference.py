"""The key tables as the documentation page docs/job-file.md."""

from __future__ import annotations

from longboat.spec import job_keys, value_types
from longboat.spec.scalars import written
from longboat.spec.value_types import Field, Kind, RecordOf

_INTRODUCTION = """\
# The job file

A job file is a YAML mapping with the keys below. Unknown keys are errors. Scalars follow YAML 1.2 (`no` and `12:30`
are texts). Paths are relative to the job file. Top-level keys that start with `x-` are ignored; use them for anchors.

`${NAME}` in any value is replaced by the param `NAME`; a value that is exactly `${NAME}` also takes its type.
`$${NAME}` passes `${NAME}` to the shell; `$NAME` and `$(command)` are not changed. Sources of a param's value, highest
precedence first: `--set NAME=VALUE`, the variable `LONGBOAT_PARAM_NAME`, the preset, the file.

A job with a single stage may leave out `stages` and put the keys of the stage at the top level. The stage is then
called `main`.

A line of an env file is `KEY=VALUE`, a `#` comment or empty; a leading `export` and quotes are allowed. `${NAME}` in a
value is replaced by a variable defined above, or else by a param; in single quotes nothing is replaced. Precedence,
highest first: `env` of the role, of the stage, of the job, env files.
"""


def reference_markdown() -> str:
    """Text of the page docs/job-file.md."""
    records: list[RecordOf] = []
    _collect(job_keys.JOB, records)
    return "\n".join([_INTRODUCTION, *(_section(record) for record in records)])


def _collect(kind: Kind, records: list[RecordOf]) -> None:
    if isinstance(kind, value_types.RecordOf) and kind not in records:
        records.append(kind)
        for field in kind.fields:
            _collect(field.kind, records)
    elif isinstance(kind, value_types.Either):
        for choice in kind.choices:
            _collect(choice, records)
    elif isinstance(kind, (value_types.ListOf, value_types.MapOf)):
        _collect(kind.item, records)


def _section(record: RecordOf) -> str:
    lines = [f"## `{record.name}`" if record is not job_keys.JOB else "## Top level", "", record.help]
    if record.one_of:
        lines += ["", "Exactly one of " + ", ".join(f"`{key}`" for key in record.one_of) + " is required."]
    lines += ["", "| key | value | default | meaning |", "| --- | --- | --- | --- |"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in _row(field)) + " |" for field in record.fields]
    return "\n".join([*lines, ""])


def _row(field: Field) -> tuple[str, str, str, str]:
    default = (
        "*required*" if field.required else f"`{written(field.default)}`" if field.default not in (None, "") else ""
    )
    meaning = field.help + (f" Only with {_listed(field.only)}." if field.only else "")
    if field.example:
        meaning += f" Example: `{field.name}: {field.example}`"
    return f"`{field.name}`", _description(field.kind), default, meaning


def _listed(keys: tuple[str, ...]) -> str:
    return ", ".join(f"`{key}`" for key in keys)


def _description(kind: Kind) -> str:
    if isinstance(kind, value_types.Text) and kind.allowed:
        return _listed(kind.allowed)
    if isinstance(kind, value_types.Either):
        return " or ".join(_description(choice) for choice in kind.choices)
    if isinstance(kind, value_types.RecordOf):
        return f"[{kind.name}](#{kind.name})"
    if isinstance(kind, (value_types.MapOf, value_types.ListOf)) and (inner := _records(kind.item)):
        return f"{kind.what}, each {inner}"
    return kind.what


def _records(kind: Kind) -> str:
    """Description of the type if it contains records, else ""."""
    records: list[RecordOf] = []
    _collect(kind, records)
    return _description(kind) if records else ""
