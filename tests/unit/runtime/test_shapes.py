"""What the table of shapes promises."""

from __future__ import annotations

import pytest

from longboat.runtime.shapes import SHAPES, finishing_roles


@pytest.mark.parametrize(
    ("shape", "ranks", "finishing"),
    [
        ("single", {"worker": 1}, {"worker": True}),
        ("allreduce", {"worker": 3}, {"worker": True}),
        ("ps", {"worker": 2, "ps": 1}, {"worker": True, "ps": False}),
        ("ps", {"chief": 1, "worker": 2, "ps": 1}, {"chief": True, "worker": False, "ps": False}),
        ("ps", {"chief": 0, "worker": 1, "ps": 1, "evaluator": 1}, {"worker": True, "ps": False, "evaluator": False}),
        ("mpi", {"launcher": 1, "worker": 4}, {"launcher": True, "worker": False}),
        ("average", {"worker": 2}, {"worker": True}),
    ],
)
def test_who_must_finish(shape: str, ranks: dict[str, int], finishing: dict[str, bool]) -> None:
    assert finishing_roles(shape, ranks) == finishing


def test_only_ranks_that_nobody_waits_for_restart_alone() -> None:
    alone = {(shape.name, rule.name) for shape in SHAPES.values() for rule in shape.roles if rule.alone}
    assert alone == {("ps", "worker"), ("ps", "evaluator"), ("average", "worker")}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=lambda shape: shape.name)
def test_every_shape_is_whole(shape: object) -> None:
    from longboat.runtime.shapes import Shape

    assert isinstance(shape, Shape)
    assert shape.help
    assert any(rule.finishes and rule.default for rule in shape.roles)
    for rule in shape.roles:
        assert not rule.most or rule.least <= rule.default <= rule.most or rule.default == 0
        assert shape.rule(rule.name) is rule
    if shape.launcher:
        assert shape.rule(shape.launcher).most == 1
    with pytest.raises(KeyError):
        shape.rule("nobody")
