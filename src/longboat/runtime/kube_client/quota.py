"""What the refusal of a ResourceQuota means: wait for pods that end, or it never fits. Pure."""

from __future__ import annotations

import re
from typing import Dict

from longboat.runtime.kube_client.api import ApiError

_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50}
_TENS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_AMOUNTS = re.compile(r"(requested|limited): ([^ ]+?)(?:, |$)")
"""`exceeded quota: small, requested: cpu=2,pods=1, used: cpu=7,pods=4, limited: cpu=8,pods=4`"""


def amount(text: object) -> float:
    """A Kubernetes quantity as a number: 500m, 2, 4Gi, 1e3."""
    value = str(text or "0")
    for unit, factor in (*_UNITS.items(), *_TENS.items()):
        if value.endswith(unit):
            return float(value[: -len(unit)]) * factor
    return float(value)


def exceeded(error: ApiError) -> bool:
    return error.status == 403 and "exceeded quota" in error.message


def never_fits(message: str, pods: int) -> bool:
    """Whether this many pods like the refused one exceed the quota even if nothing else used it."""
    amounts: Dict[str, Dict[str, float]] = {"requested": {}, "limited": {}}
    try:
        for kind, pairs in _AMOUNTS.findall(message):
            amounts[kind].update(
                (name, amount(value)) for name, _, value in (p.partition("=") for p in pairs.split(","))
            )
    except ValueError:
        return False
    limits = amounts["limited"]
    return any(value * pods > limits.get(name, float("inf")) for name, value in amounts["requested"].items())
