"""Changes one param of a job file in place, for `longboat set`.

Only the characters of the value change: comments, order, quotes and line endings stay. The new text is parsed and
checked before it replaces the file, in one rename.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator

from longboat.runtime import atomic_file
from longboat.runtime.errors import LongboatError
from longboat.runtime.light_dataclasses import dataclass
from longboat.spec import loading
from longboat.spec.params import DeclaredParam, Params, mismatch, typed
from longboat.spec.problems import Problems, did_you_mean
from longboat.spec.scalars import plain
from longboat.spec.yaml_nodes import MapEntry, MapNode, ScalarNode, compose

_BOM = b"\xef\xbb\xbf"
_PROPERTIES = re.compile(r"(?:[&!][^\s,\[\]{}]*\s+)+")
"""Anchors and tags in front of a value."""


@dataclass(frozen=True)
class Change:
    file: str
    old: str
    """The value before the change, as written in the file."""
    count: int
    """How many places of the file use the param."""


def change(path: str | os.PathLike[str], name: str, text: str) -> Change:
    """Change the value of a param in the job file and return the old value."""
    file = loading.find(os.fspath(path))
    before = loading.read_text(file)
    tree = _params_of(before, file)
    declared = tree.declared.get(name)
    if declared is None:
        hint = did_you_mean(name, tree.declared, what="its params") or "the job file has no params"
        raise LongboatError(f"{file} has no param `{name}`", hint)
    wanted = typed(declared, text)
    wrong = mismatch(declared, wanted)
    if wrong:
        raise LongboatError(f"`{name}` {wrong}")
    if isinstance(wanted.value, float) and isinstance(plain(text), int):
        # Keep the point: without it the param would become an integer.
        wanted = wanted._replace(text=str(wanted.value))
    for after in _candidates(before, tree.entry(name), declared, wanted):
        if _reads_back(after, file, tree, name, wanted):
            break
    else:
        raise LongboatError(f"cannot change `{name}` without changing other parts of {file}", "edit the file by hand")
    job = loading.from_text(after, file, loading.JobSettings())
    _write(file, after)
    old = "" if declared.value is None or declared.value.value is None else declared.value.text
    return Change(file, old, next(param.count for param in job.params if param.name == name))


def _params_of(text: str, file: str) -> Params:
    problems = Problems(file, text)
    root = compose(text, problems)
    if problems.items or not isinstance(root, MapNode):
        # The loader reports the problems with positions.
        loading.from_text(text, file, loading.JobSettings())
        raise LongboatError(f"{file} is not a job file")
    return Params(root, problems)


def _reads_back(text: str, file: str, before: Params, name: str, wanted: ScalarNode) -> bool:
    """Whether the text is YAML with the new value for this param and all others unchanged."""
    problems = Problems(file, text)
    root = compose(text, problems)
    if problems.items or not isinstance(root, MapNode):
        return False
    after = Params(root, problems).declared
    if list(after) != list(before.declared):
        return False
    return all(_same(d.value, wanted if key == name else before.declared[key].value) for key, d in after.items())


def _same(first: ScalarNode | None, second: ScalarNode | None) -> bool:
    if first is None or second is None:
        return first is second
    return type(first.value) is type(second.value) and (first.value == second.value or first.text == second.text)


def _candidates(text: str, entry: MapEntry, declared: DeclaredParam, wanted: ScalarNode) -> Iterator[str]:
    """The file with the new value in each possible quoting style, the old style first."""
    old = declared.value
    styles = _styles(wanted.value, wanted.text)
    order = [old.style if old is not None and old.style in styles else "", "", "'", '"']
    for style in dict.fromkeys(order):
        if style in styles:
            yield _placed(text, entry, styles[style])


def _styles(value: object, text: str) -> dict[str, str]:
    if not isinstance(value, str):
        return {"": text or "null"}
    quoted = json.dumps(text, ensure_ascii=False)
    quoted = re.sub("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]", lambda m: f"\\u{ord(m[0]):04x}", quoted)
    styles = {'"': quoted}
    if text.isprintable():
        styles["'"] = "'" + text.replace("'", "''") + "'"
        if text and text == text.strip():
            styles[""] = text
    return styles


def _placed(text: str, entry: MapEntry, new: str) -> str:
    if isinstance(entry.value, MapNode) and "value" not in entry.value.entries:
        return _added(text, entry.value, new)
    if isinstance(entry.value, MapNode):
        entry = entry.value.entries["value"]
    start, end = entry.start, entry.end
    properties = _PROPERTIES.match(text, start, end)
    if properties:
        start = properties.end()
    old = text[start:end]
    if not old:
        colon = "" if text[:start].rstrip().endswith(":") else ":"
        space = "" if text[:start].endswith(" ") and not colon else " "
        follows = " " if text[end : end + 1] == "#" else ""
        return f"{text[:start]}{colon}{space}{new}{follows}{text[end:]}"
    # A block scalar includes its trailing line breaks, which must stay.
    breaks = old[len(old.rstrip("\r\n")) :]
    return text[:start] + new + breaks + text[end:]


def _added(text: str, mapping: MapNode, new: str) -> str:
    """The file with `value` added in front of the other keys of a param's mapping."""
    inside = [entry.key_start for entry in mapping.entries.values() if mapping.start <= entry.key_start < mapping.end]
    if mapping.flow:
        brace = text.index("{", mapping.start) + 1
        comma = ", " if inside else ""
        return f"{text[:brace]}value: {new}{comma}{text[brace:].lstrip(' ') if inside else text[brace:]}"
    if not inside:
        return text
    first = min(inside)
    line = max(text.rfind("\n", 0, first), text.rfind("\r", 0, first)) + 1
    newline = "\r\n" if "\r\n" in text else "\n"
    return f"{text[:first]}value: {new}{newline}{text[line:first]}{text[first:]}"


def _write(file: str, text: str) -> None:
    path = os.path.realpath(file)
    try:
        with open(path, "rb") as old:
            start = old.read(len(_BOM))
        state = os.stat(path)
        with atomic_file.replacing(path, durable=True) as unfinished, open(unfinished, "wb") as new:
            os.chmod(unfinished, state.st_mode & 0o7777)
            if os.stat(unfinished).st_uid != state.st_uid:
                os.chown(unfinished, state.st_uid, state.st_gid)
            new.write((_BOM if start == _BOM else b"") + text.encode())
    except OSError as error:
        raise LongboatError(f"cannot write {file}: {error.strerror or error}") from None
