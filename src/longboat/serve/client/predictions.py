"""What an answer means: which output is the prediction, which label it names, how sure it is.

Models differ in how they say it (a class, a share for each class, one share, logits, a sign);
the table here is the one place that knows. No I/O.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from longboat.serve.client.example_files import Label

CLASSES = ("class", "classes", "label", "labels", "class_ids", "prediction", "predictions", "predicted")
SHARES = ("probabilities", "probability", "scores", "score", "logistic", "logits", "logit", "outputs", "output")
LOGITS = ("logits", "logit")


@dataclass(frozen=True)
class Predicted:
    """One row's prediction. `share` is from 0 to 1, or None where the model does not say."""

    value: Label
    """A class's number or name, or the figure itself where the model gives no class."""
    share: float | None = None
    is_class: bool = True


@cache
def chosen(outputs: tuple[str, ...], wanted: str = "") -> str:
    """Which output is the prediction."""
    if wanted:
        return wanted
    for table in (SHARES, CLASSES):
        for name in table:
            if name in outputs:
                return name
    return outputs[0]


def read(
    columns: Mapping[str, Sequence[Any]], labels: tuple[str, ...] = (), wanted: str = "", sure: bool = True
) -> list[Predicted]:
    """The prediction of every row; `sure` asks for its share too, which costs more than all the rest."""
    name = chosen(tuple(columns), wanted)
    if len(columns) == 1:
        return [_row(value, name, labels, None, sure) for value in columns[name]]
    beside = next((columns[each] for each in ("all_classes", *CLASSES) if each in columns and each != name), ())
    return [
        _row(value, name, labels, beside[i] if i < len(beside) else None, sure) for i, value in enumerate(columns[name])
    ]


def right(said: Predicted, truth: Label, labels: tuple[str, ...] = ()) -> bool | None:
    """Does the prediction name the label; None where that cannot be asked (a figure, not a class)."""
    if said.is_class:
        return _known(said.value, labels) == _known(truth, labels)
    value = said.value
    if isinstance(value, str) or truth not in (-1, 0, 1):
        return None
    if value != value:
        return False
    if truth == -1 or (truth == 1 and value < 0):
        return (value >= 0) == (truth == 1)
    return (value >= 0.5) == (truth == 1)


@lru_cache(maxsize=10_000, typed=True)
def _known(value: Label, labels: tuple[str, ...]) -> int | str:
    """A class under one name: its place in the labels by its name, else by its number. `1.0` is `1`."""
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    if text in labels:
        return labels.index(text)
    return int(text) if text.lstrip("-").isdecimal() else text


def shares(values: Sequence[float]) -> list[float]:
    """Shares that add up to one: as they are, or logits put through softmax."""
    if all(0 <= value <= 1 for value in values) and abs(sum(values) - 1) < 0.02:
        return list(values)
    top = max(values)
    powers = [math.exp(value - top) for value in values]
    return [power / sum(powers) for power in powers]


def _row(value: Any, name: str, labels: Sequence[str], classes: Any, sure: bool) -> Predicted:
    if isinstance(value, list):
        if len(value) == 1:
            return _row(value[0], name, labels, classes, sure)
        return _vector(value, labels, classes, sure)
    if value is None:
        return Predicted(math.nan, None, False)
    if isinstance(value, bool):
        return Predicted(_label(int(value), labels))
    if isinstance(value, str):
        return Predicted(value)
    if isinstance(value, int) and name not in SHARES:
        return Predicted(_label(value, labels))
    return _figure(float(value), name, labels)


def _vector(values: list[Any], labels: Sequence[str], classes: Any, sure: bool) -> Predicted:
    """A figure for each class: the largest is the prediction. One that is no number leaves no prediction."""
    try:
        total = sum(values)
    except TypeError:
        return Predicted(str(values), None, False)
    if total != total or not values:
        return Predicted(math.nan, None, False)
    best = values.index(max(values))
    named = classes[best] if isinstance(classes, list) and len(classes) == len(values) else _only(classes)
    share = shares(values)[best] if sure and math.isfinite(total) else None
    return Predicted(named if isinstance(named, str) else _label(best, labels), share)


def _only(value: Any) -> Any:
    """The class that stands beside the shares: the model's own word for the best."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _figure(value: float, name: str, labels: Sequence[str]) -> Predicted:
    """One figure: with two labels it is the second one's share, a logit, or a sign."""
    if name in LOGITS and math.isfinite(value):
        value = 1 / (1 + math.exp(-max(-700.0, min(700.0, value))))
    if len(labels) != 2 or not math.isfinite(value):
        return Predicted(value, None, False)
    if name not in LOGITS and set(labels) in ({"-1", "1"}, {"-1", "+1"}):
        value = (1 + max(-1.0, min(1.0, value))) / 2
    if not 0 <= value <= 1:
        return Predicted(value, None, False)
    return Predicted(labels[value >= 0.5], max(value, 1 - value))


def _label(number: int, labels: Sequence[str]) -> Label:
    return labels[number] if 0 <= number < len(labels) else number
