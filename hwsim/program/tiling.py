"""How a schedule cuts the loops of a program: tiles, vectors and unrolling, and how its statements see a tensor.

Blocks that run tile by tile: scratch space that holds one tile at a time, and the tiles that a condition leaves.

Groups: statements that run in the same loops, one point after the other.

A group has statements that run at every point (`body`) and statements that run once for each value that a sum has
finished in its register (`late`): the division of a mean, the bias behind a product.

Instructions of one point of a statement, derived from its expression.

The rules are those of a plain compiler: what is computed twice is computed once; a product that is added to something
is one multiply-add, and so is a product with (1 + x); a division by a number is a multiplication; a minus sign before a
value that is added, or that an exponential takes, costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import prod

import numpy as np

from hwsim.errors import InputError
from hwsim.numerics.format import Array
from hwsim.program.bind import Program, is_recurrence, plus, reduced_indices, statement_indices, times
from hwsim.program.expression import (
    FUNCTIONS,
    Affine,
    Apply,
    Element,
    Expr,
    IndexValue,
    Local,
    Number,
    elements,
    is_cast,
    locals_of,
    walk,
)
from hwsim.program.loops import LoopOperation, LoopPlan, Operand, Range, Ranges
from hwsim.program.statement import Line, Statement, TileBlock
from hwsim.program.tensors import Storage
from hwsim.trace.nest import MAX_ACCESSES, Instructions, Size
from hwsim.trace.view import TensorView

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


@lru_cache(maxsize=1024)
def needs_floats(statements: tuple[Statement, ...]) -> bool:
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


@dataclass(frozen=True)
class Group:
    """Statements in common loops."""

    name: str
    body: tuple[Statement, ...]
    late: tuple[Statement, ...] = ()

    @cached_property
    def indices(self) -> tuple[str, ...]:
        """The loops: indices of the results first, then those that are reduced."""
        own = [index for each in self.body for index in _target_indices(each)]
        reduced = {index for each in self.body for index in reduced_indices(each) if not isinstance(each.target, Local)}
        every = [index for each in self.body for index in statement_indices(each)]
        first = [index for index in own if index not in reduced]
        return tuple(dict.fromkeys((*first, *own, *every)))

    @cached_property
    def main(self) -> Statement:
        """The one whose result is kept: the last that reduces, else the last."""
        sums = [each for each in self.body if each.accumulates or is_recurrence(each)]
        return sums[-1] if sums else [each for each in self.body if isinstance(each.target, Element)][-1]

    @cached_property
    def target(self) -> Element:
        assert isinstance(self.main.target, Element)
        return self.main.target

    @cached_property
    def accumulates(self) -> bool:
        return self.main.accumulates or bool(self.carried)

    @cached_property
    def carried(self) -> frozenset[str]:
        """Tensors that go from point to point in registers, where a recurrence is among the statements."""
        if not any(is_recurrence(each) for each in self.body):
            return frozenset()
        return frozenset(each.name for each in self.body if each.accumulates or is_recurrence(each))

    @cached_property
    def reduced(self) -> tuple[str, ...]:
        return tuple(index for index in self.indices if index not in self.target.indices)

    @cached_property
    def reads(self) -> tuple[Element, ...]:
        """What is loaded at every point: all that is read and not made there."""
        return tuple(each for each in _loaded(self.body, ()) if each.tensor not in self.carried)

    @cached_property
    def late_reads(self) -> tuple[Element, ...]:
        """What is loaded when a sum is finished, beside what is in a register already."""
        return _loaded(self.late, self.body)

    @cached_property
    def stores(self) -> tuple[Element, ...]:
        """Results beside the main one."""
        found: list[Element] = []
        for each in (*self.body, *self.late):
            target = each.target
            if isinstance(target, Element) and not any(map(target.same, (*found, self.result))):
                found.append(target)
        return tuple(found)

    @cached_property
    def result(self) -> Element:
        """What the loop stores in the end: the target of the last late statement, if there is one."""
        finished = [each.target for each in self.late if isinstance(each.target, Element)]
        return finished[-1] if finished else self.target

    @cached_property
    def body_cost(self) -> Instructions:
        return count_body(self.body)

    def late_cost(self, extents: Mapping[str, int]) -> Instructions:
        """For each result that is stored; a maximum of finished sums in registers begins with the first of them."""
        total = NOTHING
        for statement, cost in zip(self.late, count_each(self.late), strict=True):
            own = set(statement_indices(statement)) - set(self.result.indices)
            total += cost.scaled(prod(extents[index] for index in own))
            total += Instructions(add=-1) if statement.accumulates else NOTHING
        return total


GroupLine = Group | tuple[TileBlock, tuple["GroupLine", ...]]


def make_groups(
    program: Program,
    lines: Sequence[Line] | None = None,
    *,
    fuse: bool = True,
    completes: Callable[[Group], bool] = lambda group: True,
) -> tuple[GroupLine, ...]:
    """The statements of a program in groups, blocks of tiles kept; without `fuse` only what finishes a sum joins it.

    `completes` tells whether the loops of a group finish each sum in its register: only then can it be worked on there.
    """
    only = program.statements[0]
    if lines is None and program.lines == (only,) and isinstance(only.target, Element):
        return (_alone(only),)
    found: list[GroupLine] = []
    waiting: list[Statement] = []
    for line in program.lines if lines is None else lines:
        if isinstance(line, TileBlock):
            found.append((line, make_groups(program, line.body, fuse=fuse, completes=completes)))
            continue
        if isinstance(line.target, Local):
            waiting.append(line)
            continue
        own = (*waiting, line)
        last = found[-1] if found and isinstance(found[-1], Group) else None
        joined = None if last is None or any(each.label for each in own) else _join(program, last, own, fuse)
        unfinished = joined is not None and last is not None and joined.late != last.late and not completes(joined)
        waiting = []
        if joined is not None and not unfinished:
            found[-1] = joined
        else:
            label = next((each.label for each in own if each.label), "epilogue" if unfinished else line.name)
            found.append(Group(label, own))
    return tuple(found)


@lru_cache(maxsize=1024)
def _alone(statement: Statement) -> Group:
    """A statement in loops of its own; what follows from it is the same for all shapes."""
    return Group(statement.label or statement.name, (statement,))


def all_groups(lines: Sequence[GroupLine]) -> tuple[Group, ...]:
    found: list[Group] = []
    for line in lines:
        found += [line] if isinstance(line, Group) else all_groups(line[1])
    return tuple(found)


def _join(program: Program, group: Group, new: tuple[Statement, ...], fuse: bool) -> Group | None:
    """The group with further statements in the same loops, or None where they need loops of their own."""
    statement = new[-1]
    indices = set(statement_indices(statement)) | {i for each in new for i in statement_indices(each)}
    if is_recurrence(statement):
        return Group(group.name, (*group.body, *new)) if indices == set(group.indices) and not group.late else None
    finishes = statement.name in {each.name for each in (*group.body[-1:], *group.late)} and not statement.accumulates
    if not fuse and not (group.accumulates and finishes):
        return None
    written = {each.target for each in (*group.body, *group.late) if isinstance(each.target, Element)}
    names = {element.tensor for element in written}
    for each in new:
        for element in each.reads:
            if element.tensor in names and not any(element.same(old) for old in written):
                return None
    sums = [each for each in group.body if each.accumulates and set(reduced_indices(each))]
    if sums:
        kept = set(group.target.indices)
        whole = set(group.indices)
        reads_sum = any(element.tensor in {each.name for each in sums} for each in new for element in each.reads)
        in_registers = not statement.accumulates or (reads_sum and _read_only_by(program, group, new))
        if indices <= kept and in_registers and (reads_sum or group.late):
            return Group(group.name, group.body, (*group.late, *new))
        if indices == whole and not reads_sum and not group.late and not locals_of(statement.value) - _locals(new):
            return Group(group.name, (*group.body, *new))
        return None
    if indices == set(group.indices) or (indices <= set(group.indices) and statement.accumulates):
        return Group(group.name, (*group.body, *new))
    return None


def _read_only_by(program: Program, group: Group, new: tuple[Statement, ...]) -> bool:
    """Whether nobody else sees a sum, so that it can stay in registers until it is reduced further."""
    name, own = group.target.tensor, (*group.body, *group.late, *new)
    readers = [each for each in program.statements if name in {element.tensor for element in each.reads}]
    return name not in program.outputs and all(each in own for each in readers)


def _locals(statements: Sequence[Statement]) -> set[str]:
    return {each.target.name for each in statements if isinstance(each.target, Local)}


def _target_indices(statement: Statement) -> tuple[str, ...]:
    return statement.target.indices if isinstance(statement.target, Element) else ()


def _loaded(statements: Sequence[Statement], before: Sequence[Statement]) -> tuple[Element, ...]:
    made = [each.target for each in before if isinstance(each.target, Element)]
    found: list[Element] = []
    for each in statements:
        for element in each.reads:
            looked_up = [position.lookup for position in element.positions if position.lookup is not None]
            for one in (*looked_up, element):
                if not any(one.same(old) for old in (*made, *found)):
                    found.append(one)
        if isinstance(each.target, Element):
            made.append(each.target)
    return tuple(found)


def fit_plan(
    order: Sequence[str],
    extents: Mapping[str, int],
    operation: LoopOperation,
    *,
    tile: Mapping[str, int] | None = None,
    unroll: Mapping[str, int] | None = None,
    along: str = "",
    lanes: int = 1,
) -> LoopPlan:
    """The loops of a sum, with vectors along one of them: narrower where too many accesses would have to be made."""
    asked = {index: min(size, extents[index]) for index, size in (unroll or {}).items() if index in extents}
    vector = along if lanes > 1 and along in extents else None
    plan = LoopPlan(
        order=tuple(order),
        tile={index: min(size, extents[index]) for index, size in (tile or {}).items() if index in extents},
        unroll={index: size for index, size in asked.items() if (unroll or {})[index] > 1},
        vector=vector,
        lanes=lanes if vector else 1,
    )
    if vector is None:
        return plan
    while True:
        fitted = _with_vector(plan, extents, unroll or {})
        if fitted.lanes == 1 or accesses(fitted, extents, operation) <= MAX_ACCESSES:
            return fitted if fitted.lanes > 1 else replace(plan, vector=None, lanes=1)
        plan = replace(plan, lanes=plan.lanes // 2)


def _with_vector(plan: LoopPlan, extents: Mapping[str, int], asked: Mapping[str, int]) -> LoopPlan:
    """A loop that is not the innermost one is unrolled by its vectors: by two where others are unrolled too."""
    index = plan.vector
    assert index is not None
    if index == plan.order[-1] or index in asked:
        return plan
    vectors = 2 if any(size > 1 for name, size in plan.unroll.items() if name != index) else 1
    return replace(plan, unroll={**plan.unroll, index: min(vectors * plan.lanes, extents[index])})


def accesses(plan: LoopPlan, extents: Mapping[str, int], operation: LoopOperation) -> int:
    """How many accesses the body of the innermost loop makes at most, over all edges."""
    total = sum(_copies(plan, extents, operand) for operand in (*operation.inputs, *operation.late))
    if operation.output is not None:
        total += 2 * _copies(plan, extents, operation.output, joined=True)
    return total


def _copies(plan: LoopPlan, extents: Mapping[str, int], operand: Operand, joined: bool = False) -> int:
    return prod(_copies_along(plan, extents, operand, index, joined) for index in operand.strides if index in extents)


def _copies_along(plan: LoopPlan, extents: Mapping[str, int], operand: Operand, index: str, joined: bool) -> int:
    step = min(plan.step(index), extents[index])
    if index != plan.vector:
        return step
    neighbours = operand.has_neighbours(index, plan.lanes)
    if index == plan.order[-1]:
        return len(plan.runs(index, step)) + (step - 1).bit_length() if neighbours else 2 * step
    if not neighbours:
        return step
    tile = min(plan.tile.get(index, extents[index]), extents[index])
    counts = {min(step, size) for size in (tile, extents[index] % tile) if size}
    counts |= {size % step for size in (tile, extents[index] % tile) if size % step}
    return 1 if joined else max(len(plan.runs(index, count)) for count in counts)


def count_registers(plan: LoopPlan, operands: Sequence[Operand]) -> int:
    """Values that the innermost loop holds: of each operand, as many as its loops are unrolled; a vector is one."""
    lanes = {index: plan.lanes if index == plan.vector else 1 for index in plan.order}
    return sum(
        prod(-(-plan.unroll.get(i, 1) // lanes[i]) for i in operand.strides if i in lanes) for operand in operands
    )


Planner = Callable[[Group, Mapping[str, int], Sequence[Operand]], LoopPlan | None]
"""The loop order, tiles and vectors of a group; None takes the order of its indices."""


@dataclass(frozen=True)
class AxisView:
    """A tensor as statements see it: its axes split or joined, then in another order."""

    port: tuple[int, ...]
    """Its shape in memory."""
    split: tuple[int, ...]
    order: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.split[axis] for axis in self.order) if self.order else self.split

    def of(self, tensor: TensorView) -> TensorView:
        split = tensor.reshape(*self.split)
        return split.permute(*self.order) if self.order else split

    def values(self, array: Array) -> Array:
        """Without a copy."""
        split = array.reshape(self.split)
        return split.transpose(self.order) if self.order else split

    def along(self, positions: Sequence[Affine]) -> list[Affine]:
        """The place along each axis in memory of an element at these positions of the axes that are seen."""
        order = self.order or tuple(range(len(self.split)))
        left = [(extent, positions[order.index(axis)]) for axis, extent in enumerate(self.split)]
        found = []
        for extent in reversed(self.port):
            place, step = Affine(()), 1
            while left and step * left[-1][0] <= extent:
                size, position = left.pop()
                place = plus(place, times(position, step))
                step *= size
            found.append(place)
        return found[::-1]

    def stored(self, values: Array) -> Array:
        """Values that statements see, as they lie in memory."""
        back = values.transpose(np.argsort(self.order)) if self.order else values
        return back.reshape(self.port)


@dataclass(frozen=True)
class LoopCuts:
    """How the loops of a program are cut: what a schedule says of them."""

    vector: bool = True
    fuse: bool = True
    together: Mapping[str, int] = field(default_factory=dict)
    """Iterations of outer indices that go through all loops before the next ones begin."""
    order: tuple[str, ...] = ()
    """Loops, outermost first; results first and sums inside if not said."""
    plan: Planner = lambda group, extents, operands: None
    """Tiles and vectors of a group, beyond its order."""
    share: tuple[str, ...] = ()
    """Indices that cores share, the first with enough iterations for all, else the last; any if not said."""
    phases: bool = False
    """Whether every group waits for all cores to finish the one before."""
    titles: bool = True
    """Whether the result tells these phases apart, by the names of their loops."""
    storage: Mapping[str, Storage] = field(default_factory=dict)
    """How tensors lie in memory when the operation runs alone; row by row where nothing is said."""
    stages: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Where all cores wait for each other, where that is said and not found: before the loop that makes a tensor. The
    name of what begins there ("": nobody waits), and the index that is shared out ("": the first)."""
    narrow: bool = False
    """Whether a vector has as many lanes as fit of its widest operand, but in products."""
    returned: frozenset[str] = frozenset()
    """Outputs that stay in a register, as what a function returns does: nothing is stored."""
    whole_sums: bool = False
    """Whether the pieces of a sum that tiles cut are added up in the format of sums before they are stored."""

    def extents(self, group: Group, program: Program) -> dict[str, int]:
        """The loops of a group in their order."""
        own = [index for index in self.order if index in group.indices]
        return {index: program.extents[index] for index in (*own, *(i for i in group.indices if i not in own))}

    def completes(self, program: Program) -> Callable[[Group], bool]:
        """Whether the loops of a group finish each sum in its register."""

        def check(group: Group) -> bool:
            extents = self.extents(group, program)
            plan = self.plan(group, extents, ()) or LoopPlan(tuple(extents))
            target = Operand("", 0, 1, dict.fromkeys(group.result.indices, 1))
            return plan.completes(LoopOperation((), target))

        return check


