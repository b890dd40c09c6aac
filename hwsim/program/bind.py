"""Binding: statements with their names resolved and their extents known.

Given the shapes of input tensors, or the extents of the indices, everything else follows: how many axes `...` stands
for, how far each index runs, the shape of every tensor, and the zeros around it that positions beyond its edges read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, pi
from operator import is_

from hwsim.errors import InputError, ShapeError
from hwsim.program.expression import (
    Affine,
    Apply,
    Element,
    Expr,
    Extent,
    IndexValue,
    Local,
    Number,
    Symbol,
    mapped,
    walk,
)
from hwsim.program.statement import DOTS, Line, Statement, TileBlock, all_statements, statement_error
from hwsim.spec.fields import did_you_mean

Shape = tuple[int, ...]

CONSTANTS: Mapping[str, float] = {"inf": inf, "pi": pi}
MOST_NAMED = 1024
_NAMED: dict[tuple[object, ...], tuple[tuple[Line, ...], tuple[Line, ...]]] = {}
"""Lines whose names were resolved, with those that they were before: by identity, since texts are parsed once."""


@dataclass(frozen=True)
class Program:
    """Bound statements: every position is affine, every extent known."""

    lines: tuple[Line, ...]
    extents: Mapping[str, int]
    shapes: Mapping[str, Shape]
    """Of every tensor that lies in memory."""
    halos: Mapping[str, Shape]
    """Zeros on each side of each axis that some statement reads, for tensors that have them."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def statements(self) -> tuple[Statement, ...]:
        return all_statements(self.lines)

    @cached_property
    def between(self) -> tuple[str, ...]:
        """Tensors that are neither given nor asked for, in the order in which they are made."""
        made = [each.name for each in self.statements if isinstance(each.target, Element)]
        return tuple(dict.fromkeys(name for name in made if name not in (*self.inputs, *self.outputs)))

    def size(self, block: TileBlock) -> int:
        """How many iterations a tile of a block has."""
        if block.size.isdigit():
            return min(int(block.size), self.extents[block.index])
        asked = self.parameters.get(block.size)
        if asked is None:
            raise InputError(f"for {block.index} by {block.size}: there is no parameter {block.size}")
        return min(int(asked), self.extents[block.index])


def statement_indices(statement: Statement) -> tuple[str, ...]:
    """The loops of a bound statement: the target's indices first, then those that are reduced."""
    return statement.indices


def reduced_indices(statement: Statement) -> tuple[str, ...]:
    """Indices that the target lacks."""
    own = statement.target.indices if isinstance(statement.target, Element) else ()
    return tuple(index for index in statement.indices if index not in own)


def is_recurrence(statement: Statement) -> bool:
    """Whether it goes from point to point along an index that its target lacks: ``s[i] = s[i] * a[i,j] + b[i,j]``."""
    own = statement.target
    if statement.sign != "=" or not isinstance(own, Element) or not reduced_indices(statement):
        return False
    return any(own.same(element) for element in statement.reads)


def bind(
    lines: tuple[Line, ...],
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    sizes: Mapping[str, int] | None = None,
    parameters: Mapping[str, float] | None = None,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    padded: bool = True,
    thin: Sequence[str] = (),
) -> Program:
    """Resolve names and extents; `padded` lets positions reach beyond the edges of a tensor, where zeros are.

    Of the `thin` indices, those that run over one thing only make no loop.
    """
    given = {name: tuple(shape) for name, shape in (shapes or {}).items()}
    known = dict(sizes or {}), dict(parameters or {})
    return _Binder(lines, given, *known, tuple(inputs), tuple(outputs), padded, tuple(thin)).program()


