"""``dataclass`` as in Python's library, with frozen classes that are made in a quarter of the time.

A run imports more than two hundred of them. The library compiles six functions for each, which takes half a
millisecond. Here only the constructor is compiled: the others are shared by all classes, or read the fields with
`attrgetter`, which is as fast as compiled code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, asdict, field, fields, is_dataclass, replace
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

__all__ = ["asdict", "dataclass", "field", "fields", "is_dataclass", "replace"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, **options):
        """As that of the library; classes that are not frozen, or have an order, are left to it."""
        if cls is None:
            return lambda given: dataclass(given, **options)
        if not options.get("frozen") or options.keys() - {"frozen", "repr", "eq"}:
            return dataclasses.dataclass(cls, **options)
        return _make_frozen(cls, shown=options.get("repr", True), compared=options.get("eq", True))


def _make_frozen(cls: Any, *, shown: bool, compared: bool) -> Any:
    own = set(vars(cls))
    cls = dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
    read = _reader([each.name for each in fields(cls) if each.compare])
    made: dict[str, Any] = {"__setattr__": _refuse_setting, "__delattr__": _refuse_deleting}
    made |= {"__repr__": _show} if shown else {}
    made |= {"__eq__": _equality(read), "__hash__": lambda self: hash(read(self))} if compared else {}
    if "__eq__" in own and vars(cls)["__hash__"] is None:  # Python puts None there, as no hash goes with that equality
        own.remove("__hash__")
    if "__init__" not in own:
        made["__init__"] = _constructor(cls)
    for name, function in made.items():
        if name not in own:
            setattr(cls, name, function)
    return cls


def _refuse_setting(self: object, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deleting(self: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


@recursive_repr()
def _show(self: Any) -> str:
    shown = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{type(self).__qualname__}({shown})"


def _reader(names: list[str]) -> Callable[[object], tuple[Any, ...]]:
    """Gives these attributes of an object as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


def _equality(read: Callable[[object], tuple[Any, ...]]) -> Callable[[object, object], bool]:
    def equal(self: object, other: object) -> bool:
        return read(self) == read(other) if type(self) is type(other) else NotImplemented

    return equal


def _constructor(cls: type[Any]) -> Callable[..., None]:
    """Sets all fields, past the refusal; those with a `default_factory` anew for each object."""
    names: dict[str, Any] = {"_put": object.__setattr__, "_missing": MISSING}
    plain: list[str] = []
    keyword: list[str] = []
    body: list[str] = []
    for each in fields(cls):
        name, default, value = each.name, "", each.name
        if each.default is not MISSING:
            names[f"_default_{name}"] = each.default
            default = f"=_default_{name}"
        elif each.default_factory is not MISSING:
            names[f"_make_{name}"] = each.default_factory
            default, value = "=_missing", f"_make_{name}() if {name} is _missing else {name}"
        if each.init:
            (keyword if each.kw_only else plain).append(name + default)
        elif each.default_factory is not MISSING:
            value = f"_make_{name}()"
        else:
            continue  # found in the class, or set by __post_init__
        body.append(f"_put(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    arguments = ", ".join(["self", *plain, *(["*", *keyword] if keyword else [])])
    exec(f"def __init__({arguments}):\n " + "\n ".join(body or ["pass"]), names)
    made: Callable[..., None] = names["__init__"]
    made.__qualname__, made.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    made.__annotations__ = {each.name: each.type for each in fields(cls) if each.init} | {"return": None}
    return made
