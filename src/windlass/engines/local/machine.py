"""What this machine has: cores that may be used, GPUs."""

from __future__ import annotations

import os
import re


def cores() -> int:
    """Cores this process may use: its affinity, cut by the cgroup's quota (v1 and v2)."""
    try:
        found = len(os.sched_getaffinity(0))
    except AttributeError:
        found = os.cpu_count() or 1
    quota = _quota()
    return max(1, min(found, int(quota))) if quota else found


def _quota() -> float:
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            limit, period = file.read().split()
            return 0.0 if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    try:
        with open("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") as file:
            limit_us = int(file.read())
        with open("/sys/fs/cgroup/cpu/cpu.cfs_period_us") as file:
            return limit_us / int(file.read()) if limit_us > 0 else 0.0
    except (OSError, ValueError):
        return 0.0


def gpus(visible: str | None) -> tuple[str, ...]:
    """The GPUs that may be used, by CUDA's names: what CUDA_VISIBLE_DEVICES allows, else all."""
    if visible is not None:
        return tuple(name for name in visible.split(",") if name.strip())
    try:
        names = os.listdir("/dev")
    except OSError:
        return ()
    numbers = sorted(int(m.group(1)) for m in (re.fullmatch(r"nvidia(\d+)", name) for name in names) if m)
    return tuple(str(number) for number in numbers)
