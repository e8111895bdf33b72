"""What a ResourceQuota's refusal says: pods that have ended may make room, or nothing ever will. Pure."""

from __future__ import annotations

import re
from typing import Dict

from longboat.runtime.kube_client.api import ApiError

_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50}
_TENS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_AMOUNTS = re.compile(r"(requested|limited): ([^ ]+?)(?:, |$)")
"""`exceeded quota: small, requested: cpu=2,pods=1, used: cpu=7,pods=4, limited: cpu=8,pods=4`"""


def amount(text: object) -> float:
    """A quantity as Kubernetes writes it: 500m, 2, 4Gi, 1e3."""
    value = str(text or "0")
    for unit, factor in (*_UNITS.items(), *_TENS.items()):
        if value.endswith(unit):
            return float(value[: -len(unit)]) * factor
    return float(value)


def exceeded(error: ApiError) -> bool:
    return error.status == 403 and "exceeded quota" in error.message


def never_fits(message: str, pods: int) -> bool:
    """Whether so many pods like the one that was refused are more than the quota allows, were all else gone."""
    told: Dict[str, Dict[str, float]] = {"requested": {}, "limited": {}}
    try:
        for word, amounts in _AMOUNTS.findall(message):
            told[word].update(
                (name, amount(value)) for name, _, value in (a.partition("=") for a in amounts.split(","))
            )
    except ValueError:
        return False
    return any(asked * pods > told["limited"].get(name, float("inf")) for name, asked in told["requested"].items())
