"""Types of values in the job file, used by the key tables `job_keys` and `stage_keys`.

They hold no behaviour: `validation` checks with them, `json_schema` and `key_reference` print them. They are
NamedTuples because every start of Longboat creates these classes, and a dataclass takes eight times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from longboat.spec.scalars import Value

INTEGER_MOST = 2**53


class Text(NamedTuple):
    what: str = "a text"
    pattern: str = ""
    """A regular expression that must match the full text."""
    allowed: tuple[str, ...] = ()
    loose: bool = False
    """Numbers and booleans are accepted as text, null as the empty text."""


class Integer(NamedTuple):
    least: int = 0
    most: int = INTEGER_MOST

    @property
    def what(self) -> str:
        upper = "up" if self.most == INTEGER_MOST else f"to {self.most}"
        return f"a whole number from {self.least} {upper}"


class Number(NamedTuple):
    what: str = "a number"


class Flag(NamedTuple):
    what: str = "true or false"


class AnyScalar(NamedTuple):
    what: str = "a text, a number, true, false or nothing"


class Measure(NamedTuple):
    """A number with a unit: duration, memory, cores."""

    what: str
    parse: Callable[[Value], float | int | None]
    pattern: str


class ListOf(NamedTuple):
    item: Kind
    what: str = "a list"
    or_one: bool = False
    """A single item is accepted as a list of one."""


class MapOf(NamedTuple):
    item: Kind
    what: str = "a mapping"
    key: Text = Text()
    word: str = "key"
    """Name of a key in messages."""
    not_empty: bool = False


class Anything(NamedTuple):
    """Any value: passed on without a check."""

    what: str = "a mapping"
    shape: str = "mapping"
    """mapping, list or any."""


class Field(NamedTuple):
    name: str
    kind: Kind
    help: str
    default: Value = None
    """None: the key is optional and has no default."""
    required: bool = False
    example: str = ""
    also: tuple[str, ...] = ()
    """Names of this key in other systems, for hints."""
    only: tuple[str, ...] = ()
    """Allowed only together with one of these keys of the record's `one_of`."""


class RecordOf(NamedTuple):
    name: str
    help: str
    fields: tuple[Field, ...]
    one_of: tuple[str, ...] = ()
    """Exactly one of these keys is required."""
    extensions: bool = False
    """Ignore keys that start with `x-`, so that they can hold anchors."""
    what: str = "a mapping"

    @property
    def by_name(self) -> dict[str, Field]:
        return {field.name: field for field in self.fields}


class Either(NamedTuple):
    """One of several types, told apart by scalar, list or mapping."""

    choices: tuple[Kind, ...]

    @property
    def what(self) -> str:
        return " or ".join(choice.what for choice in self.choices)


Kind = Text | Integer | Number | Flag | AnyScalar | Measure | ListOf | MapOf | Anything | RecordOf | Either
