"""Light dataclasses do what the standard ones do."""

from __future__ import annotations

import copy
import dataclasses as standard
import pickle
from typing import Any, ClassVar, NamedTuple

import pytest

from longboat.runtime import light_dataclasses as light


class Pair(NamedTuple):
    left: Any
    right: Any


def classes(module: Any) -> Any:
    """The same classes, made by one module or the other."""

    @module.dataclass(frozen=True)
    class Base:
        a: int
        b: str = "b"

    @module.dataclass(frozen=True)
    class Derived(Base):
        kind: ClassVar[str] = "no field"
        c: dict[str, int] = module.field(default_factory=dict)
        d: int = module.field(default=4, repr=False, compare=False)
        e: Any = None

        @property
        def twice(self) -> int:
            return 2 * self.a

    @module.dataclass
    class Mutable:
        x: int = 0

        def __post_init__(self) -> None:
            self.more = self.x + 1

    @module.dataclass(frozen=True, order=True)
    class Ordered:
        x: int
        y: int = 0

    return Base, Derived, Mutable, Ordered


def test_values_come_from_arguments_names_defaults_and_factories() -> None:
    for module in (light, standard):
        base, derived, mutable, _ = classes(module)
        one = derived(1, d=5)
        assert (one.a, one.b, one.c, one.d, one.e, one.twice) == (1, "b", {}, 5, None, 2)
        assert derived(1).c is not one.c
        assert mutable(x=3).more == 4
        assert [each.name for each in module.fields(derived)] == ["a", "b", "c", "d", "e"]
        assert module.is_dataclass(one)
        assert module.is_dataclass(base)
        assert not module.is_dataclass(4)


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1,), {"a": 1}), ((1,), {"z": 1}), ((1, "b", {}, 4, 5, 6), {})]
)
def test_wrong_arguments_are_refused(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for module in (light, standard):
        with pytest.raises(TypeError):
            classes(module)[1](*args, **kwargs)


def test_equality_order_hash_and_text() -> None:
    for module in (light, standard):
        base, derived, mutable, ordered = classes(module)
        assert base(1) == base(1, "b") != base(2)
        assert derived(1, d=5) == derived(1, d=6)
        assert base(1) != derived(1)
        assert hash(base(1)) == hash(base(1))
        assert ordered(1, 2) < ordered(2, 1)
        assert mutable(1) == mutable(1)
        with pytest.raises(TypeError):
            hash(mutable())
        assert repr(derived(1)).endswith("Derived(a=1, b='b', c={}, e=None)")


def test_frozen_ones_do_not_change() -> None:
    for module in (light, standard):
        one = classes(module)[0](1)
        with pytest.raises(module.FrozenInstanceError):
            one.a = 2
        with pytest.raises(module.FrozenInstanceError):
            del one.a
        assert copy.deepcopy(one) == one


def test_copies_with_changes_and_as_plain_values() -> None:
    for module in (light, standard):
        base, derived, mutable, _ = classes(module)
        one = derived(1, e=[base(2), Pair(base(3), {"k": base(4)})])
        assert module.replace(one, a=5).a == 5
        assert module.replace(mutable(1), x=2).more == 3
        plain = module.asdict(one)
        assert plain["e"] == [{"a": 2, "b": "b"}, Pair({"a": 3, "b": "b"}, {"k": {"a": 4, "b": "b"}})]
        assert module.astuple(one)[4] == [(2, "b"), Pair((3, "b"), {"k": (4, "b")})]


def test_the_standard_librarys_functions_take_them() -> None:
    base, derived, _, _ = classes(light)
    one = derived(1, e=[base(2)])
    assert standard.asdict(one) == light.asdict(one)
    assert standard.replace(one, a=5) == derived(5, e=[base(2)])
    assert [each.name for each in standard.fields(base)] == ["a", "b"]
    assert standard.is_dataclass(one)


def test_they_can_be_sent_to_another_process() -> None:
    from longboat.runtime.causes import Cause, CauseKind

    cause = Cause(CauseKind.NOT_FOUND, "gone", evidence=("a",))
    assert pickle.loads(pickle.dumps(cause)) == cause
