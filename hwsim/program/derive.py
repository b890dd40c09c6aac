"""Derivatives: the backward pass of a program, as a program.

Reverse mode, by the rules of calculus on the statements themselves: for ``T += f(A, B)`` follow ``dA += dT * ∂f/∂A``
and ``dB += dT * ∂f/∂B``, each a statement over the same loops. The adjoint of a tensor is the sum over all that read
it. A matrix product gives two products, a convolution its transposed one, a softmax with cross-entropy y - t.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hwsim.errors import InputError
from hwsim.program.bind import Program, reduced_indices, statement_indices
from hwsim.program.expression import (
    FUNCTIONS,
    ONE,
    ZERO,
    Affine,
    Apply,
    Element,
    Expr,
    IndexValue,
    Local,
    apply,
    elements,
    is_cast,
    mapped,
    show,
)
from hwsim.program.statement import Sign, Statement, TileBlock


def backward(program: Program, wrt: Sequence[str], seeds: Mapping[str, str]) -> tuple[Statement, ...]:
    """Statements that make ``dX`` for each X of `wrt`, from the adjoints of the outputs.

    `seeds` names the given adjoint of each output: ``{"Y": "dY"}``. Tensors of the forward pass are read as they are.
    """
    statements = _single_assignment(program)
    adjoints: dict[str, str] = dict(seeds)
    needed = _dependent(statements, wrt)
    found: list[Statement] = []
    made: set[str] = set()
    for statement in reversed(statements):
        target = statement.target
        assert isinstance(target, Element)
        if target.tensor not in adjoints or target.tensor not in needed:
            continue
        seed: Expr = Element(adjoints[target.tensor], target.positions)
        if statement.sign in ("max=", "min="):
            seed = apply("where", apply("==", statement.value, target), seed, ZERO)
        for element, slope in slopes(statement.value, seed, target if statement.sign == "=" else None):
            if element.tensor not in needed:
                continue
            name = adjoints.setdefault(element.tensor, f"d{element.tensor}")
            found.append(_contribution(name, element, slope, name in made))
            made.add(name)
    missing = [name for name in wrt if adjoints.get(name) not in made]
    if missing:
        raise InputError(f"nothing that is asked for depends on {', '.join(missing)}")
    return tuple(found)


def slopes(expr: Expr, seed: Expr, result: Element | None = None) -> list[tuple[Element, Expr]]:
    """What each element of an expression gets of an adjoint: ``seed * ∂expr/∂element``; `result` holds its value."""
    totals: list[tuple[Element, Expr]] = []

    def add(part: Expr, adjoint: Expr) -> None:
        if adjoint == ZERO:
            return
        if isinstance(part, Element):
            for number, (known, total) in enumerate(totals):
                if known.same(part):
                    totals[number] = (known, apply("+", total, adjoint))
                    return
            totals.append((part, adjoint))
        elif isinstance(part, Apply):
            if is_cast(part.function):
                add(part.arguments[0], adjoint)  # rounding is seen as doing nothing
                return
            rule = FUNCTIONS[part.function].slopes
            if rule is None:
                raise InputError(f"{part.function} has no derivative")
            for argument, slope in zip(
                part.arguments,
                rule(*part.arguments, result if result is not None and part is expr else part),
                strict=True,
            ):
                if slope != ZERO and elements(argument):
                    add(argument, _times(adjoint, slope))

    add(expr, seed)
    return totals


def text(statements: Sequence[Statement]) -> str:
    """As they are written."""
    return "\n".join(f"{each.target} {each.sign} {show(each.value)}" for each in statements)


def _times(adjoint: Expr, slope: Expr) -> Expr:
    if isinstance(slope, Apply) and slope.function == "where" and ONE in slope.arguments[1:]:
        condition, yes, no = slope.arguments
        return apply("where", condition, _times(adjoint, yes), _times(adjoint, no))
    if isinstance(slope, Apply) and slope.function == "/" and slope.arguments[0] == ONE:
        return apply("/", adjoint, slope.arguments[1])
    if slope == apply("neg", ONE):
        return apply("neg", adjoint)
    return apply("*", adjoint, slope)


def _contribution(name: str, element: Element, value: Expr, again: bool) -> Statement:
    """``name[…] += value``, with one index along each axis of the target."""
    positions, moves = [], dict[str, Affine]()
    taken: set[str] = set()
    for position in element.positions:
        if position.lookup is not None:
            raise InputError(f"the derivative by {element}, which is looked up, is a scatter: write it as a statement")
        if position.is_plain and position.factors[0][0] not in taken:
            taken.add(position.factors[0][0])
            positions.append(position)
            continue
        solved = next(((i, f) for i, f in position.factors if f == 1 and i not in taken and i not in moves), None)
        if solved is None:
            raise InputError(f"the derivative by {element} would be stored with a stride; only steps of 1 are known")
        index, _ = solved
        rest = tuple((i, -f) for i, f in position.factors if i != index)
        moves[index] = Affine(((index, 1), *rest), -position.constant)  # the index now runs along the axis itself
        taken.add(index)
        positions.append(Affine(((index, 1),)))
    target = Element(name, tuple(positions))
    moved = _substituted(value, moves)
    sign: Sign = "+=" if again or reduced_indices(Statement(target, "+=", moved)) else "="
    made = Statement(target, sign, moved)
    return replace(made, text=f"{target} {sign} {show(moved)}", label=name)


def _substituted(expr: Expr, moves: Mapping[str, Affine]) -> Expr:
    """An expression with some indices exchanged for affine ones."""
    if not moves:
        return expr

    def move(position: Affine) -> Affine:
        factors: dict[str, int] = {}
        constant = position.constant
        for index, factor in position.factors:
            by = moves.get(index, Affine(((index, 1),)))
            constant += factor * by.constant
            for inner, step in by.factors:
                factors[inner] = factors.get(inner, 0) + factor * step
        return Affine(tuple((i, f) for i, f in factors.items() if f), constant, position.lookup)

    def change(part: Expr) -> Expr | None:
        if isinstance(part, Element):
            return replace(part, positions=tuple(map(move, part.positions)))
        return IndexValue(move(part.position)) if isinstance(part, IndexValue) else None

    return mapped(expr, change)


def _single_assignment(program: Program) -> list[Statement]:
    """Statements in which every tensor is made once: one that is made again gets a name of its own."""
    if any(isinstance(line, TileBlock) for line in program.lines):
        raise InputError("a program with blocks of tiles is not differentiated; write it without them")
    current: dict[str, str] = {}
    locals_: dict[str, Expr] = {}
    last = {each.name: number for number, each in enumerate(program.statements)}
    found: list[Statement] = []

    def change(part: Expr) -> Expr | None:
        if isinstance(part, Local):
            return locals_[part.name]
        return replace(part, tensor=current.get(part.tensor, part.tensor)) if isinstance(part, Element) else None

    for number, each in enumerate(program.statements):
        value = mapped(each.value, change)
        if isinstance(each.target, Local):
            locals_[each.target.name] = value
            continue
        name = each.name if last[each.name] == number else f"{each.name}.{number}"
        current[each.name] = name
        found.append(replace(each, target=replace(each.target, tensor=name), value=value))
    return found


def _dependent(statements: Sequence[Statement], wrt: Sequence[str]) -> set[str]:
    """Tensors whose values depend on what is asked for."""
    found = set(wrt)
    for each in statements:
        if found & {element.tensor for element in each.reads}:
            found.add(each.name)
    return found


def forward(program: Program) -> tuple[Statement, ...]:
    """The statements of a program, each tensor made once: what a backward pass may read."""
    return tuple(_single_assignment(program))


def points(program: Program, statements: Sequence[Statement]) -> int:
    """Points of all loops of some statements: what they cost, in multiply-adds where each is one."""
    total = 0
    for each in statements:
        count = 1
        for index in statement_indices(each):
            count *= program.extents[index]
        total += count
    return total
