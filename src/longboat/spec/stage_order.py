"""Topological order of stages; otherwise in the order of the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def ordered(after: Mapping[str, Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """The stages in order, and the cycles among the rest, each as a path `a, b, a`."""
    order: list[str] = []
    placed: set[str] = set()
    waiting = list(after)
    while True:
        ready = next((name for name in waiting if placed.issuperset(after[name])), None)
        if ready is None:
            break
        order.append(ready)
        placed.add(ready)
        waiting.remove(ready)
    return order, _cycles({name: [a for a in after[name] if a in waiting] for name in waiting})


def _cycles(after: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """One cycle for each group of stages that depend on each other."""
    cycles: list[list[str]] = []
    seen: set[str] = set()
    for start in after:
        path: list[str] = []
        name = start
        while name not in seen and name not in path:
            path.append(name)
            name = after[name][0]
        if name in path:
            cycles.append([*path[path.index(name) :], name])
        seen.update(path)
    return cycles
