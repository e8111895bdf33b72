"""Parses YAML into a tree in which every key and value has a position.

It uses the events of PyYAML's parser instead of its composer for three reasons: scalars follow YAML 1.2; deep nesting
and alias bombs are rejected before they use memory; problems are collected instead of raised one by one. Nothing here
is specific to jobs.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, cast

from longboat.runtime.light_dataclasses import dataclass, field
from longboat.spec import scalars
from longboat.spec.problems import LINE_BREAK, Problems, Span

Event = Any
"""An event of PyYAML. Its type stubs lack the marks that the parser always sets."""

DEEPEST = 60
LARGEST = 100_000
"""Maximum number of nodes after alias expansion."""


class ScalarNode(NamedTuple):
    span: Span
    value: scalars.Value
    text: str
    plain: bool = True
    start: int = 0
    end: int = 0
    """Start and end of the value in the text of the file."""
    style: str = ""
    filled: bool = False
    """Whether a `${NAME}` in it was replaced."""
    unset: bool = False
    """Whether it uses a required param without a value, which is reported once, for the param."""


class ListNode(NamedTuple):
    span: Span
    items: tuple[Node, ...]


class MapEntry(NamedTuple):
    key: Span
    value: Node
    key_start: int = 0
    start: int = 0
    end: int = 0
    """Start of the key, start and end of the value in the text; for an alias, where it is used."""


class MapNode(NamedTuple):
    span: Span
    entries: dict[str, MapEntry]
    start: int = 0
    end: int = 0
    flow: bool = False


Node = ScalarNode | ListNode | MapNode


class _Stop(Exception):
    """Parsing cannot continue; the problem is already recorded."""


@dataclass
class _Builder:
    problems: Problems
    text: str
    parser: Any
    anchors: dict[str, tuple[Node, int] | None] = field(default_factory=dict)
    """Name -> the node and its size after alias expansion; None while it is being built."""

    def event(self) -> Event:
        return self.parser.get_event()

    def span(self, event: Event) -> Span:
        start, end = event.start_mark, event.end_mark
        length = end.index - start.index if end.line == start.line else self._rest_of_line(start.index)
        return Span(start.line + 1, start.column + 1, max(1, length))

    def _rest_of_line(self, start: int) -> int:
        end = start
        while end < len(self.text) and self.text[end] not in "\r\n":
            end += 1
        return end - start

    def node(self, event: Event, depth: int) -> tuple[Node, int]:
        from yaml import events

        if isinstance(event, events.AliasEvent):
            return self.alias(event)
        if depth > DEEPEST:
            self.problems.add(self.span(event), f"the file is nested more than {DEEPEST} levels deep")
            raise _Stop
        anchor = event.anchor
        if anchor:
            self.anchors[anchor] = None
        if isinstance(event, events.ScalarEvent):
            built: tuple[Node, int] = self.scalar(event), 1
        elif isinstance(event, events.SequenceStartEvent):
            self.tag(event, ("seq",))
            built = self.items(event, depth)
        else:
            self.tag(event, ("map",))
            built = self.entries(event, depth)
        if anchor:
            self.anchors[anchor] = built
        return built

    def alias(self, event: Event) -> tuple[Node, int]:
        anchored = self.anchors.get(event.anchor)
        if anchored is None:
            inside = event.anchor in self.anchors
            message = (
                f"`*{event.anchor}` refers to itself" if inside else f"anchor `&{event.anchor}` is not defined above"
            )
            self.problems.add(self.span(event), message)
            raise _Stop
        return anchored

    def scalar(self, event: Event) -> ScalarNode:
        tag = self.tag(event, ("str", "int", "float", "bool", "null"))
        is_plain = event.style in (None, "") and tag in ("", "int", "float", "bool", "null")
        value = scalars.plain(event.value) if is_plain or tag not in ("", "str") else event.value
        return ScalarNode(
            self.span(event),
            value,
            event.value,
            plain=is_plain,
            start=event.start_mark.index,
            end=event.end_mark.index,
            style=event.style or "",
        )

    def tag(self, event: Event, known: tuple[str, ...]) -> str:
        if event.tag in (None, "!"):
            return "str" if event.tag and "str" in known else ""
        short: str = event.tag.removeprefix("tag:yaml.org,2002:")
        if short in known:
            return short
        shown = "!!" + short if short != event.tag else short
        self.problems.add(self.span(event), f"unknown tag `{shown}`", "remove the tag")
        return ""

    def items(self, start: Event, depth: int) -> tuple[Node, int]:
        from yaml.events import SequenceEndEvent

        items, size = [], 1
        while not isinstance(event := self.event(), SequenceEndEvent):
            node, more = self.node(event, depth + 1)
            items.append(node)
            size = self.grown(event, size + more)
        return ListNode(self.span(start), tuple(items)), size

    def entries(self, start: Event, depth: int) -> tuple[Node, int]:
        from yaml.events import MappingEndEvent

        entries: dict[str, MapEntry] = {}
        merged: dict[str, MapEntry] = {}
        size = 1
        while not isinstance(event := self.event(), MappingEndEvent):
            key, _ = self.node(event, depth + 1)
            value_event = self.event()
            value, more = self.node(value_event, depth + 1)
            size = self.grown(value_event, size + more)
            if not isinstance(key, ScalarNode):
                self.problems.add(self.span(event), "a key must be a scalar, not a list or a mapping")
            elif key.plain and key.text == "<<":
                self.merge(value_event, value, merged)
            elif key.text in entries:
                first = entries[key.text].key.line
                self.problems.add(key.span, f"duplicate key `{key.text}`", f"it is already defined on line {first}")
            else:
                marks = (key.start, value_event.start_mark.index, value_event.end_mark.index)
                entries[key.text] = MapEntry(key.span, value, *marks)
        mapping = MapNode(
            self.span(start),
            {**{key: entry for key, entry in merged.items() if key not in entries}, **entries},
            start.start_mark.index,
            cast(Any, event).end_mark.index,
            bool(start.flow_style),
        )
        return mapping, size

    def merge(self, event: Event, value: Node, merged: dict[str, MapEntry]) -> None:
        """Merge the keys of one or several mappings (`<<:`); the first definition of a key wins."""
        for node in value.items if isinstance(value, ListNode) else (value,):
            if isinstance(node, MapNode):
                for key, entry in node.entries.items():
                    merged.setdefault(key, entry)
            else:
                self.problems.add(self.span(event), "`<<` needs a mapping or a list of mappings")

    def grown(self, event: Event, size: int) -> int:
        if size > LARGEST:
            self.problems.add(self.span(event), f"the file has more than {LARGEST:,} values after alias expansion")
            raise _Stop
        return size


def compose(text: str, problems: Problems) -> Node | None:
    """The tree of the document in the text, or None if it cannot be parsed."""
    import yaml
    from yaml import events

    bad = _first_unprintable(text)
    if bad is not None:
        problems.add(place(text, bad), f"the character U+{ord(text[bad]):04X} is not allowed in YAML")
        return None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    builder = _Builder(problems, text, loader)
    try:
        while not isinstance(event := builder.event(), (events.DocumentStartEvent, events.StreamEndEvent)):
            pass
        if isinstance(event, events.StreamEndEvent):
            problems.add(Span(1, 1), "the file is empty", "create a job file with `longboat init --from train.py`")
            return None
        root, _ = builder.node(builder.event(), 0)
        builder.event()
        after = builder.event()
        if not isinstance(after, events.StreamEndEvent):
            problems.add(
                builder.span(after),
                "a second YAML document starts here",
                "remove `---`: a job file is a single document",
            )
        return root
    except _Stop:
        return None
    except yaml.MarkedYAMLError as error:
        _add_yaml_error(error, text, problems)
        return None
    except (yaml.YAMLError, RecursionError) as error:
        problems.add(Span(1, 1), f"not valid YAML: {' '.join(str(error).split())}")
        return None
    finally:
        loader.dispose()


def _add_yaml_error(error: Any, text: str, problems: Problems) -> None:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        problems.add(Span(1, 1), f"not valid YAML: {error.problem or error}")
        return
    span = Span(mark.line + 1, mark.column + 1)
    line = _line_of(text, min(mark.index, len(text)))
    indent = line[: len(line) - len(line.lstrip())]
    if "\t" in indent:
        problems.add(
            Span(span.line, indent.index("\t") + 1, indent.count("\t")), "tabs cannot indent YAML", "use spaces"
        )
        return
    reason = " ".join(part for part in (error.context, error.problem) if part)
    hint = ""
    if "${" in line and "{" in line.replace("${", ""):
        hint = 'inside { } and [ ], put "${NAME}" in quotes'
    elif ": " in line.split(": ", 1)[-1]:
        hint = "put a value that contains `: ` in quotes"
    problems.add(span, f"not valid YAML: {reason}", hint)


def _line_of(text: str, index: int) -> str:
    start = max(text.rfind("\n", 0, index), text.rfind("\r", 0, index)) + 1
    ends = [end for end in (text.find("\n", index), text.find("\r", index)) if end >= 0]
    return text[start : min(ends, default=len(text))]


def place(text: str, index: int, length: int = 1) -> Span:
    """Position of a character of the text."""
    lines = LINE_BREAK.split(text[:index])
    return Span(len(lines), len(lines[-1]) + 1, length)


def _first_unprintable(text: str) -> int | None:
    # ASCII first: the full pattern takes milliseconds to compile.
    if text.isascii():
        match = re.search(r"[^\t\n\r -~]", text)
    else:
        match = re.search("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", text)
    return match.start() if match else None
