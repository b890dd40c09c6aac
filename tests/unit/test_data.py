"""`hwsim.data.dataclass` makes the classes that Python's own makes."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

import hwsim.data
from hwsim.trace.nest import Access


def classes(dataclass: Any) -> tuple[Any, Any, Any, Any]:
    @dataclass(frozen=True)
    class Point:
        """Some fields of every sort."""

        x: int
        y: float = 2.5
        seen: list[int] = dataclasses.field(default_factory=list, compare=False)
        note: str = dataclasses.field(default="none", repr=False, kw_only=True)
        twice: int = dataclasses.field(default=0, init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "twice", 2 * self.x)

    @dataclass(frozen=True)
    class Named(Point):
        """Fields of its own behind those of another."""

        name: str = "p"

    @dataclass(frozen=True, eq=False)
    class Thing:
        """Equal to itself alone."""

        size: int

    @dataclass(frozen=True)
    class Alone:
        """One field, and an equality of its own."""

        size: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, int) or NotImplemented

    return Point, Named, Thing, Alone


OURS, THEIRS = classes(hwsim.data.dataclass), classes(dataclasses.dataclass)
PAIRS = list(zip(OURS, THEIRS, strict=True))


@pytest.mark.parametrize(("ours", "theirs"), PAIRS[:2])
def test_values_text_equality_and_hash_are_those_of_the_library(ours: Any, theirs: Any) -> None:
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((3,), {}), ((3, 2.5), {}), ((3, 4.5, [1]), {"note": "n"}), ((), {"x": 3, "seen": [2]}),
    ]  # fmt: skip
    made = [(ours(*given, **named), theirs(*given, **named)) for given, named in calls]
    for mine, other in made:
        assert repr(mine) == repr(other)
        assert dataclasses.asdict(mine) == dataclasses.asdict(other)
        assert hash(mine) == hash(other)
        assert mine != other  # of another class
    for number, (mine, other) in enumerate(made):
        assert [mine == each for each, _ in made] == [other == each for _, each in made], number
    assert made[0][0].seen is not made[1][0].seen


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_fields_arguments_and_refusals_are_those_of_the_library(ours: Any, theirs: Any) -> None:
    assert [each.name for each in dataclasses.fields(ours)] == [each.name for each in dataclasses.fields(theirs)]
    assert ours.__match_args__ == theirs.__match_args__
    assert ours.__init__.__annotations__ == theirs.__init__.__annotations__
    for given, named in (((), {}), ((1, 2, 3, 4, 5, 6), {}), ((1,), {"twice": 2})):
        for made in (ours, theirs):
            with pytest.raises(TypeError):
                made(*given, **named)
    for made in (ours(3), theirs(3)):
        with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'size'"):
            made.size = 4
        with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'size'"):
            del made.size


def test_equality_of_its_own_and_none_are_kept() -> None:
    for _, _, thing, alone in (OURS, THEIRS):
        assert thing(1) != thing(1)
        assert len({thing(1), thing(1)}) == 2
        assert alone(1) == 5
        assert hash(alone(1)) == hash((1,))


def test_a_copy_with_changes_and_one_through_pickle_are_equal() -> None:
    point = OURS[1](3, seen=[1], name="q")
    assert dataclasses.replace(point, x=4).twice == 8
    assert copy.copy(point) == point == copy.deepcopy(point)
    access = Access(0, (8,))
    assert pickle.loads(pickle.dumps(access)) == access
