"""Graph: the operations of a chain with their tensors; shapes, float64 values, and who reads what.

Fusion: the statements of several operations in the same loops, so that what is between them is never stored.

An element-wise operation behind another one runs where that one's result is still in a register: its statements follow
those of the head, with its indices exchanged for those that the head stores its result by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain, count, pairwise
from typing import Any

import numpy as np

from hwsim.errors import InputError, ShapeError
from hwsim.numerics.format import Array
from hwsim.program.bind import Program, plus, reduced_indices, times
from hwsim.program.chain_workload import ChainStep, ChainWorkload
from hwsim.program.expression import Affine, Element, Expr, IndexValue, Local, mapped
from hwsim.program.operation import Operator
from hwsim.program.statement import Line, Statement, TileBlock
from hwsim.program.tiling import AxisView, all_groups, make_groups
from hwsim.units import counted


def is_elementwise(operator: Operator) -> bool:
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


class FusedOperator(Operator):
    """A head and element-wise operations behind it, each of which reads the one before as its first input."""

    def __init__(self, head: Operator, tail: Sequence[Operator]) -> None:
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
        self.program, self._layouts = program, {}
        layout = self.layout(1)
        self.groups = all_groups(make_groups(program, fuse=layout.fuse, completes=layout.completes(program)))
        self.inputs = tuple(inputs)
        self.outputs = (*head.outputs[:-1], replace(head.outputs[-1], name=result, over=""))
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
    for ours, theirs, size in zip(places, read.positions, tail.shapes[read.tensor], strict=True):
        if not theirs.is_plain or (seen is None and not _goes_through(ours, size, head.extents)):
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
        outputs=(*(name for name in head.outputs if name != result), own[tail.outputs[-1]]),
    )


def _goes_through(position: Affine, size: int, extents: Mapping[str, int]) -> bool:
    """Whether a position takes each place along an axis once: an index, a sum such as 2 * h + r, or the only place."""
    if position.is_plain:
        return True
    step = 1
    for index, factor in sorted(position.factors, key=lambda each: (each[1], extents[each[0]])):
        if factor != step:
            return False
        step *= extents[index]
    return step == size and position.constant == 0 and position.lookup is None


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


Shape = tuple[int, ...]


@dataclass(frozen=True)
class Derived:
    """A tensor that is made from given ones before the chain runs: folded weights, matrices put side by side."""

    sources: tuple[str, ...]
    shape: Shape
    make: Callable[..., Array]
    """From the sources in float64."""


@dataclass(frozen=True)
class Columns:
    """A tensor that is a range of the last axis of another one, in the same memory."""

    of: str
    first: int
    count: int


@dataclass(frozen=True)
class Node:
    """What runs as one: an operation, or several that are fused."""

    title: str
    output: str
    inputs: tuple[str, ...]
    operator: Operator

    @property
    def names(self) -> dict[str, str]:
        """The tensor behind each port; results beside the main one have names that no file can give."""
        ports = dict(zip((port.name for port in self.operator.inputs), self.inputs, strict=True))
        *others, main = self.operator.outputs
        return ports | {port.name: f"{self.output}.{port.name}" for port in others} | {main.name: self.output}


@dataclass(frozen=True)
class Graph:
    """Operations in the order in which they run. A rewrite makes a new graph."""

    workload: ChainWorkload
    given: Mapping[str, Shape]
    steps: tuple[ChainStep, ...]
    groups: tuple[tuple[str, ...], ...] = ()
    """Operations that run as one, by name."""
    derived: Mapping[str, Derived] = field(default_factory=dict)
    columns: Mapping[str, Columns] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What a rewrite did, or why it did nothing."""
    made: dict[tuple[object, ...], tuple[ChainStep, Operator]] = field(default_factory=dict, compare=False, repr=False)
    """Operators by step and shapes, made once for a graph and all that rewrites make of it."""

    def step(self, name: str) -> ChainStep:
        return next(step for step in self.steps if step.name == name)

    def readers(self, name: str) -> list[ChainStep]:
        """The operations that read a tensor, also through a range of its columns."""
        names = {name, *(part for part, columns in self.columns.items() if columns.of == name)}
        return [step for step in self.steps if names & set(step.inputs)]

    @property
    def results(self) -> list[str]:
        """What the chain makes and does not read itself, as its file says it: no rewrite changes what is asked for."""
        steps = self.workload.operations
        read = {name for step in steps for name in step.inputs}
        return [step.name for step in steps if step.name not in read]

    def is_known(self, name: str) -> bool:
        """Whether a tensor has its values before the chain runs."""
        return name in self.given or name in self.derived

    def new_name(self, name: str) -> str:
        """A name for a tensor that a rewrite makes: this one, or with a number behind it if it is taken."""
        made = [step.name for step in (*self.workload.operations, *self.steps)]
        taken = {*self.given, *self.derived, *self.columns, *made}
        return next(each for each in chain((name,), (f"{name}_{number}" for number in count(2))) if each not in taken)

    def shapes(self) -> dict[str, Shape]:
        """The shape of every tensor."""
        return {name: tuple(shape) for name, shape, _ in self._resolved()}

    def operators(self) -> dict[str, Operator]:
        """The operator of each operation, as if nothing were fused."""
        return {name: operator for name, _, operator in self._resolved() if operator is not None}

    def _resolved(self) -> Iterator[tuple[str, Shape, Operator | None]]:
        shapes: dict[str, Shape] = {}

        def note(name: str, shape: Shape, operator: Operator | None) -> Iterator[tuple[str, Shape, Operator | None]]:
            shapes[name] = shape
            yield name, shape, operator
            for part, columns in self.columns.items():
                if columns.of == name:
                    yield from note(part, (*shape[:-1], columns.count), None)

        for name, shape in self.given.items():
            yield from note(name, shape, None)
        for name, derived in self.derived.items():
            yield from note(name, derived.shape, None)
        for step in self.steps:
            key = id(step), *(shapes[name] for name in step.inputs)
            if key not in self.made:
                self.made[key] = step, make_operator(self.workload, step, [shapes[name] for name in step.inputs])
            operator = self.made[key][1]
            yield from note(step.name, operator.outputs[-1].shape, operator)

    def evaluate(self, inputs: Mapping[str, Array], stored: Callable[[Array], Array] | None = None) -> dict[str, Array]:
        """Every tensor that is stored, in float64; groups go through the operator that runs them.

        With `stored`, what an operation makes is rounded by it before the next one reads it.
        """
        values = {name: np.asarray(array, np.float64) for name, array in inputs.items()}

        def note(name: str, value: Array) -> None:
            values[name] = value
            for part, columns in self.columns.items():
                if columns.of == name:
                    note(part, value[..., columns.first : columns.first + columns.count])

        for name, derived in self.derived.items():
            note(name, derived.make(*(values[source] for source in derived.sources)))
        for node in self.nodes():
            ports = {port.name: values[name] for port, name in zip(node.operator.inputs, node.inputs, strict=True)}
            value = node.operator.reference(ports)[node.operator.outputs[-1].name]
            note(node.output, value if stored is None else np.asarray(stored(value), np.float64))
        return values

    def nodes(self) -> list[Node]:
        """The operations as they run: groups together, at the place of their last member."""
        members = {name: group for group in self.groups for name in group}
        operators = self.operators()
        nodes = []
        for step in self.steps:
            group = members.get(step.name, (step.name,))
            if step.name == group[-1]:
                _check_group(self, group)
                steps = [self.step(name) for name in group]
                inputs = tuple(name for each in steps for name in each.inputs if name not in group[:-1])
                operator = fused_operator(steps, [operators[name] for name in group])
                nodes.append(Node("+".join(group), step.name, inputs, operator))
        return nodes

    def with_groups(self, groups: Sequence[tuple[str, ...]]) -> Graph:
        return replace(self, groups=tuple(groups))

    def with_note(self, text: str) -> Graph:
        return replace(self, notes=(*self.notes, text))


