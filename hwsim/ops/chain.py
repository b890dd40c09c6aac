"""A chain of operations: each reads what earlier ones left in memory, and frees what nobody reads any more.

Rules that change a chain and not its result. Each is tried, and kept only if the answer stays the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from hwsim.numerics.format import Array, Format, find_format
from hwsim.numerics.quantize import ScaledFormat, measure
from hwsim.program.chain_workload import ChainStep, ChainWorkload, Rewrite
from hwsim.program.graph import Columns, Derived, Graph, Node, is_elementwise, make_graph, within_epilogues
from hwsim.program.kernel import MOST, Rounding, Setting, joined, make_rounding, storing_error
from hwsim.program.loop_kernel import LoopKernel, need_floats, tensor_format, weight_format
from hwsim.program.tensors import Storage
from hwsim.trace.nest import MAX_ACCESSES

SAME = 1e-9
"""Largest difference in float64, relative to the largest element, that counts as rounding."""


def rewrite(graph: Graph, inputs: Mapping[str, Array] | None) -> Graph:
    """Apply the rules that the schedule asks for, in its order; `inputs` are the given tensors, None without math."""
    for name in graph.workload.schedule.rewrite:
        changed = RULES[name](graph)
        if (changed.steps, changed.groups) == (graph.steps, graph.groups):
            graph = changed.with_note(f"{name} found nothing to do")
        elif inputs is None:
            graph = changed.with_note(f"{name} was not checked: ran without math")
        else:
            reason = _find_difference(graph, changed, inputs)
            graph = graph.with_note(f"{name} was not taken: {reason}") if reason else changed
    return graph


def fold_batch_norm(graph: Graph) -> Graph:
    """conv → batch norm becomes a convolution with other weights and another bias.

    With r = gamma / √(variance + ε), the weights of a channel are multiplied by its r, and its bias becomes
    (bias - mean) r + beta.
    """
    for norm in [step for step in graph.steps if step.op == "batch_norm"]:
        conv = next((step for step in graph.steps if step.name == norm.inputs[0]), None)
        if conv is None or conv.op != "conv2d" or len(graph.readers(conv.name)) > 1:
            continue
        computed = [name for name in (*conv.inputs[1:], *norm.inputs[1:]) if not graph.is_known(name)]
        if computed:
            reason = f"the chain computes {', '.join(computed)}, so nothing can be folded before it runs"
            graph = graph.with_note(f"fold_batch_norm left {norm.name} apart: {reason}")
        else:
            graph = _folded(graph, conv, norm)
    return graph


def merge_matmuls(graph: Graph) -> Graph:
    """Products of one tensor with several given matrices become one product with the matrices side by side."""
    for source in dict.fromkeys(step.inputs[0] for step in graph.steps):
        mates = [step for step in graph.steps if step.op == "matmul" and _can_merge(graph, step, source)]
        if len(mates) < 2:
            continue
        padded = {step.name: reader for step in mates if (reader := _padding_reader(graph, step.name))}
        for name, reader in padded.items():
            reason = f"{reader} pads it with zeros, for which a part of a product has no room"
            graph = graph.with_note(f"merge_matmuls left {name} apart: {reason}")
        mates = [step for step in mates if step.name not in padded]
        if len(mates) > 1:
            graph = _merged(graph, mates)
    return graph


def fuse_pointwise(graph: Graph) -> Graph:
    """Element-wise operations run with what makes their input, as long as nothing else reads it."""
    taken = {name for group in graph.groups for name in group}
    for head in graph.steps:
        if head.name in taken:
            continue
        group: list[ChainStep] = [head]
        while (after := _only_pointwise_reader(graph, group[-1].name)) is not None and after.name not in taken:
            reason = _too_many([*group, after], graph)
            if reason:
                graph = graph.with_note(f"fuse_pointwise left {after.name} apart: {reason}")
                break
            group.append(after)
        if len(group) > 1:
            names = tuple(step.name for step in group)
            graph = graph.with_groups((*graph.groups, names))
            taken.update(names)
    return within_epilogues(graph)


RULES: Mapping[Rewrite, Callable[[Graph], Graph]] = {
    "fold_batch_norm": fold_batch_norm,
    "merge_matmuls": merge_matmuls,
    "fuse_pointwise": fuse_pointwise,
}
"""What each rule makes of a graph: the same operations in the same groups where there is nothing for it to do."""


def _find_difference(before: Graph, after: Graph, inputs: Mapping[str, Array]) -> str:
    """How the results differ in float64; nothing if they do not. What a rule has fused runs as one."""
    fused = [group for group in after.groups if group not in before.groups]
    old, new = before.with_groups(()).evaluate(inputs), after.with_groups(fused).evaluate(inputs)
    largest = 0.0
    for name in before.results:
        if not (np.isfinite(old[name]).all() and np.isfinite(new[name]).all()):
            return f"{name} is not finite everywhere, so it cannot be compared"
        scale = float(np.abs(old[name]).max()) or 1.0
        largest = max(largest, float(np.abs(old[name] - new[name]).max()) / scale)
    return f"it changes the result by {largest:.1e}" if largest > SAME else ""


def _folded(graph: Graph, conv: ChainStep, norm: ChainStep) -> Graph:
    weight, bias = graph.new_name(f"{norm.name}_weight"), graph.new_name(f"{norm.name}_bias")
    weight_shape = graph.shapes()[conv.inputs[1]]
    epsilon = graph.workload.parameters(norm)["epsilon"]

    def scale(gamma: Array, variance: Array) -> Array:
        return np.asarray(gamma / np.sqrt(variance + epsilon))

    def fold_weight(w: Array, gamma: Array, variance: Array) -> Array:
        return np.asarray(w * scale(gamma, variance)[:, None, None, None])

    def fold_bias(gamma: Array, beta: Array, mean: Array, variance: Array, *old: Array) -> Array:
        return np.asarray(((old[0] if old else 0) - mean) * scale(gamma, variance) + beta)

    _, gamma, beta, mean, variance = norm.inputs
    derived = {
        **graph.derived,
        weight: Derived((conv.inputs[1], gamma, variance), weight_shape, fold_weight),
        bias: Derived((gamma, beta, mean, variance, *conv.inputs[2:]), weight_shape[:1], fold_bias),
    }
    folded = conv.model_copy(update={"name": norm.name, "inputs": (conv.inputs[0], weight, bias)})
    steps = tuple(folded if step is norm else step for step in graph.steps if step is not conv)
    groups = (tuple(name for name in group if name != conv.name) for group in graph.groups)
    return replace(graph, steps=steps, derived=derived, groups=tuple(group for group in groups if len(group) > 1))


def _can_merge(graph: Graph, step: ChainStep, source: str) -> bool:
    chosen = graph.workload.parameters(step)
    if step.inputs[0] != source or chosen["transpose_a"] or chosen["transpose_b"]:
        return False
    weight = step.inputs[1]
    grouped = {name for group in graph.groups for name in group}
    return len(graph.given.get(weight, ())) == 2 and len(graph.readers(weight)) == 1 and step.name not in grouped


def _padding_reader(graph: Graph, name: str) -> str:
    """The operation that needs zeros around a tensor; nothing if none does."""
    operators = graph.operators()
    for step in graph.readers(name):
        for port, tensor in zip(operators[step.name].inputs, step.inputs, strict=True):
            if tensor == name and any(port.halo):
                return step.name
    return ""


def _merged(graph: Graph, mates: Sequence[ChainStep]) -> Graph:
    name = graph.new_name("_".join(step.name for step in mates))
    weight = graph.new_name(f"{name}_weight")
    parts = tuple(step.inputs[1] for step in mates)
    widths = [graph.given[part][1] for part in parts]
    rows = graph.given[parts[0]][0]

    def side_by_side(*matrices: Array) -> Array:
        return np.concatenate(matrices, axis=1)

    derived = {**graph.derived, weight: Derived(parts, (rows, sum(widths)), side_by_side)}
    firsts = (sum(widths[:number]) for number in range(len(widths)))
    columns = {step.name: Columns(name, *cut) for step, *cut in zip(mates, firsts, widths, strict=True)}
    merged = mates[0].model_copy(update={"name": name, "inputs": (mates[0].inputs[0], weight)})
    steps = tuple(merged if step is mates[0] else step for step in graph.steps if step not in mates[1:])
    return replace(graph, steps=steps, derived=derived, columns={**graph.columns, **columns})


def _too_many(steps: Sequence[ChainStep], graph: Graph) -> str:
    """Whether a loop could not be described any more: each operand takes an access for every row of a register tile,
    as the output does twice, and the inputs one each."""
    conv = steps[0].op == "conv2d"
    rows = graph.workload.schedule.v1 if conv or steps[0].op == "matmul" else 1
    room = (MAX_ACCESSES - 2 - 2 * rows) // rows
    extras = sum(len(step.inputs) - 1 for step in steps[1:])
    extras += len(steps[0].inputs) - 2 if conv else 0
    return f"{extras} operands are more than the {room} that a loop has room for" if extras > room else ""


def _only_pointwise_reader(graph: Graph, name: str) -> ChainStep | None:
    readers = graph.readers(name)
    if len(readers) != 1 or not is_elementwise(graph.operators()[readers[0].name]):
        return None
    return readers[0] if readers[0].inputs[0] == name and readers[0].inputs.count(name) == 1 else None


POSITIONS = find_format("int32")
"""The format of tensors that hold positions in others."""


class ChainKernel(LoopKernel):
    """One phase for each node. Given tensors stay in memory throughout; others from where they are made to where they
    are read last."""

    def __init__(self, workload: ChainWorkload, setting: Setting, given: Mapping[str, Array] | None = None) -> None:
        self.original = make_graph(workload)
        fmt = tensor_format(workload.precision, self._weights(self.original))
        super().__init__(workload.name, fmt, setting, workload.schedule, given)
        need_floats("a chain, which rounds between its operations,", self.fmt)
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
        for port in node.operator.outputs[:-1]:  # which nothing in a chain reads
            self._allocate(node.names[port.name], port.shape, self.fmt)
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
