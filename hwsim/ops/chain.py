"""A chain of operations: each reads what earlier ones left in memory, and frees what nobody reads any more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from hwsim.errors import InputError
from hwsim.numerics.format import FORMATS, Array, Format, find_format
from hwsim.numerics.quantize import ScaledFormat, measure
from hwsim.program.chain_workload import ChainWorkload
from hwsim.program.graph import Graph, Node, make_graph
from hwsim.program.kernel import MOST, Rounding, Setting, joined, make_rounding, storing_error
from hwsim.program.loop_kernel import LoopKernel
from hwsim.program.operator import tensor_format, weight_format
from hwsim.program.rewrite import rewrite
from hwsim.program.tensors import Storage

POSITIONS = find_format("int32")
"""The format of tensors that hold positions in others."""


class ChainKernel(LoopKernel):
    """One phase for each node. Given tensors stay in memory throughout; others from where they are made to where they
    are read last."""

    def __init__(self, workload: ChainWorkload, setting: Setting, given: Mapping[str, Array] | None = None) -> None:
        self.original = make_graph(workload)
        fmt = tensor_format(workload.precision, self._weights(self.original))
        super().__init__(workload.name, fmt, setting, workload.schedule, given)
        if self.fmt.is_integer:
            usable = ", ".join(fmt.name for fmt in FORMATS.values() if not fmt.is_integer)
            raise InputError(f"a chain rounds between its operations: precision must be one of {usable}")
        self.weight_fmt = weight_format(workload.precision, setting.numbers)
        self._values = self._draw()
        self.graph = rewrite(self.original, self._values if setting.math else None)
        self._freed: set[str] = set()
        self.nodes = self.graph.nodes()
        self.results = self.graph.results
        self.registers_needed = max(node.operator.registers_needed for node in self.nodes)
        self.reads = frozenset(name for node in self.nodes for name in node.operator.reads)
        self._halo = _halos(self.nodes)
        self._place_inputs()
        for number, node in enumerate(self.nodes):
            self._emit(node, number)

    @property
    def tolerance(self) -> float:
        """All tensors are stored in one format, sums too; what a rewrite makes of given ones is stored once more.

        Later operations may enlarge what earlier ones have rounded: by how much, a run in float64 shows in which
        nothing but the stored tensors is rounded.
        """
        rounding = self.rounding
        errors = [node.operator.tolerance(rounding) + rounding.stored for node in self.nodes]
        here = joined([*errors, *(rounding.stored for _ in self.graph.derived)])
        turned = storing_error(self.fmt) if self.turned else 0.0
        return min(MOST, here + turned + 4 * self._enlarged)

    @property
    def rounding(self) -> Rounding:
        sums = self.find_sum_format() if self.setting.numbers.asked() else self.fmt
        kept = max(self.fmt, sums, key=storing_error)
        return make_rounding(self.fmt, kept, self.setting.numbers.chunk, self.setting.numbers.at_tiles)

    @cached_property
    def _enlarged(self) -> float:
        """The largest error that rounding each stored tensor alone makes of any result."""
        if not self.setting.math:
            return 0.0
        exact = self._exact()
        rounded = self.original.with_groups(()).evaluate(self._values, self.fmt.store)
        errors = (measure(rounded[name], exact[name]).max_rel for name in self.results)
        return max((error for error in errors if error < MOST), default=0.0)

    @property
    def input_names(self) -> Sequence[str]:
        return tuple(self.original.given)

    def warnings(self) -> tuple[str, ...]:
        return (*super().warnings(), *self.graph.notes)

    def answers(self) -> Iterator[tuple[str, Array, Array]]:
        """Every tensor that nobody reads, against the chain as the file says it."""
        self._need_math("answer")
        exact = self._exact()
        for name in self.results:
            yield name, self.arrays[name], exact[name]

    def _reference(self) -> Array:
        return self._exact()[self.result]

    def _exact(self) -> dict[str, Array]:
        """Every tensor of the file in float64, operation by operation, whatever was fused or rewritten."""
        return self.original.with_groups(()).evaluate(self._values)

    def _draw(self) -> dict[str, Array]:
        """The values of the given tensors; variances are positive. What holds positions has values without math too."""
        operators, weights = self.original.operators(), self._weights(self.original)
        readers = [
            (port, name)
            for step in self.original.steps
            for port, name in zip(operators[step.name].inputs, step.inputs, strict=True)
        ]
        positive = {name for port, name in readers if port.positive}
        self._below: dict[str, int] = {}
        for port, name in readers:
            if port.below:
                self._below[name] = min(port.below, self._below.get(name, port.below))
        found = {}
        for number, (name, shape) in enumerate(self.original.given.items()):
            if name in self._below:
                self.formats[name] = POSITIONS
                found[name] = self.draw(name, number, shape, POSITIONS, below=self._below[name])
                continue
            if not self.setting.math:
                continue
            narrow = self.weight_fmt is not None and name in weights
            self.formats[name] = self.weight_fmt if self.weight_fmt is not None and narrow else self.fmt
            storage = Storage(along=weights[name] if narrow else -1, apart=narrow)
            found[name] = self.draw(name, number, shape, self.formats[name], name in positive, storage=storage)
        return found

    @staticmethod
    def _weights(graph: Graph) -> dict[str, int]:
        """Given tensors that are nothing but weights of products, and the axis that these sum along."""
        axes: dict[str, set[int | None]] = {}
        for node in graph.with_groups(()).nodes():
            for port, name in zip(node.operator.inputs, node.inputs, strict=True):
                axes.setdefault(name, set()).add(node.operator.weights.get(port.name))
        known = {name: axes[name] for name in (*graph.given, *graph.derived) if len(axes.get(name, ())) == 1}
        return {name: axis for name, (axis,) in known.items() if axis is not None}

    def _place_inputs(self) -> None:
        """Memory for what the chain is given, and for what a rewrite made of it."""
        needed = {name for node in self.nodes for name in node.inputs}
        weights = self._weights(self.graph) if self.weight_fmt is not None else {}
        for name, shape in self.graph.given.items():
            if name in needed:
                self._allocate(name, shape, self._input_format(name, weights), self._halo.get(name, ()))
                if self.setting.math:
                    self.arrays[name][...] = self._values[name]
                elif name in self._values:
                    self.arrays[name] = self._values[name]
            elif self.setting.math:
                self.arrays[name] = self._values[name]
        exact = {name: values.astype(np.float64) for name, values in self._values.items()}
        for name, derived in self.graph.derived.items():
            if name in needed:
                self._allocate(name, derived.shape, self._input_format(name, weights))
            if self.setting.math:
                exact[name] = derived.make(*(exact[source] for source in derived.sources))
                fmt = self._input_format(name, weights)
                if name in needed and name in weights and isinstance(fmt, ScaledFormat):
                    self.arrays[name][...] = self.quantize(name, exact[name], fmt, weights[name])
                elif name in needed:
                    self.arrays[name][...] = self.fmt.store(exact[name])

    def _input_format(self, name: str, weights: Mapping[str, int]) -> Format:
        if name in self._below:
            return POSITIONS
        return self.weight_fmt if self.weight_fmt is not None and name in weights else self.fmt

    def _emit(self, node: Node, number: int) -> None:
        shape = node.operator.outputs[-1].shape
        self._allocate(node.output, shape, self.fmt, self._halo.get(node.output, ()))
        for name, columns in self.graph.columns.items():
            if columns.of == node.output:
                self._add_columns(name, columns.of, slice(columns.first, columns.first + columns.count))
        self.begin_phase(node.title)
        phases, tensors = len(self.program) - 1, set(self.tensors)
        node.operator.alone = False
        node.operator.emit(self, node.names)
        for phase in self.program[phases:]:
            phase.name, phase.operator, phase.names = node.title, node.operator, node.names
        for scratch in self.tensors.keys() - tensors:
            self.space.free(scratch)
        self._free_after(number)

    def _add_columns(self, name: str, of: str, cut: slice) -> None:
        view = self.tensor(of)
        whole = [slice(None)] * (len(view.shape) - 1)
        self.add_view(name, view.slice(*whole, cut), self.arrays[of][..., cut] if self.setting.math else None)

    def _free_after(self, number: int) -> None:
        """Give back what no later operation reads, and nobody asked for."""
        later = [name for node in self.nodes[number + 1 :] for name in node.inputs]
        kept = {self._owner(name) for name in (*later, *self.results)} | self._freed
        for node in self.nodes[: number + 1]:
            if node.output not in kept:
                self.space.free(node.output)
                self._freed.add(node.output)

    def _owner(self, name: str) -> str:
        """The tensor whose memory a name stands for."""
        columns = self.graph.columns.get(name)
        return name if columns is None else columns.of


def _halos(nodes: list[Node]) -> dict[str, tuple[int, ...]]:
    """The widest halo that any reader of a tensor asks for, axis by axis."""
    halos: dict[str, tuple[int, ...]] = {}
    for node in nodes:
        for port, name in zip(node.operator.inputs, node.inputs, strict=True):
            if port.halo:
                known = halos.get(name, (0,) * len(port.halo))
                halos[name] = tuple(map(max, zip(known, port.halo, strict=True)))
    return halos


class ChainOperation:
    """The operation of a chain: a graph of operations."""

    def kernel(self, workload: ChainWorkload, setting: Setting, given: Mapping[str, Array] | None) -> ChainKernel:
        return ChainKernel(workload, setting, given)


ChainWorkload.operation = ChainOperation()