def make_graph(workload: ChainWorkload) -> Graph:
    """The chain as its file says it; raises where shapes do not fit."""
    given = {name: tuple(map(workload.extent, shape)) for name, shape in workload.tensors.items()}
    groups = workload.schedule.fuse if workload.schedule.fused else ()
    graph = within_epilogues(Graph(workload, given, workload.operations, tuple(groups)))
    read = {name for step in graph.steps for name in step.inputs}
    unused = [name for name in given if name not in read]
    if unused:
        raise InputError(f"{workload.name}: no operation reads {', '.join(unused)}; take it out of tensors")
    graph.shapes()
    return graph


def within_epilogues(graph: Graph) -> Graph:
    """Groups with more operations behind a product than a library fuses become two: the rest is another kernel."""
    limit = graph.workload.schedule.epilogues
    if limit is None or not graph.groups:
        return graph
    groups: list[tuple[str, ...]] = []
    steps = {step.name: step for step in graph.steps}
    for group in graph.groups:
        if len(group) <= 1 + limit or group[0] not in steps or steps[group[0]].op not in PRODUCTS:
            groups.append(group)
            continue
        kept, rest = group[: 1 + limit], group[1 + limit :]
        groups += [each for each in (kept, rest) if len(each) > 1]
        graph = graph.with_note(f"{', '.join(rest)} apart: {counted(limit, 'operation')} at most behind {group[0]}")
    return graph.with_groups(groups)


