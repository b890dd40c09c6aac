"""Groups: statements that run in the same loops, one point after the other.

A group has statements that run at every point (`body`) and statements that run once for each value that a sum has
finished in its register (`late`): the division of a mean, the bias behind a product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from hwsim.program.bind import Program, is_recurrence, reduced_indices, statement_indices
from hwsim.program.count import count_body, count_each
from hwsim.program.expression import Element, Local, locals_of
from hwsim.program.statement import Line, Statement, TileBlock
from hwsim.trace.nest import Instructions


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
        total = Instructions()
        for statement, cost in zip(self.late, count_each(self.late), strict=True):
            own = set(statement_indices(statement)) - set(self.result.indices)
            total += cost.scaled(prod(extents[index] for index in own))
            total += Instructions(add=-1) if statement.accumulates else Instructions()
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
