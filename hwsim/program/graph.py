"""Graph: the operations of a chain with their tensors; shapes, float64 values, and who reads what."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count, pairwise
from typing import Any

import numpy as np

from hwsim.errors import InputError, ShapeError
from hwsim.numerics.format import Array
from hwsim.program.chain_workload import ChainStep, ChainWorkload
from hwsim.program.fuse import FusedOperator, is_elementwise
from hwsim.program.operation import StatementOperator
from hwsim.text import counted

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
    operator: StatementOperator

    @property
    def names(self) -> dict[str, str]:
        """The tensor behind each port."""
        ports = dict(zip((port.name for port in self.operator.inputs), self.inputs, strict=True))
        return ports | {self.operator.outputs[-1].name: self.output}


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
    made: dict[tuple[object, ...], tuple[ChainStep, StatementOperator]] = field(
        default_factory=dict, compare=False, repr=False
    )
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

    def operators(self) -> dict[str, StatementOperator]:
        """The operator of each operation, as if nothing were fused."""
        return {name: operator for name, _, operator in self._resolved() if operator is not None}

    def _resolved(self) -> Iterator[tuple[str, Shape, StatementOperator | None]]:
        shapes: dict[str, Shape] = {}

        def note(
            name: str, shape: Shape, operator: StatementOperator | None
        ) -> Iterator[tuple[str, Shape, StatementOperator | None]]:
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


def make_operator(workload: ChainWorkload, step: ChainStep, shapes: Sequence[Shape]) -> StatementOperator:
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


def fused_operator(steps: Sequence[ChainStep], operators: Sequence[StatementOperator]) -> StatementOperator:
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