PRODUCTS = ("matmul", "conv2d")
"""Operations whose kernels a library fuses others behind."""


def make_operator(workload: ChainWorkload, step: ChainStep, shapes: Sequence[Shape]) -> Operator:
    """The operation of a step on tensors of some shapes; the chain's schedule says what it says of all."""
    operation, chosen = step.operation, workload.schedule
    known = operation.schedule.model_fields
    common = {name: type(chosen).model_fields[name].annotation for name in ("vector", "v1", "tile")}
    own: dict[str, Any] = {
        name: getattr(chosen, name) for name, kind in common.items() if name in known and known[name].annotation == kind
    }
    own |= {name: getattr(step, name) for name in operation.scheduled}
    try:
        return operation.apply(shapes, workload.parameters(step), operation.schedule(**own))
    except (ShapeError, InputError) as error:
        raise type(error)(f"operation {step.name}: {error}") from error


def fused_operator(steps: Sequence[ChainStep], operators: Sequence[Operator]) -> Operator:
    """Operations that run as one: the first makes values, the others change them before they are stored."""
    head, *tail = operators
    try:
        absorbed = head.operation.absorb(operators) if tail and head.operation.absorb is not None else None
    except InputError as error:
        raise InputError(f"schedule.fuse: {error}") from error
    if absorbed is not None:
        return absorbed
    for step, operator in zip(steps[1:], tail, strict=True):
        if not is_elementwise(operator):
            raise InputError(
                f"schedule.fuse: {step.name} is {_a(step.op)}, which needs more than one element of {step.inputs[0]} "
                "at a time; only element-wise operations can follow in a group (and a max-pool at its end, behind a "
                f"convolution); end the group before {step.name}"
            )
    try:
        return FusedOperator(head, tail) if tail else head
    except InputError as error:
        raise InputError(f"schedule.fuse: {error}") from error


def _a(op: str) -> str:
    return f"{'an' if op[0] in 'aeiou' else 'a'} {op}"


def _check_group(graph: Graph, group: Sequence[str]) -> None:
    """Each member reads the one before, and nobody else does."""
    for name, after in pairwise(group):
        readers = [step.name for step in graph.readers(name)]
        if after not in readers or graph.step(after).inputs[0] != name:
            raise InputError(
                f"schedule.fuse: {after} does not take {name} as its first input, so {', '.join(group)} is no chain"
            )
        times = graph.step(after).inputs.count(name)
        if times > 1:
            raise InputError(
                f"schedule.fuse: {after} reads {name} {times} times, so it has to be stored; end the group at {name}"
            )
        others = [reader for reader in readers if reader != after]
        if others:
            raise InputError(
                f"schedule.fuse: {name} is read by {', '.join(others)} as well, so it has to be stored; "
                f"end the group at {name}"
            )
