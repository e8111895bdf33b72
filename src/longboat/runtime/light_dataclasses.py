"""The part of the standard library's `dataclasses` that Longboat uses, without its cost at import.

The standard decorator compiles up to six functions for each class, and imports `inspect`. A launch defines a hundred
classes, so that was half of the time that imports took. Here all classes share functions that read their class's
fields. Type checkers see the standard library's names.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Tuple

if TYPE_CHECKING:
    from dataclasses import FrozenInstanceError as FrozenInstanceError
    from dataclasses import asdict as asdict
    from dataclasses import astuple as astuple
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import fields as fields
    from dataclasses import is_dataclass as is_dataclass
    from dataclasses import replace as replace
else:
    _REQUIRED = object()

    class FrozenInstanceError(AttributeError):
        pass

    class field:  # noqa: N801
        """Default and options of one value of a class."""

        def __init__(
            self,
            *,
            default: Any = _REQUIRED,
            default_factory: Optional[Callable[[], Any]] = None,
            repr: bool = True,
            compare: bool = True,
        ) -> None:
            self.name = ""
            self.default = default
            self.default_factory = default_factory
            self.repr = repr
            self.compare = compare

    class _StandardFields:
        """What the standard library's own functions ask a dataclass for: users may pass them our values."""

        def __get__(self, _: object, cls: type) -> Any:
            import dataclasses

            names = [
                (name, Any, dataclasses.field(repr=each.repr, compare=each.compare))
                for name, each in cls.__fields_by_name__.items()
            ]
            return dataclasses.make_dataclass(cls.__name__, names).__dataclass_fields__

    def dataclass(cls=None, *, frozen: bool = False, order: bool = False):
        if cls is None:
            return lambda cls: dataclass(cls, frozen=frozen, order=order)
        fields_by_name: Dict[str, field] = {}
        for base in reversed(cls.__mro__[1:]):
            fields_by_name.update(getattr(base, "__fields_by_name__", {}))
        for name, annotation in cls.__dict__.get("__annotations__", {}).items():  # noqa: RUF063
            if "ClassVar" not in str(annotation):
                fields_by_name[name] = _field(cls, name)
        cls.__fields_by_name__ = fields_by_name
        compared = [name for name, entry in fields_by_name.items() if entry.compare]
        cls.__compared_of__ = itemgetter(*compared) if compared else len
        cls.__dataclass_fields__ = _StandardFields()
        cls.__match_args__ = tuple(fields_by_name)
        init = _init_and_more if hasattr(cls, "__post_init__") else _init
        methods = {"__init__": init, "__repr__": _repr, "__eq__": _eq, "__hash__": _hash if frozen else None}
        if frozen:
            methods.update(__setattr__=_refuse_change, __delattr__=_refuse_change)
        if order:
            methods.update(__lt__=_lt)
        for name, method in methods.items():
            if cls.__dict__.get(name) is None:
                setattr(cls, name, method)
        return cls

    def _field(cls: type, name: str) -> field:
        default = cls.__dict__.get(name, _REQUIRED)
        if not isinstance(default, field):
            entry = field(default=default)
        else:
            entry = default
            if entry.default is _REQUIRED:
                delattr(cls, name)
            else:
                setattr(cls, name, entry.default)
        entry.name = name
        return entry

    def _init(self, *args: Any, **kwargs: Any) -> None:
        expected, values = self.__fields_by_name__, self.__dict__
        values.update(zip(expected, args))
        for name, value in kwargs.items():
            if name not in expected:
                raise TypeError(f"{type(self).__qualname__}() has no field {name!r}")
            if name in values:
                raise TypeError(f"{type(self).__qualname__}() got two values for {name!r}")
            values[name] = value
        if len(args) > len(expected):
            raise TypeError(f"{type(self).__qualname__}() takes {len(expected)} values, not {len(args)}")
        if len(values) < len(expected):
            for name, entry in expected.items():
                if name in values:
                    continue
                if entry.default is not _REQUIRED:
                    values[name] = entry.default
                elif entry.default_factory is not None:
                    values[name] = entry.default_factory()
                else:
                    raise TypeError(f"{type(self).__qualname__}() needs a value for {name!r}")

    def _init_and_more(self, *args: Any, **kwargs: Any) -> None:
        _init(self, *args, **kwargs)
        self.__post_init__()

    def _repr(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name, entry in self.__fields_by_name__.items() if entry.repr)
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def _eq(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        compared_of = self.__compared_of__
        return compared_of(self.__dict__) == compared_of(other.__dict__)

    def _lt(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return self.__compared_of__(self.__dict__) < self.__compared_of__(other.__dict__)

    def _hash(self) -> int:
        return hash(self.__compared_of__(self.__dict__))

    def _refuse_change(self, name: str, *_: object) -> None:
        raise FrozenInstanceError(f"{type(self).__qualname__}.{name} cannot be changed")

    def fields(of: Any) -> Tuple[field, ...]:
        """Of a class or an instance."""
        return tuple(of.__fields_by_name__.values())

    def is_dataclass(of: object) -> bool:
        return hasattr(of, "__fields_by_name__")

    def replace(instance: Any, **changes: Any) -> Any:
        values = {name: getattr(instance, name) for name in instance.__fields_by_name__}
        return type(instance)(**{**values, **changes})

    def asdict(instance: Any) -> Dict[str, Any]:
        return {name: _plain(getattr(instance, name), asdict) for name in instance.__fields_by_name__}

    def astuple(instance: Any) -> Tuple[Any, ...]:
        return tuple(_plain(getattr(instance, name), astuple) for name in instance.__fields_by_name__)

    def _plain(value: Any, convert: Callable[[Any], Any]) -> Any:
        """The value with all instances in it converted."""
        if is_dataclass(value):
            return convert(value)
        if isinstance(value, (list, tuple)):
            items = [_plain(item, convert) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if isinstance(value, dict):
            return {_plain(key, convert): _plain(item, convert) for key, item in value.items()}
        return value
