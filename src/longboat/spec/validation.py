"""Checks YAML nodes against the key tables and returns typed values.

A wrong value is reported and then treated as left out, so that one pass finds all problems of the file.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from longboat.runtime.light_dataclasses import dataclass
from longboat.spec import scalars, value_types
from longboat.spec.problems import Problems, Span, did_you_mean
from longboat.spec.value_types import Kind
from longboat.spec.yaml_nodes import ListNode, MapNode, Node, ScalarNode


@dataclass(frozen=True)
class Section:
    """A validated mapping of the file: values by key, with defaults, and their positions."""

    span: Span
    values: Mapping[str, object]
    spans: Mapping[str, Span]
    """Positions of the values in the file."""

    def has(self, key: str) -> bool:
        """Whether the file has a value for this key, valid or not."""
        return key in self.spans

    def where(self, key: str) -> Span:
        return self.spans.get(key, self.span)

    def text(self, key: str) -> str:
        return cast(str, self.values.get(key) or "")

    def texts(self, key: str) -> tuple[str, ...]:
        return cast(tuple[str, ...], self.values.get(key) or ())

    def integer(self, key: str, default: int = 0) -> int:
        value = self.values.get(key)
        return default if value is None else cast(int, value)

    def whole(self, key: str) -> int | None:
        return cast("int | None", self.values.get(key))

    def number(self, key: str) -> float | None:
        return cast("float | None", self.values.get(key))

    def seconds(self, key: str) -> float:
        return cast(float, self.values.get(key) or 0.0)

    def flag(self, key: str) -> bool:
        return bool(self.values.get(key))

    def section(self, key: str) -> Section | None:
        return cast("Section | None", self.values.get(key))

    def map(self, key: str) -> Mapping[str, object]:
        value = self.values.get(key)
        return value.values if isinstance(value, Section) else {}

    def json(self, key: str, default: str) -> str:
        """The value as JSON, for keys that Longboat passes on unread."""
        value = self.values.get(key)
        return default if value is None else json.dumps(value, ensure_ascii=False)


def read(kind: Kind, node: Node, problems: Problems, name: str) -> object:
    """The value of the node, or None if it is empty, wrong, or uses a required param without a value."""
    if isinstance(node, ScalarNode) and node.unset:
        return None
    return _READERS[type(kind)](kind, node, problems, name)


def _wrong(kind: Kind, node: Node, problems: Problems, name: str, hint: str = "") -> None:
    if isinstance(node, ScalarNode):
        actual = scalars.describe(node.value) + (" (from `${…}`)" if node.filled else "")
    else:
        actual = "a list" if isinstance(node, ListNode) else "a mapping"
    problems.add(node.span, f"`{name}` must be {kind.what}, not {actual}", hint)


def _text(kind: value_types.Text, node: Node, problems: Problems, name: str) -> object:
    if not isinstance(node, ScalarNode):
        _wrong(kind, node, problems, name)
        return None
    if node.value is None and not kind.loose:
        return None
    if not isinstance(node.value, str) and not kind.loose and not node.filled:
        _wrong(kind, node, problems, name, f'put it in quotes: "{node.text}"')
        return None
    text = "" if node.value is None else node.text
    if "\0" in text:
        problems.add(node.span, f"`{name}` contains a NUL character")
        return None
    if kind.allowed and text not in kind.allowed:
        problems.add(node.span, f"`{name}` cannot be `{text}`", did_you_mean(text, kind.allowed))
        return None
    if kind.pattern and not re.fullmatch(kind.pattern, text):
        problems.add(node.span, f"`{name}` must be {kind.what}, not {scalars.describe(text)}")
        return None
    return text


def _integer(kind: value_types.Integer, node: Node, problems: Problems, name: str) -> object:
    if isinstance(node, ScalarNode) and node.value is None:
        return None
    if not isinstance(node, ScalarNode) or isinstance(node.value, bool) or not isinstance(node.value, int):
        unquoted = isinstance(node, ScalarNode) and isinstance(node.value, str) and scalars.plain(node.value)
        _wrong(kind, node, problems, name, "remove the quotes" if type(unquoted) is int else "")
        return None
    if not kind.least <= node.value <= kind.most:
        _wrong(kind, node, problems, name)
        return None
    return node.value


def _number(kind: value_types.Number, node: Node, problems: Problems, name: str) -> object:
    if isinstance(node, ScalarNode) and node.value in (None, ""):  # an empty param
        return None
    if isinstance(node, ScalarNode) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        try:
            if math.isfinite(number := float(node.value)):
                return number
        except OverflowError:
            pass
    _wrong(kind, node, problems, name)
    return None


def _flag(kind: value_types.Flag, node: Node, problems: Problems, name: str) -> object:
    if isinstance(node, ScalarNode) and (node.value is None or isinstance(node.value, bool)):
        return node.value
    _wrong(kind, node, problems, name)
    return None


def _any_scalar(kind: value_types.AnyScalar, node: Node, problems: Problems, name: str) -> object:
    if isinstance(node, ScalarNode):
        return node.value
    _wrong(kind, node, problems, name)
    return None


def _measure(kind: value_types.Measure, node: Node, problems: Problems, name: str) -> object:
    if isinstance(node, ScalarNode):
        if node.value is None:
            return None
        amount = kind.parse(node.value)
        if amount is not None:
            return amount
    _wrong(kind, node, problems, name)
    return None


def _list_of(kind: value_types.ListOf, node: Node, problems: Problems, name: str) -> object:
    if isinstance(node, ScalarNode) and node.value is None:
        return None
    if not isinstance(node, ListNode):
        if not kind.or_one:
            _wrong(kind, node, problems, name)
            return None
        node = ListNode(node.span, (node,))
    values = []
    for item in node.items:
        if isinstance(item, ScalarNode) and item.value is None and not item.unset:
            problems.add(item.span, f"an item of `{name}` is empty")
            continue
        value = read(kind.item, item, problems, f"item of {name}" if len(node.items) > 1 or not kind.or_one else name)
        if value is not None:
            values.append(value)
    return tuple(values)


def _map_of(kind: value_types.MapOf, node: Node, problems: Problems, name: str) -> object:
    if isinstance(node, ScalarNode) and node.value is None and not kind.not_empty:
        return None
    if not isinstance(node, MapNode):
        _wrong(kind, node, problems, name)
        return None
    if kind.not_empty and not node.entries:
        problems.add(node.span, f"`{name}` is empty")
    values: dict[str, object] = {}
    spans: dict[str, Span] = {}
    for key, entry in node.entries.items():
        if kind.key.pattern and not re.fullmatch(kind.key.pattern, key):
            problems.add(entry.key, f"the {kind.word} `{key}` must be {kind.key.what}")
            continue
        if kind.key.allowed and key not in kind.key.allowed:
            problems.add(entry.key, f"unknown {kind.word} `{key}`", did_you_mean(key, kind.key.allowed))
            continue
        spans[key] = entry.key
        if isinstance(entry.value, ScalarNode) and entry.value.unset:
            continue
        values[key] = read(kind.item, entry.value, problems, key)
    return Section(node.span, values, spans)


def _anything(kind: value_types.Anything, node: Node, problems: Problems, name: str) -> object:
    is_list, is_map = isinstance(node, ListNode), isinstance(node, MapNode)
    if isinstance(node, ScalarNode) and node.value is None:
        return None
    if kind.shape != "any" and not (is_map if kind.shape == "mapping" else is_list):
        _wrong(kind, node, problems, name)
        return None
    return plain_value(node, problems)


def plain_value(node: Node, problems: Problems) -> object:
    """The node as JSON values: lists, dicts and scalars."""
    if isinstance(node, ListNode):
        return [plain_value(item, problems) for item in node.items]
    if isinstance(node, MapNode):
        return {key: plain_value(entry.value, problems) for key, entry in node.entries.items()}
    if isinstance(node.value, float) and not math.isfinite(node.value):
        problems.add(node.span, "a number must be finite")
        return None
    return node.value


def _record(kind: value_types.RecordOf, node: Node, problems: Problems, name: str) -> object:
    if not isinstance(node, MapNode):
        _wrong(kind, node, problems, name)
        return None
    values: dict[str, object] = {field.name: field.default for field in kind.fields if field.default is not None}
    spans: dict[str, Span] = {}
    chosen = [key for key in kind.one_of if key in node.entries]
    known = kind.by_name
    for key, entry in node.entries.items():
        field = known.get(key)
        if field is None:
            if not (kind.extensions and key.startswith("x-")):
                _unknown(kind, key, entry.key, problems)
            continue
        if chosen and field.only and not set(field.only) & set(chosen):
            problems.add(entry.key, f"`{key}` cannot be used with `{chosen[0]}`", f"use it with {_listed(field.only)}")
            continue
        value = read(field.kind, entry.value, problems, key)
        empty = isinstance(entry.value, ScalarNode) and entry.value.value is None and not entry.value.unset
        must = field.required or key in kind.one_of and not isinstance(field.kind, value_types.Anything)
        if must and empty:
            problems.add(entry.key, f"`{key}` is empty", _example(field))
        if not empty or key in kind.one_of:
            spans[key] = entry.value.span
        if value is not None:
            values[key] = value
    for field in kind.fields:
        if field.required and field.name not in node.entries:
            problems.add(node.span, f"`{field.name}` is missing {_of(name)}".rstrip(), _example(field))
    _check_one_of(kind, node, chosen, problems, name)
    return Section(node.span, values, spans)


def _check_one_of(kind: value_types.RecordOf, node: MapNode, chosen: list[str], problems: Problems, name: str) -> None:
    if not kind.one_of:
        return
    if not chosen:
        unknown = [key for key in node.entries if key not in kind.by_name]
        if not any(_meant(kind, key) in kind.one_of for key in unknown):
            problems.add(node.span, f"{_of(name).removeprefix('in ') or 'the file'} needs {_listed(kind.one_of)}")
    for key in chosen[1:]:
        problems.add(node.entries[key].key, f"`{key}` cannot be used with `{chosen[0]}`", "keep one of them")


def _of(name: str) -> str:
    return f"in `{name}`" if name else ""


def _listed(keys: tuple[str, ...]) -> str:
    quoted = [f"`{key}`" for key in keys]
    return quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + " or " + quoted[-1]


def _example(field: value_types.Field) -> str:
    return f"for example `{field.name}: {field.example}`" if field.example else field.help


def _others(kind: value_types.RecordOf) -> dict[str, str]:
    return {word: field.name for field in kind.fields for word in field.also}


def _meant(kind: value_types.RecordOf, key: str) -> str:
    from longboat.spec.problems import nearest

    return nearest(key, kind.by_name, _others(kind))


def _unknown(kind: value_types.RecordOf, key: str, span: Span, problems: Problems) -> None:
    problems.add(span, f"unknown key `{key}`", did_you_mean(key, kind.by_name, _others(kind), "the keys here"))


def _either(kind: value_types.Either, node: Node, problems: Problems, name: str) -> object:
    for choice in kind.choices:
        if isinstance(node, _SHAPES[type(choice)]):
            return read(choice, node, problems, name)
    _wrong(kind, node, problems, name)
    return None


_Reader = Callable[[Any, Node, Problems, str], object]

_READERS: dict[type, _Reader] = {
    value_types.Text: _text,
    value_types.Integer: _integer,
    value_types.Number: _number,
    value_types.Flag: _flag,
    value_types.AnyScalar: _any_scalar,
    value_types.Measure: _measure,
    value_types.ListOf: _list_of,
    value_types.MapOf: _map_of,
    value_types.Anything: _anything,
    value_types.RecordOf: _record,
    value_types.Either: _either,
}

_SHAPES: dict[type, type] = {
    **dict.fromkeys(
        (
            value_types.Text,
            value_types.Integer,
            value_types.Number,
            value_types.Flag,
            value_types.AnyScalar,
            value_types.Measure,
        ),
        ScalarNode,
    ),
    value_types.ListOf: ListNode,
    **dict.fromkeys((value_types.MapOf, value_types.RecordOf, value_types.Anything), MapNode),
}
