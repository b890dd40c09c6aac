"""Fusion: the statements of several operations in the same loops, so that what is between them is never stored.

An element-wise operation behind another one runs where that one's result is still in a register: its statements follow
those of the head, with its indices exchanged for those that the head stores its result by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from hwsim.errors import InputError
from hwsim.numerics.format import Array
from hwsim.program.bind import Program, plus, reduced_indices, times
from hwsim.program.expression import Affine, Element, Expr, IndexValue, Local, mapped
from hwsim.program.group import all_groups, make_groups
from hwsim.program.operation import StatementOperator
from hwsim.program.statement import Line, Statement, TileBlock
from hwsim.program.tiling import AxisView


def is_elementwise(operator: StatementOperator) -> bool:
    """Whether each element of the result needs one element of the first input, and no sum."""
    first, program = operator.inputs[0].name, operator.program
    if any(isinstance(line, TileBlock) for line in program.lines) or len(operator.outputs) != 1:
        return False
    target = program.statements[-1].target
    for each in program.statements:
        if each.accumulates or reduced_indices(each):
            return False
        if isinstance(each.target, Element) and each.target.positions != _positions(target):
            return False
        if any(element.tensor == first and element.positions != _positions(target) for element in each.reads):
            return False
    return True


class FusedOperator(StatementOperator):
    """A head and element-wise operations behind it, each of which reads the one before as its first input."""

    def __init__(self, head: StatementOperator, tail: Sequence[StatementOperator]) -> None:
        self.__dict__.update(head.__dict__)
        self.head = head
        self.members = (head, *tail)
        program, inputs = head.program, list(head.inputs)
        result = head.outputs[-1].name
        for number, member in enumerate(tail, start=1):
            names = {port.name: f"{port.name}.{number}" for port in (*member.inputs, *member.outputs)}
            names[member.inputs[0].name] = result
            program = joined(program, member.program, result, names, number, self.views.get(head.outputs[-1].name))
            inputs += [replace(port, name=names[port.name]) for port in member.inputs[1:]]
            result = names[member.outputs[-1].name]
        self.program = program
        layout = self.layout(1)
        self.groups = all_groups(make_groups(program, fuse=layout.fuse, completes=layout.completes(program)))
        self.inputs = tuple(inputs)
        self.outputs = (replace(head.outputs[-1], name=result, over=""),)
        stored = [group for group in self.groups if group.result.tensor == result]
        if layout.together and len(self.groups) == len(head.groups) + 1:
            # A pass over each tile of the result, in the memory that the result takes.
            self.text = replace(head.text, over={head.outputs[-1].name: result})
        elif len(self.groups) != len(head.groups) or not stored:
            raise InputError(
                f"the loops of {head.name} do not finish its results in registers, where {tail[0].name} could go on; "
                "choose an order in which sums run innermost and uncut, or do not fuse"
            )

    def reference(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """One operation after the other."""
        given = iter(self.inputs)
        value: Array = np.zeros(0)
        for number, member in enumerate(self.members):
            ports = member.inputs[1:] if number else member.inputs
            own = {port.name: tensors[next(given).name] for port in ports}
            if number:
                own[member.inputs[0].name] = value
            value = member.reference(own)[member.outputs[-1].name]
        return {self.outputs[-1].name: value}


def joined(
    head: Program, tail: Program, result: str, names: Mapping[str, str], number: int, seen: AxisView | None = None
) -> Program:
    """The statements of both; `names` are the tensors of the tail as the joined program calls them.

    `seen` is how the head's statements see its result, where that is with other axes than the tail does: an index of
    the tail is then a sum of theirs, c = 64 * head + e.
    """
    stored = next(each.target for each in reversed(head.statements) if each.name == result)
    read = next(e for each in tail.statements for e in each.reads if names.get(e.tensor, e.tensor) == result)
    indices = {index: Affine(((f"{index}.{number}", 1),)) for index in tail.extents}
    first = seen is not None and number == 1
    places = seen.along(_positions(stored)) if seen is not None and first else _positions(stored)
    for ours, theirs in zip(places, read.positions, strict=True):
        if not theirs.is_plain or (seen is None and not ours.is_plain):
            raise InputError(f"{read} cannot go on where {stored} was stored")
        indices[theirs.factors[0][0]] = ours
    own = {name: names.get(name, f"{name}.{number}") for name in tail.shapes}

    def place(position: Affine) -> Affine:
        moves = (times(indices[index], factor) for index, factor in position.factors)
        return reduce(plus, moves, replace(position, factors=()))

    def change(part: Expr) -> Expr | None:
        if first and isinstance(part, Element) and names.get(part.tensor) == result:
            return stored
        if isinstance(part, Element):
            return replace(part, tensor=own[part.tensor], positions=tuple(map(place, part.positions)))
        if isinstance(part, Local):
            return Local(f"{part.name}.{number}")
        return IndexValue(place(part.position)) if isinstance(part, IndexValue) else None

    def moved(line: Line) -> Statement:
        assert isinstance(line, Statement)
        target = change(line.target)
        assert isinstance(target, Element | Local)
        return replace(line, target=target, value=mapped(line.value, change), label="")

    behind = tuple(moved(line) for line in tail.lines)
    new = {own[name]: shape for name, shape in tail.shapes.items()}
    new_loops = {index: indices[index].factors[0][0] for index in tail.extents if indices[index].is_plain}
    extents = {new_loops[index]: extent for index, extent in tail.extents.items() if index in new_loops}
    return replace(
        head,
        lines=_behind(head.lines, result, behind),
        extents={**extents, **head.extents},
        shapes={**new, **head.shapes},
        halos={**{own[name]: halo for name, halo in tail.halos.items()}, **head.halos},
        inputs=(*head.inputs, *(own[name] for name in tail.inputs if own[name] != result)),
        outputs=(own[tail.outputs[-1]],),
    )


def _behind(lines: Sequence[Line], result: str, behind: tuple[Statement, ...]) -> tuple[Line, ...]:
    """Statements put in where a result is made for the last time, inside the blocks of tiles that make it."""
    last = max(number for number, line in enumerate(lines) if _makes(line, result))
    line = lines[last]
    if isinstance(line, Statement):
        return (*lines[: last + 1], *behind, *lines[last + 1 :])
    return (*lines[:last], replace(line, body=_behind(line.body, result, behind)), *lines[last + 1 :])


def _makes(line: Line, tensor: str) -> bool:
    return line.name == tensor if isinstance(line, Statement) else any(_makes(each, tensor) for each in line.body)


def _positions(target: Element | Local) -> tuple[Affine, ...]:
    return target.positions if isinstance(target, Element) else ()
