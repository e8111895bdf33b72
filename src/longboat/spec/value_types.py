"""What a value of the job file may be: the small language in which `keys` is written.

Values alone, no behaviour: `reading` checks with them, `json_schema` and `reference` print them. They are
NamedTuples because every start of Longboat makes these classes, and a dataclass takes eight times as long to make.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from longboat.spec.scalars import Value

INTEGER_MOST = 2**53


class Text(NamedTuple):
    what: str = "a text"
    pattern: str = ""
    """A regular expression for the whole text."""
    allowed: tuple[str, ...] = ()
    loose: bool = False
    """A number or true/false is taken as it is written, and nothing as the empty text."""


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
    """One item may stand for a list of one."""


class MapOf(NamedTuple):
    item: Kind
    what: str = "a mapping"
    key: Text = Text()
    word: str = "key"
    """What a key of it is called in messages."""
    not_empty: bool = False


class Anything(NamedTuple):
    """Not Longboat's to check: handed on as it is."""

    what: str = "a mapping"
    shape: str = "mapping"
    """mapping, list or any."""


class Field(NamedTuple):
    name: str
    kind: Kind
    help: str
    default: Value = None
    """None: the key may be left out and then is not said."""
    required: bool = False
    example: str = ""
    also: tuple[str, ...] = ()
    """Words that other systems use for this key: for hints."""
    only: tuple[str, ...] = ()
    """Stands only beside one of these keys of the record's `one_of`."""


class RecordOf(NamedTuple):
    name: str
    help: str
    fields: tuple[Field, ...]
    one_of: tuple[str, ...] = ()
    """Exactly one of these keys must be there."""
    extensions: bool = False
    """Keys that begin with `x-` are left alone: a place for anchors."""
    what: str = "a mapping"

    @property
    def by_name(self) -> dict[str, Field]:
        return {field.name: field for field in self.fields}


class Either(NamedTuple):
    """Kinds that differ in being a scalar, a list or a mapping."""

    choices: tuple[Kind, ...]

    @property
    def what(self) -> str:
        return " or ".join(choice.what for choice in self.choices)


Kind = Text | Integer | Number | Flag | AnyScalar | Measure | ListOf | MapOf | Anything | RecordOf | Either
