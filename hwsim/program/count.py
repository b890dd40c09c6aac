"""Instructions of one point of a statement, derived from its expression.

The rules are those of a plain compiler: what is computed twice is computed once; a product that is added to something
is one multiply-add, and so is a product with (1 + x); a division by a number is a multiplication; a minus sign before a
value that is added, or that an exponential takes, costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hwsim.program.expression import FUNCTIONS, Apply, Element, Expr, Number, elements, is_cast, walk
from hwsim.program.statement import Statement
from hwsim.trace.nest import Instructions

NOTHING = Instructions()


def count_body(statements: Iterable[Statement]) -> Instructions:
    """What one point of the loops costs: each value, and the sum that it is added to."""
    return sum(count_each(statements), NOTHING)


def count_each(statements: Iterable[Statement]) -> Iterator[Instructions]:
    """The same, statement by statement; a value that was computed with what a statement has changed is computed
    anew."""
    counted: set[Expr] = set()
    for statement in statements:
        if statement.sign == "+=" and _is_product(statement.value) and statement.value not in counted:
            yield _count_parts(statement.value, counted) + Instructions(fma=1)
        else:
            yield _count(statement.value, counted) + (Instructions(add=1) if statement.accumulates else NOTHING)
        if isinstance(statement.target, Element):
            target = statement.target
            counted -= {each for each in counted if any(target.same(element) for element in elements(each))}


def flops_of(body: Instructions) -> int:
    return 2 * body.fma + body.add + body.mul + body.special


def needs_floats(statements: Sequence[Statement]) -> bool:
    """Whether roots, quotients, exponentials or broken numbers make no sense of whole numbers."""
    for statement in statements:
        for part in walk(statement.value):
            if isinstance(part, Apply) and not is_cast(part.function) and FUNCTIONS[part.function].needs_floats:
                return True
            if isinstance(part, Number) and not part.value.is_integer():
                return True
    return False


def _count(expr: Expr, counted: set[Expr]) -> Instructions:
    """The instructions of an expression; what was counted before is in a register."""
    if not isinstance(expr, Apply) or expr in counted:
        return NOTHING
    counted.add(expr)
    name, arguments = expr.function, expr.arguments
    if is_cast(name):
        return _count_parts(expr, counted) + Instructions(convert=1)
    if name in ("+", "-"):
        for factor in arguments[::-1]:
            if _is_product(_unsigned(factor)) and _unsigned(factor) not in counted:
                rest = sum((_count(_unsigned(each), counted) for each in arguments if each is not factor), NOTHING)
                counted.add(_unsigned(factor))
                return rest + _count_parts(_unsigned(factor), counted) + Instructions(fma=1)
        return sum((_count(_unsigned(each), counted) for each in arguments), NOTHING) + Instructions(add=1)
    if name == "*":
        for factor in arguments:
            grown = _grown(factor)
            if grown is not None and factor not in counted:
                others = sum((_count(each, counted) for each in arguments if each is not factor), NOTHING)
                return others + _count(grown, counted) + Instructions(fma=1)
        return sum((_count(_unsigned(each), counted) for each in arguments), NOTHING) + Instructions(mul=1)
    if name == "/" and isinstance(arguments[1], Number):
        return _count(arguments[0], counted) + Instructions(mul=1)
    if name == "exp":
        return _count(_unsigned(arguments[0]), counted) + Instructions(special=1)
    return _count_parts(expr, counted) + FUNCTIONS[name].cost


def _count_parts(expr: Expr, counted: set[Expr]) -> Instructions:
    counted.add(expr)
    return sum((_count(_unsigned(part) if _is_product(expr) else part, counted) for part in expr.parts), NOTHING)


def _is_product(expr: Expr) -> bool:
    if not isinstance(expr, Apply):
        return False
    return expr.function in ("*", "square") or (expr.function == "/" and isinstance(expr.arguments[1], Number))


def _unsigned(expr: Expr) -> Expr:
    return expr.arguments[0] if isinstance(expr, Apply) and expr.function == "neg" else expr


def _grown(expr: Expr) -> Expr | None:
    """x of (1 + x) or (1 - x): a product with it is one multiply-add."""
    if isinstance(expr, Apply) and expr.function in ("+", "-") and Number(1.0) in expr.arguments:
        left, right = expr.arguments
        return _unsigned(right if left == Number(1.0) else left)
    return None
