"""Scalars: plain YAML values, durations, amounts of memory and CPU cores.

Plain values follow the core schema of YAML 1.2: `no`, `on` and `12:30` are texts and `010` is ten.
"""

from __future__ import annotations

import json
import math
import re

Value = str | int | float | bool | None

_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_SPECIAL = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_LONGEST_NUMBER = 100
"""Longer numbers are read as text."""


def plain(text: str) -> Value:
    """The value of a plain (unquoted) scalar."""
    if text in _WORDS:
        return _WORDS[text]
    if not text or text[0] not in "-+.0123456789" or len(text) > _LONGEST_NUMBER:
        return text
    if _INTEGER.fullmatch(text):
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _SPECIAL.fullmatch(text):
        return float(text.replace(".", ""))
    return text


def describe(value: Value) -> str:
    """The value as shown in messages: `the text "abc"`, `true`, `5`, `nothing`."""
    if value is None:
        return "nothing"
    if isinstance(value, str):
        shown = value if len(value) <= 40 else value[:39] + "…"
        return f"the text {json.dumps(shown, ensure_ascii=False)}"
    return written(value)


def written(value: Value) -> str:
    """The value as `${NAME}` inserts it into a longer text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d|w)")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
DURATION_PATTERN = r"^\s*([0-9]+(\.[0-9]+)?\s*(ms|s|m|h|d|w)\s*)+$"


def duration(value: Value) -> float | None:
    """Seconds from a number or a text such as 30s, 5m, 1h30m, 2d. None if it is not a duration."""
    if isinstance(value, str):
        text = value.strip()
        if not text or _PART.sub("", text).strip():
            return None
        value = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
    return _positive(value)


_MEMORY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kKMGTPE]i?|)B?\s*")
_FACTORS = {letter: (1000 ** (i + 1), 1024 ** (i + 1)) for i, letter in enumerate("KMGTPE")}
MEMORY_PATTERN = r"^\s*[0-9]+(\.[0-9]+)?\s*([kKMGTPE]i?)?B?\s*$"


def memory(value: Value) -> int | None:
    """Bytes from a number or a text such as 4Gi (1024s), 500M (1000s). None if it is not an amount of memory."""
    if isinstance(value, str):
        match = _MEMORY.fullmatch(value)
        if not match:
            return None
        digits, unit = match.groups()
        value = float(digits) * (_FACTORS[unit[0].upper()][len(unit) - 1] if unit else 1)
    number = _positive(value)
    return None if number is None or number < 1 or number > 2**63 else int(number)


_CORES = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)(m?)\s*")
CORES_PATTERN = r"^\s*[0-9]+(\.[0-9]+)?m?\s*$"


def cores(value: Value) -> float | None:
    """CPU cores from a number or a text such as 2, 0.5 or 500m. None if it is not a number of cores."""
    if isinstance(value, str):
        match = _CORES.fullmatch(value)
        if not match:
            return None
        value = float(match[1]) / (1000 if match[2] else 1)
    number = _positive(value)
    return number if number else None


def _positive(value: Value) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and 0 <= number < 1e18 * 10 else None
