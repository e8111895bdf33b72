"""The key tables as JSON Schema 2020-12, for editors (`longboat schema`).

Every key also accepts a text with `${…}`: the value of a param is known only when the job is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from longboat.spec import job_keys, value_types
from longboat.spec.value_types import Kind

Schema = dict[str, Any]

_USES_PARAM: Schema = {"type": "string", "pattern": r"\$\{"}
_NULL: Schema = {"type": "null"}


def document() -> Schema:
    definitions: dict[str, Schema] = {}
    job = _schema(job_keys.JOB, definitions)
    short = _schema(job_keys.SHORT_JOB, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Longboat job file",
        "description": "One job: params, code, storage and stages.",
        "if": {"required": ["stages"]},
        "then": job,
        "else": short,
        "$defs": definitions,
    }


def _schema(kind: Kind, definitions: dict[str, Schema]) -> Schema:
    if type(kind) in _LEAVES:
        return _LEAVES[type(kind)](kind)
    return _NESTED[type(kind)](kind, definitions)


def _or_param(schema: Schema) -> Schema:
    return {"anyOf": [schema, _USES_PARAM]}


def _text(kind: value_types.Text) -> Schema:
    if kind.allowed:
        return _or_param({"enum": list(kind.allowed)})
    schema: Schema = {"type": ["string", "number", "boolean", "null"] if kind.loose else "string"}
    return _or_param({**schema, "pattern": f"^(?:{kind.pattern})$"}) if kind.pattern else schema


def _integer(kind: value_types.Integer) -> Schema:
    return _or_param({"type": "integer", "minimum": kind.least, "maximum": kind.most})


def _measure(kind: value_types.Measure) -> Schema:
    return {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": kind.pattern}, _USES_PARAM]}


def _list_of(kind: value_types.ListOf, definitions: dict[str, Schema]) -> Schema:
    item = _schema(kind.item, definitions)
    schema = {"type": "array", "items": item}
    return {"anyOf": [item, schema]} if kind.or_one else schema


def _map_of(kind: value_types.MapOf, definitions: dict[str, Schema]) -> Schema:
    schema: Schema = {"type": "object", "additionalProperties": _or_null(_schema(kind.item, definitions), kind.item)}
    if kind.key.pattern:
        schema["propertyNames"] = {"pattern": f"^(?:{kind.key.pattern})$"}
    if kind.not_empty:
        schema["minProperties"] = 1
    return schema


def _anything(kind: value_types.Anything) -> Schema:
    return {"type": {"mapping": "object", "list": "array"}[kind.shape]} if kind.shape != "any" else {}


def _record(kind: value_types.RecordOf, definitions: dict[str, Schema]) -> Schema:
    if kind.name not in definitions:
        definitions[kind.name] = {}
        definitions[kind.name].update(_object(kind, definitions))
    return {"$ref": f"#/$defs/{kind.name.replace(' ', '%20')}"}


def _object(kind: value_types.RecordOf, definitions: dict[str, Schema]) -> Schema:
    properties: dict[str, Schema] = {}
    for field in kind.fields:
        schema = _schema(field.kind, definitions)
        schema = {**(schema if field.required else _or_null(schema, field.kind)), "description": field.help}
        if field.default is not None:
            schema["default"] = field.default
        if field.example:
            schema["examples"] = [field.example]
        properties[field.name] = schema
    record: Schema = {
        "type": "object",
        "description": kind.help,
        "properties": properties,
        "additionalProperties": False,
    }
    required = [field.name for field in kind.fields if field.required]
    if required:
        record["required"] = required
    if kind.one_of:
        record["oneOf"] = [_alternative(kind, key) for key in kind.one_of]
    if kind.extensions:
        record["patternProperties"] = {"^x-": {}}
    return record


def _alternative(kind: value_types.RecordOf, key: str) -> Schema:
    """The record with this alternative: keys of the other alternatives are not allowed."""
    barred = [field.name for field in kind.fields if field.only and key not in field.only]
    return {"required": [key], **({"properties": dict.fromkeys(barred, False)} if barred else {})}


def _either(kind: value_types.Either, definitions: dict[str, Schema]) -> Schema:
    return {"anyOf": [_schema(choice, definitions) for choice in kind.choices]}


def _or_null(schema: Schema, kind: Kind) -> Schema:
    """Allow null, which counts as left out, except where a mapping is needed."""
    if isinstance(kind, value_types.RecordOf) or schema == {}:
        return schema
    return {"anyOf": [schema, _NULL]}


_LEAVES: dict[type, Callable[[Any], Schema]] = {
    value_types.Text: _text,
    value_types.Integer: _integer,
    value_types.Number: lambda _: _or_param({"type": "number"}),
    value_types.Flag: lambda _: _or_param({"type": "boolean"}),
    value_types.AnyScalar: lambda _: {"type": ["string", "number", "boolean", "null"]},
    value_types.Measure: _measure,
    value_types.Anything: _anything,
}

_NESTED: dict[type, Callable[[Any, dict[str, Schema]], Schema]] = {
    value_types.ListOf: _list_of,
    value_types.MapOf: _map_of,
    value_types.RecordOf: _record,
    value_types.Either: _either,
}
