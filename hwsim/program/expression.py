"""Expressions: what the right-hand side of a statement is made of, and what each function of them costs.

An expression reads elements of tensors at affine positions (`A[i, 2*k+1]`), numbers, parameters, extents (`|k|`) and
the values of indices, and puts them together by arithmetic and by the functions of one table, `FUNCTIONS`: its NumPy
code, its instructions and its derivative stand in one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import is_
from typing import Any

import numpy as np

from hwsim.numerics.format import FORMATS, Array
from hwsim.trace.nest import Instructions


@dataclass(frozen=True)
class Expr:
    """A value for each point of the loops around it."""

    @property
    def parts(self) -> tuple[Expr, ...]:
        return ()


@dataclass(frozen=True)
class Number(Expr):
    value: float


@dataclass(frozen=True)
class Symbol(Expr):
    """A name that is not yet bound: a parameter, or an index used as a value."""

    name: str
    column: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Extent(Expr):
    """How far an index runs: ``|k|``."""

    index: str
    column: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Local(Expr):
    """A value that lives in a register for one pass through the body, and never in memory."""

    name: str


@dataclass(frozen=True)
class Affine:
    """A place along one axis: a constant and a multiple of each index, or a number looked up in a tensor."""

    factors: tuple[tuple[str, int], ...]
    constant: int = 0
    lookup: Element | None = None

    @cached_property
    def indices(self) -> tuple[str, ...]:
        own = tuple(index for index, _ in self.factors)
        return own if self.lookup is None else (*own, *self.lookup.indices)

    @cached_property
    def is_plain(self) -> bool:
        """Whether it is one index and nothing else."""
        return self.constant == 0 and len(self.factors) == 1 and self.factors[0][1] == 1 and self.lookup is None

    def last(self, sizes: Mapping[str, int]) -> int:
        return self.constant + sum(factor * (sizes[index] - 1) for index, factor in self.factors)

    def __str__(self) -> str:
        words = [f"{factor}*{index}" if factor != 1 else index for index, factor in self.factors]
        if self.lookup is not None:
            words.append(str(self.lookup))
        if self.constant or not words:
            words.append(str(self.constant))
        return "+".join(words).replace("+-", "-")


@dataclass(frozen=True)
class IndexValue(Expr):
    """The value of an affine position: an index in a comparison, as a causal mask has it."""

    position: Affine


@dataclass(frozen=True)
class Element(Expr):
    """An element of a tensor. Positions are expressions until they are bound, and affine afterwards."""

    tensor: str
    positions: tuple[Any, ...]
    column: int = field(default=0, compare=False)

    @cached_property
    def indices(self) -> tuple[str, ...]:
        """In the order in which they appear; of bound positions."""
        return tuple(dict.fromkeys(index for position in self.positions for index in position.indices))

    @cached_property
    def key(self) -> str:
        """What a value of it is kept under."""
        return str(self)

    def same(self, other: Element) -> bool:
        return (self.tensor, self.positions) == (other.tensor, other.positions)

    def __str__(self) -> str:
        return f"{self.tensor}[{','.join(map(str, self.positions))}]"


@dataclass(frozen=True)
class Apply(Expr):
    """A function of expressions."""

    function: str
    arguments: tuple[Expr, ...]

    @property
    def parts(self) -> tuple[Expr, ...]:
        return self.arguments


@dataclass(frozen=True)
class Function:
    """One row of the table: how many arguments, how NumPy computes it, what it costs, and its derivatives.

    `slopes` gives, for each argument, the derivative of the result by it, as an expression of the arguments and the
    result.
    """

    arity: int
    compute: Callable[..., Array]
    cost: Instructions
    slopes: Callable[..., tuple[Expr, ...]] | None = None

    @property
    def needs_floats(self) -> bool:
        return self.cost.special > 0


ZERO, ONE = Number(0.0), Number(1.0)
ADD, MUL, SPECIAL = Instructions(add=1), Instructions(mul=1), Instructions(special=1)


def apply(function: str, *arguments: Expr) -> Expr:
    """A function of expressions, with what is known about zeros and ones used at once."""
    a, b = (*arguments, None, None)[:2]
    if function == "+" and ZERO in (a, b):
        return b if a == ZERO else a  # type: ignore[return-value]
    if function == "-" and b == ZERO:
        return a  # type: ignore[return-value]
    if function == "-" and a == ZERO:
        return apply("neg", b)  # type: ignore[arg-type]
    if function == "*" and ZERO in (a, b):
        return ZERO
    if function == "*" and ONE in (a, b):
        return b if a == ONE else a  # type: ignore[return-value]
    if function == "/" and b == ONE:
        return a  # type: ignore[return-value]
    if function == "neg" and isinstance(a, Number):
        return Number(-a.value)
    if function == "neg" and isinstance(a, Apply) and a.function == "neg":
        return a.arguments[0]
    if isinstance(a, Number) and isinstance(b, Number) and function in "+-*/" and (function, b) != ("/", ZERO):
        return Number(float(FUNCTIONS[function].compute(a.value, b.value)))
    return Apply(function, arguments)


def _max(a: Any, b: Any) -> Any:
    return np.maximum(a, b)


def _rsqrt(x: Array) -> Array:
    return np.asarray(x.dtype.type(1) / np.sqrt(x))


def _reciprocal(x: Array) -> Array:
    return np.asarray(x.dtype.type(1) / x)


def _where(condition: Any, a: Any, b: Any) -> Any:
    return np.where(condition, a, b)


FUNCTIONS: Mapping[str, Function] = {
    "+": Function(2, lambda a, b: a + b, ADD, lambda a, b, y: (ONE, ONE)),
    "-": Function(2, lambda a, b: a - b, ADD, lambda a, b, y: (ONE, Number(-1.0))),
    "*": Function(2, lambda a, b: a * b, MUL, lambda a, b, y: (b, a)),
    "/": Function(
        2,
        lambda a, b: a / b,
        SPECIAL,
        lambda a, b, y: (apply("/", ONE, b), apply("neg", apply("/", y, b))),
    ),
    "neg": Function(1, lambda a: -a, ADD, lambda a, y: (Number(-1.0),)),
    "square": Function(1, lambda a: a * a, MUL, lambda a, y: (apply("*", Number(2.0), a),)),
    "max": Function(
        2,
        _max,
        ADD,
        lambda a, b, y: (apply("where", apply(">=", a, b), ONE, ZERO), apply("where", apply(">=", a, b), ZERO, ONE)),
    ),
    "min": Function(
        2,
        lambda a, b: np.minimum(a, b),
        ADD,
        lambda a, b, y: (apply("where", apply("<=", a, b), ONE, ZERO), apply("where", apply("<=", a, b), ZERO, ONE)),
    ),
    "abs": Function(1, np.abs, ADD, lambda a, y: (apply("where", apply(">=", a, ZERO), ONE, Number(-1.0)),)),
    "round": Function(1, np.rint, ADD),
    "exp": Function(1, np.exp, SPECIAL, lambda a, y: (y,)),
    "log": Function(1, np.log, SPECIAL, lambda a, y: (apply("/", ONE, a),)),
    "sqrt": Function(1, np.sqrt, SPECIAL, lambda a, y: (apply("/", Number(0.5), y),)),
    "rsqrt": Function(
        1,
        _rsqrt,
        Instructions(special=2),
        lambda a, y: (apply("*", Number(-0.5), apply("*", y, apply("square", y))),),
    ),
    "reciprocal": Function(1, _reciprocal, SPECIAL, lambda a, y: (apply("neg", apply("square", y)),)),
    "tanh": Function(1, np.tanh, SPECIAL, lambda a, y: (apply("-", ONE, apply("square", y)),)),
    "sin": Function(1, np.sin, SPECIAL, lambda a, y: (apply("cos", a),)),
    "cos": Function(1, np.cos, SPECIAL, lambda a, y: (apply("neg", apply("sin", a)),)),
    "where": Function(
        3, _where, ADD, lambda c, a, b, y: (ZERO, apply("where", c, ONE, ZERO), apply("where", c, ZERO, ONE))
    ),
    **{
        sign: Function(2, compare, Instructions(), lambda a, b, y: (ZERO, ZERO))
        for sign, compare in (
            ("<", lambda a, b: a < b),
            ("<=", lambda a, b: a <= b),
            (">", lambda a, b: a > b),
            (">=", lambda a, b: a >= b),
            ("==", lambda a, b: a == b),
        )
    },
}
"""By name. A maximum counts as an addition, and so does a choice; the comparison that decides it is free. A division, a
root, an exponential is one special operation, and 1/√x two."""

CASTS: Mapping[str, str] = {name: name for name in FORMATS}
"""A value rounded to a number format on the way: ``bf16(x)``; one conversion."""


def is_cast(function: str) -> bool:
    return function in CASTS


def walk(expr: Expr) -> Iterator[Expr]:
    """Every part of an expression, the innermost first."""
    for part in expr.parts:
        yield from walk(part)
    yield expr


def elements(expr: Expr) -> tuple[Element, ...]:
    """What an expression reads, each once, in the order of appearance."""
    found: list[Element] = []
    for part in walk(expr):
        if isinstance(part, Element) and not any(part.same(old) for old in found):
            found.append(part)
    return tuple(found)


def locals_of(expr: Expr) -> set[str]:
    return {part.name for part in walk(expr) if isinstance(part, Local)}


def mapped(expr: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """The expression with some of its parts exchanged: `change` gives the new part, or None to look inside."""
    new = change(expr)
    if new is not None:
        return new
    if isinstance(expr, Apply):
        inside = tuple(mapped(part, change) for part in expr.arguments)
        if expr.function == "neg" or all(isinstance(each, Number) for each in inside):
            return apply(expr.function, *inside)
        return expr if all(map(is_, inside, expr.arguments)) else replace(expr, arguments=inside)
    return expr


def indices_of(expr: Expr) -> tuple[str, ...]:
    """Indices that a bound expression depends on, in the order of appearance."""
    found: dict[str, None] = {}
    for part in walk(expr):
        if isinstance(part, Element):
            found.update(dict.fromkeys(part.indices))
        elif isinstance(part, IndexValue):
            found.update(dict.fromkeys(part.position.indices))
    return tuple(found)


def show(expr: Expr) -> str:
    """As it is written."""
    match expr:
        case Number(value):
            return f"{value:g}"
        case Symbol(name) | Local(name):
            return name
        case Extent(index):
            return f"|{index}|"
        case IndexValue(position):
            return str(position)
        case Element():
            return str(expr)
        case Apply("neg", (a,)):
            return f"-{show(a)}"
        case Apply("square", (a,)):
            return f"{show(a)}**2"
        case Apply(sign, (a, b)) if not sign.isalpha():
            return f"({show(a)} {sign} {show(b)})"
        case Apply(name, arguments):
            return f"{name}({', '.join(map(show, arguments))})"
    return str(expr)