Place = tuple[tuple[str, int], ...]
"""The number of a tile along each index."""


@dataclass(frozen=True)
class Private:
    """Scratch space for one tile at a time, of which each core has its own."""

    view: TensorView
    made: Element
    """As it is written."""
    shape: tuple[int, ...]
    sizes: Mapping[str, int]
    """Iterations of a tile."""
    users: Sequence[set[str]]
    """The indices of each group that uses it."""

    def place_in(self, ranges: Ranges, sharing: Mapping[str, str]) -> Place:
        """Which tile it is, of those that several cores work on at the same time."""
        index = sharing[self.view.name]
        if not all(index in own for own in self.users):
            return ()
        return ((index, ranges[index][0] // self.sizes.get(index, 1)),)

    def local(self, element: Element, extents: Mapping[str, int]) -> dict[str, tuple[int, Size]]:
        """Along each index: how many iterations find memory of their own, and that the next ones find the same."""
        sizes = {index: size for index, size in self.sizes.items() if index in element.indices}
        for axis, position in enumerate(element.positions):
            for index, _ in self._following(axis, position, extents):
                sizes[index] = self.shape[axis]
        return {index: (size, 0) for index, size in sizes.items()}

    def follows(self, element: Element, extents: Mapping[str, int]) -> Iterator[tuple[str, tuple[str, int]]]:
        """Indices of a reader that run over an axis which tiles of another index have written."""
        for axis, position in enumerate(element.positions):
            yield from self._following(axis, position, extents)

    def _following(
        self, axis: int, position: Affine, extents: Mapping[str, int]
    ) -> Iterator[tuple[str, tuple[str, int]]]:
        leaders = [(i, factor) for i, factor in self.made.positions[axis].factors if i in self.sizes]
        for index in position.indices:
            if index not in self.sizes and extents[index] > self.shape[axis] and position.is_plain:
                if len(leaders) != 1 or leaders[0][1] * self.sizes[leaders[0][0]] != self.shape[axis]:
                    raise InputError(f"{self.made}: a tile has to fill this axis before {index} runs over it")
                yield index, leaders[0]


@dataclass(frozen=True)
class TileEdge:
    """Which part of an index a condition such as ``j <= i + 3`` leaves, given the tiles around."""

    index: str
    size: int
    extent: int
    condition: Expr

    def inside(self, around: Ranges) -> Range:
        """Whole tiles in which the condition holds everywhere."""
        if self._is_start:
            first = -(-self._clipped(self._bound(around, lowest=False)) // self.size) * self.size
            return first, max(0, self.extent - first)
        return 0, self._clipped(self._bound(around, lowest=True) + 1) // self.size * self.size

    def across(self, around: Ranges) -> Range:
        """The tiles beside them for which it holds somewhere."""
        if self._is_start:
            first = self._clipped(self._bound(around, lowest=True)) // self.size * self.size
            return first, self.inside(around)[0] - first
        first = self.inside(around)[1]
        return first, max(0, self._clipped(self._bound(around, lowest=False) + 1) - first)

    def _clipped(self, position: int) -> int:
        return max(0, min(position, self.extent))

    @property
    def _is_start(self) -> bool:
        """Whether the condition says where the index begins, not where it ends."""
        return isinstance(self.condition, Apply) and self._own(self.condition.arguments[0]) is None

    def _own(self, side: Expr) -> int | None:
        """The constant beside the index on its side of the comparison."""
        match side:
            case IndexValue(Affine(((name, 1),), constant)) if name == self.index:
                return constant
        return None

    def _bound(self, around: Ranges, *, lowest: bool) -> int:
        """The last iteration for which it holds, or the first, at the points around where that is lowest or highest."""
        match self.condition:
            case Apply("<=" | "<" as sign, (IndexValue() as left, IndexValue() as right)):
                end, start = self._own(left), self._own(right)
                if (end is None) != (start is None):
                    other = right.position if start is None else left.position
                    total = other.constant - (end if end is not None else start or 0)
                    total += 0 if sign == "<=" else 1 if end is None else -1
                    for index, factor in other.factors:
                        first, count = around[index]
                        total += factor * (first if (factor > 0) == lowest else first + count - 1)
                    return total
        raise InputError(f"for {self.index}: a condition has to look like {self.index} <= i + 1")