@dataclass
class _Binder:
    lines: tuple[Line, ...]
    given: dict[str, Shape]
    sizes: dict[str, int]
    parameters: dict[str, float]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    padded: bool
    thin: tuple[str, ...]

    def __post_init__(self) -> None:
        self.extents = dict(self.sizes)
        self.found: dict[str, str] = {}
        """The tensor that each extent was found in."""
        self.dots = self._count_dots()

    def program(self) -> Program:
        lines = self._named()
        statements = all_statements(lines)
        self._find_extents(statements)
        for statement in statements:
            self._check(statement)
        lines = tuple(self._sized(line) for line in self._without_thin(lines))
        statements = all_statements(lines)
        shapes, halos = self._shapes(statements)
        inputs, outputs = self._ends(statements)
        used = {index for each in statements for index in statement_indices(each)}
        unknown = [index for index in self.sizes if index not in used]
        if unknown:
            raise InputError(f"sizes: {', '.join(unknown)} does not appear in the formula {statements[0].text}")
        return Program(lines, self.extents, shapes, halos, inputs, outputs, self.parameters)

    # Names -----------------------------------------------------------------------------------------------------------

    def _named(self) -> tuple[Line, ...]:
        """The lines with their names resolved, which is the same for all shapes of as many axes."""
        ranks = tuple((name, len(shape)) for name, shape in self.given.items())
        key = (id(self.lines), self.dots, ranks, tuple(self.parameters.items()), tuple(self.sizes))
        if key not in _NAMED:
            known: set[str] = set()
            if len(_NAMED) >= MOST_NAMED:
                _NAMED.clear()
            _NAMED[key] = self.lines, tuple(self._names(line, known) for line in self.lines)
        return _NAMED[key][1]

    def _count_dots(self) -> int:
        """How many axes ``...`` stands for: what the positions of a given tensor leave of its shape."""
        found: set[int] = set()
        for statement in all_statements(self.lines):
            for part in statement.elements:
                if DOTS in part.positions and part.tensor in self.given:
                    found.add(len(self.given[part.tensor]) - len(part.positions) + 1)
        if any(count < 0 for count in found):
            raise ShapeError(f"the shapes {self.given} have too few axes for the positions that are named")
        return max(found) if found else 1

    def _names(self, line: Line, known: set[str]) -> Line:
        if isinstance(line, TileBlock):
            inner = set(known)
            body = tuple(self._names(each, inner) for each in line.body)
            condition = None if line.condition is None else self._resolved(line.condition, line, known, True)
            return replace(line, body=body, condition=None if isinstance(condition, Number) else condition)
        value = self._resolved(line.value, line, known)
        target: Element | Local = line.target
        if isinstance(target, Element):
            target = self._element(target, line)
        else:
            known.add(target.name)
        return replace(line, target=target, value=value)

    def _resolved(self, expr: Expr, line: Line, known: set[str], loose: bool = False) -> Expr:
        seen = {part.name for part in _position_symbols(line)} if isinstance(line, Statement) else set()

        def change(part: Expr) -> Expr | None:
            if isinstance(part, Element):
                return self._element(part, line)
            if not isinstance(part, Symbol):
                return None
            if part.name in self.parameters or part.name in CONSTANTS:
                return Number(float(self.parameters.get(part.name, CONSTANTS.get(part.name, 0.0))))
            if part.name in known:
                return Local(part.name)
            if loose or part.name in seen or part.name in self.extents:
                return IndexValue(Affine(((part.name, 1),)))
            raise self._error(
                line,
                part.column,
                f"what is {part.name}?{did_you_mean(part.name, [*known, *self.parameters, *seen])}"
                " It is no parameter, no index of this statement and no value of a line before",
            )

        return _folded(mapped(expr, change))

    def _element(self, element: Element, line: Line) -> Element:
        positions: list[Affine] = []
        for position in element.positions:
            if position == DOTS:
                shape = self.given.get(element.tensor)
                own = self.dots if shape is None else len(shape) - len(element.positions) + 1
                positions += [Affine(((f"r{axis}", 1),)) for axis in range(self.dots - own, self.dots)]
            elif isinstance(position, Affine):
                positions.append(position)
            else:
                positions.append(self._affine(position, element, line))
        return replace(element, positions=tuple(positions) or (Affine(()),))

    def _affine(self, expr: Expr, element: Element, line: Line) -> Affine:
        """constant + Σ factor · index, from an expression of indices, whole numbers and parameters."""
        match expr:
            case Number(value) if value.is_integer():
                return Affine((), int(value))
            case Symbol(name) if name in self.parameters:
                return Affine((), int(self.parameters[name]))
            case Symbol(name):
                return Affine(((name, 1),))
            case Element():
                return Affine((), 0, self._element(expr, line))
            case Apply("neg", (a,)):
                return times(self._affine(a, element, line), -1)
            case Apply("+", (a, b)):
                return plus(self._affine(a, element, line), self._affine(b, element, line))
            case Apply("-", (a, b)):
                return plus(self._affine(a, element, line), times(self._affine(b, element, line), -1))
            case Apply("*", (a, b)):
                left, right = self._affine(a, element, line), self._affine(b, element, line)
                if not left.factors and left.lookup is None:
                    return times(right, left.constant)
                if not right.factors and right.lookup is None:
                    return times(left, right.constant)
        raise self._error(
            line, element.column, f"a position of {element.tensor} must be a sum of indices, times whole numbers"
        )

    # Extents ---------------------------------------------------------------------------------------------------------

    def _find_extents(self, statements: Sequence[Statement]) -> None:
        """From the shapes of given tensors: plain positions first, then those with one index that is not known yet."""
        reads = [
            (each, statement) for statement in statements for each in statement.elements if each.tensor in self.given
        ]
        for element, statement in reads:
            shape = self.given[element.tensor]
            if len(shape) != len(element.positions):
                raise ShapeError(
                    f"{element.tensor} of shape {shape} has {len(shape)} axes; {element} needs {len(element.positions)}"
                )
            for position, extent in zip(element.positions, shape, strict=True):
                if position.is_plain:
                    self._set(position.factors[0][0], extent, element, statement)
        while any(self._solve(element) for element, _ in reads):
            pass

    def _set(self, index: str, extent: int, element: Element, statement: Statement) -> None:
        known = self.extents.setdefault(index, extent)
        first = self.found.setdefault(index, element.tensor)
        if index in self.sizes and known < extent:
            return  # a part of the tensor
        if known != extent:
            there = f"{first} of shape {self.given[first]}" if first != element.tensor else "another axis of it"
            raise ShapeError(
                f"{element.tensor} of shape {self.given[element.tensor]} does not fit {there}: in '{statement.text}' "
                f"{index} runs over {known} and over {extent}"
            )

    def _solve(self, element: Element) -> bool:
        """Set the extent of the one unknown index of a position, as far as it fits the tensor with its padding."""
        for position, extent in zip(element.positions, self.given[element.tensor], strict=True):
            unknown = [(index, factor) for index, factor in position.factors if index not in self.extents]
            if len(unknown) == 1 and unknown[0][1] > 0 and position.lookup is None:
                index, factor = unknown[0]
                most = extent - 1 + max(0, -position.constant)
                rest = sum(f * (self.extents[i] - 1) for i, f in position.factors if i != index and f > 0)
                room = most - position.constant - rest
                if room < 0:
                    raise ShapeError(f"{element}: windows of {rest + 1} do not fit {element.tensor} of {extent}")
                self.extents[index] = room // factor + 1
                return True
        return False

    def _check(self, statement: Statement) -> None:
        for index in statement_indices(statement):
            if index not in self.extents:
                raise InputError(f"sizes: no extent for {index} of the formula {statement.text}")
        target = statement.target
        if isinstance(target, Local):
            return
        if any(position.lookup is not None for position in target.positions):
            raise self._error(
                statement, target.column, f"{target.tensor} is written where it is looked up: only reads are"
            )
        plain = [index for position in target.positions for index in position.indices]
        if len(set(plain)) != len(plain):
            raise self._error(statement, target.column, f"an index of {target.tensor} appears twice")
        reduced = reduced_indices(statement)
        if reduced and statement.sign == "=" and not is_recurrence(statement):
            message = f"{', '.join(sorted(reduced))} is summed over: write '+=' instead of '='"
            raise self._error(statement, target.column, message)
        for element in statement.reads:
            if element.tensor == target.tensor and statement.accumulates:
                hint = f"write {target.tensor}[…] += … to add to it"
                raise self._error(statement, element.column, f"{element.tensor} is the output; {hint}")

    def _sized(self, line: Line) -> Line:
        """Extents as numbers."""

        def change(part: Expr) -> Expr | None:
            if isinstance(part, Extent):
                if part.index not in self.extents:
                    raise self._error(line, part.column, f"|{part.index}|: there is no index {part.index}")
                return Number(float(self.extents[part.index]))
            return None

        if isinstance(line, TileBlock):
            return replace(line, body=tuple(self._sized(each) for each in line.body))
        value = mapped(line.value, change)
        return line if value is line.value else replace(line, value=value)

    def _without_thin(self, lines: Sequence[Line]) -> tuple[Line, ...]:
        """Without the loops of thin indices that run over one thing."""
        gone = {index for index in self.thin if self.extents.get(index) == 1}
        if not gone:
            return tuple(lines)

        def left(position: Affine) -> Affine:
            return replace(position, factors=tuple(each for each in position.factors if each[0] not in gone))

        def thinner(element: Element) -> Element:
            return replace(element, positions=tuple(map(left, element.positions)))

        def change(part: Expr) -> Expr | None:
            if isinstance(part, Element):
                return thinner(part)
            return IndexValue(left(part.position)) if isinstance(part, IndexValue) else None

        found: list[Line] = []
        for line in lines:
            if isinstance(line, TileBlock):
                body = self._without_thin(line.body)
                condition = None if line.condition is None else mapped(line.condition, change)
                found += body if line.index in gone else [replace(line, body=body, condition=condition)]
            else:
                target = thinner(line.target) if isinstance(line.target, Element) else line.target
                found.append(replace(line, target=target, value=mapped(line.value, change)))
        return tuple(found)

    # Shapes ----------------------------------------------------------------------------------------------------------

    def _shapes(self, statements: Sequence[Statement]) -> tuple[dict[str, Shape], dict[str, Shape]]:
        """Each tensor is as large as the farthest element that is touched, or as it is given; beyond it are zeros."""
        shapes: dict[str, Shape] = dict(self.given)
        written = {each.target.tensor for each in statements if isinstance(each.target, Element)}
        everything = [(each, statement) for statement in statements for each in statement.elements]
        for element, statement in everything:
            if element.tensor in self.given:
                continue
            counted = not (element.tensor in written and element is not statement.target)
            looked_up = [position.lookup for position in element.positions if position.lookup is not None]
            if looked_up and counted:
                raise self._error(
                    statement,
                    element.column,
                    f"{looked_up[0]} does not tell how long {element.tensor} is: give its shape, "
                    f"tensors: {{{element.tensor}: [{', '.join(['1000', *'jkl'][: len(element.positions)])}]}}",
                )
            ends = tuple(self._end(position) if counted else 1 for position in element.positions)
            known = shapes.get(element.tensor)
            if known is None:
                shapes[element.tensor] = ends
                known = shapes[element.tensor]
            if len(known) != len(ends):
                message = f"{element.tensor} has {len(known)} axes elsewhere, here {len(ends)}"
                raise self._error(statement, element.column, message)
            if counted:
                shapes[element.tensor] = tuple(map(max, zip(ends, known, strict=True)))
        halos: dict[str, Shape] = {}
        for element, statement in everything:
            shape = shapes[element.tensor]
            beyond = tuple(
                self._beyond(position, extent) for position, extent in zip(element.positions, shape, strict=True)
            )
            if any(beyond):
                if not self.padded or element is statement.target:
                    before = any(self._first(position) < 0 for position in element.positions)
                    where = "before its first element" if before else "beyond its end"
                    raise self._error(statement, element.column, f"{element.tensor} is read {where}")
                known = halos.get(element.tensor, (0,) * len(shape))
                halos[element.tensor] = tuple(map(max, zip(known, beyond, strict=True)))
        return shapes, halos

    def _end(self, position: Affine) -> int:
        return position.constant + sum(f * (self.extents[i] - 1) for i, f in position.factors if f > 0) + 1

    def _beyond(self, position: Affine, extent: int) -> int:
        if position.lookup is not None:
            return 0
        return max(0, -self._first(position), self._end(position) - extent)

    def _first(self, position: Affine) -> int:
        return position.constant + sum(f * (self.extents[i] - 1) for i, f in position.factors if f < 0)

    def _ends(self, statements: Sequence[Statement]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Tensors that are given, and tensors that are asked for: by name, or those that nothing reads afterwards."""
        made: dict[str, None] = {}
        read: dict[str, None] = {}
        waiting: dict[str, None] = {}
        for statement in statements:
            for element in statement.elements:
                if element is not statement.target:
                    waiting.pop(element.tensor, None)
                    if element.tensor not in made:
                        read.setdefault(element.tensor)
            if isinstance(statement.target, Element):
                made.setdefault(statement.target.tensor)
                waiting.setdefault(statement.target.tensor)
        if not read and not self.inputs:
            text = statements[-1].text
            raise statement_error(text, len(text), "nothing is read; name at least one tensor")
        both = [name for name in read if name in made]
        if both and not self.inputs:
            raise InputError(
                f"formula: {both[0]} is read before anything is written to it; give it a first value, "
                f"{both[0]}[...] = 0"
            )
        last = statements[-1].name
        outputs = self.outputs or tuple(name for name in (*waiting, last) if name in made)
        return self.inputs or tuple(read), tuple(dict.fromkeys(outputs))

    def _error(self, line: Line, column: int, message: str) -> InputError:
        text = line.source if isinstance(line, Statement) else f"for {line.index} by {line.size}:"
        return statement_error(text, min(column, len(text)), message, line.line)


def _position_symbols(statement: Statement) -> Iterator[Symbol]:
    for element in statement.elements:
        for position in element.positions:
            if isinstance(position, Expr):
                yield from (part for part in walk(position) if isinstance(part, Symbol))


def _folded(expr: Expr) -> Expr:
    """Sums of indices as one position, and choices made that are known: nothing lies beyond ``inf``."""
    if not isinstance(expr, Apply):
        return expr
    arguments = tuple(map(_folded, expr.arguments))
    match expr.function, arguments:
        case ("+", (IndexValue(), Number(value)) | (Number(value), IndexValue())) if value == inf:
            return Number(inf)
        case ("+" | "-" as sign, (IndexValue() | Number(), IndexValue() | Number())) if not all(
            isinstance(each, Number) for each in arguments
        ):
            a, b = map(_as_position, arguments)
            if a is not None and b is not None:
                return IndexValue(plus(a, b if sign == "+" else times(b, -1)))
        case ("<=" | "<", (_, Number(value))) if value == inf:
            return Number(1.0)
        case ("where", (Number(value), a, b)):
            return a if value else b
    return expr if all(map(is_, arguments, expr.arguments)) else replace(expr, arguments=arguments)


def _as_position(expr: Expr) -> Affine | None:
    if isinstance(expr, IndexValue):
        return expr.position
    return Affine((), int(expr.value)) if isinstance(expr, Number) and expr.value.is_integer() else None


def times(position: Affine, factor: int) -> Affine:
    if position.lookup is not None and factor != 1:
        raise InputError(f"{position}: a position that is looked up cannot be multiplied")
    return Affine(
        tuple((index, own * factor) for index, own in position.factors if factor),
        position.constant * factor,
        position.lookup,
    )


def plus(a: Affine, b: Affine) -> Affine:
    factors = dict(a.factors)
    for index, factor in b.factors:
        factors[index] = factors.get(index, 0) + factor
    lookup = a.lookup or b.lookup
    return Affine(
        tuple((index, factor) for index, factor in factors.items() if factor), a.constant + b.constant, lookup
    )
