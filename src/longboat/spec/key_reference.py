"""The table of keys as a page of documentation. The docs build calls `reference_markdown`."""

from __future__ import annotations

from longboat.spec import job_keys, value_types
from longboat.spec.scalars import written
from longboat.spec.value_types import Field, Kind, RecordOf

_INTRODUCTION = """\
# The job file

A job file is YAML: one mapping, with the keys below and no others. Plain words mean what YAML 1.2
says (`no` and `12:30` are texts). Paths are relative to the job file. Keys that begin with `x-` at the
top are left alone, as a place for anchors.

`${NAME}` in any value stands for the param `NAME`; a value that is nothing but `${NAME}` takes its type.
`$${NAME}` is `${NAME}` for the shell; `$NAME` and `$(command)` are left as they are. Who sets a param, the
strongest first: `--set NAME=VALUE`, the variable `LONGBOAT_PARAM_NAME`, the preset, the file.

A job of one stage may leave `stages` out and write the keys of that stage at the top; the stage is then
called `main`.

In an env file a line is `KEY=VALUE`, a `#` comment or empty; `export` in front and quotes are allowed. `${NAME}` in a
value stands for a variable defined above or else for a param; in single quotes nothing is replaced. `env` stands
above env files, a stage's `env` above the job's, a role's above its stage's.
"""


def reference_markdown() -> str:
    """The whole page."""
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
    lines = [f"## `{record.name}`" if record is not job_keys.JOB else "## The top of the file", "", record.help]
    if record.one_of:
        lines += ["", "Exactly one of " + ", ".join(f"`{key}`" for key in record.one_of) + " must be there."]
    lines += ["", "| key | value | default | meaning |", "| --- | --- | --- | --- |"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in _row(field)) + " |" for field in record.fields]
    return "\n".join([*lines, ""])


def _row(field: Field) -> tuple[str, str, str, str]:
    default = (
        "*required*" if field.required else f"`{written(field.default)}`" if field.default not in (None, "") else ""
    )
    meaning = field.help + (f" Only beside {_listed(field.only)}." if field.only else "")
    if field.example:
        meaning += f" Example: `{field.name}: {field.example}`"
    return f"`{field.name}`", _words(field.kind), default, meaning


def _listed(words: tuple[str, ...]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _words(kind: Kind) -> str:
    if isinstance(kind, value_types.Text) and kind.allowed:
        return _listed(kind.allowed)
    if isinstance(kind, value_types.Either):
        return " or ".join(_words(choice) for choice in kind.choices)
    if isinstance(kind, value_types.RecordOf):
        return f"[{kind.name}](#{kind.name})"
    if isinstance(kind, (value_types.MapOf, value_types.ListOf)) and (inner := _records(kind.item)):
        return f"{kind.what}, each {inner}"
    return kind.what


def _records(kind: Kind) -> str:
    """The kind in words, if there is more to say of it than its own name."""
    found: list[RecordOf] = []
    _collect(kind, found)
    return _words(kind) if found else ""
