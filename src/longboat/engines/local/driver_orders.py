"""Orders to the driver besides the plan: stages to run again, stages to leave out, and whether to keep serving.

Stored as a file of the run, because the driver may be a separate process.
"""

from __future__ import annotations

import json
import os

from longboat.runtime import atomic_file, run_layout
from longboat.runtime.light_dataclasses import asdict, dataclass


@dataclass(frozen=True)
class DriverOrders:
    again: tuple[str, ...] = ()
    """Stages that passed before and run again."""
    left_out: tuple[str, ...] = ()
    keep: bool = False


def to_json(orders: DriverOrders) -> str:
    return json.dumps(asdict(orders))


def from_json(text: str) -> DriverOrders:
    orders = json.loads(text)
    return DriverOrders(tuple(orders["again"]), tuple(orders["left_out"]), bool(orders["keep"]))


def write(run_dir: str, orders: DriverOrders) -> None:
    atomic_file.write(os.path.join(run_dir, run_layout.ORDERS), to_json(orders))


def read(run_dir: str) -> DriverOrders:
    try:
        with open(os.path.join(run_dir, run_layout.ORDERS), encoding="utf-8") as file:
            return from_json(file.read())
    except (OSError, ValueError, KeyError, TypeError):
        return DriverOrders()
