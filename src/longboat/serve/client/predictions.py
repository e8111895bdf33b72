"""Interprets a model's outputs: predicted class, label and probability.

Models return a class, a probability for each class, one probability, logits or a sign. All of that is handled here.
No I/O.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

from longboat.runtime.light_dataclasses import dataclass
from longboat.serve.client.example_files import Label

CLASSES = ("class", "classes", "label", "labels", "class_ids", "prediction", "predictions", "predicted")
SHARES = ("probabilities", "probability", "scores", "score", "logistic", "logits", "logit", "outputs", "output")
LOGITS = ("logits", "logit")


@dataclass(frozen=True)
class Predicted:
    """The prediction for one row. `share` is its probability, or None if unknown."""

    value: Label
    """Number or name of the class, or the value itself if the model returns no class."""
    share: float | None = None
    is_class: bool = True


@cache
def chosen(outputs: tuple[str, ...], wanted: str = "") -> str:
    """The output that holds the prediction."""
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
    """The prediction for every row. sure: compute its probability too, which costs more than the rest."""
    name = chosen(tuple(columns), wanted)
    if len(columns) == 1:
        return [_row(value, name, labels, None, sure) for value in columns[name]]
    beside = next((columns[each] for each in ("all_classes", *CLASSES) if each in columns and each != name), ())
    return [
        _row(value, name, labels, beside[i] if i < len(beside) else None, sure) for i, value in enumerate(columns[name])
    ]


def right(prediction: Predicted, truth: Label, labels: tuple[str, ...] = ()) -> bool | None:
    """Whether the prediction matches the label; None if it is a number, not a class."""
    if prediction.is_class:
        return _known(prediction.value, labels) == _known(truth, labels)
    value = prediction.value
    if isinstance(value, str) or truth not in (-1, 0, 1):
        return None
    if value != value:
        return False
    if truth == -1 or (truth == 1 and value < 0):
        return (value >= 0) == (truth == 1)
    return (value >= 0.5) == (truth == 1)


@lru_cache(maxsize=10_000, typed=True)
def _known(value: Label, labels: tuple[str, ...]) -> int | str:
    """A canonical name for a class: its index in the labels, by name or number. `1.0` is `1`."""
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    if text in labels:
        return labels.index(text)
    return int(text) if text.lstrip("-").isdecimal() else text


def shares(values: Sequence[float]) -> list[float]:
    """Probabilities that add up to 1: unchanged, or logits after softmax."""
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
    """A score for each class: the largest is the prediction. NaN means no prediction."""
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
    """The class output next to the probabilities, if the model has one."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _figure(value: float, name: str, labels: Sequence[str]) -> Predicted:
    """A single number: with two labels it is the second one's probability, a logit, or a sign."""
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
