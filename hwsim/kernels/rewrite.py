"""Rules that change a chain and not its result. Each is tried, and kept only if the answer stays the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from hwsim.kernels.conv_epilogue import EPSILON
from hwsim.kernels.graph import Columns, Derived, Graph
from hwsim.numerics.format import Array
from hwsim.spec.ops.chain import BatchNormStep, ChainStep, ConvStep, MatmulStep, PointwiseStep, Rewrite, ScaleStep

SAME = 1e-9
"""Largest difference in float64, relative to the largest element, that counts as rounding."""


def rewrite(graph: Graph, inputs: Mapping[str, Array] | None) -> Graph:
    """Apply the rules that the schedule asks for, in its order; `inputs` are the given tensors, None without math."""
    for name in graph.workload.schedule.rewrite:
        changed = RULES[name](graph)
        if changed is None:
            graph = graph.with_note(f"{name} found nothing to do")
        elif inputs is None:
            graph = changed.with_note(f"{name} was not checked: ran without math")
        else:
            difference = _difference(graph, changed, inputs)
            if difference <= SAME:
                graph = changed
            else:
                graph = graph.with_note(f"{name} was not taken: it changes the result by {difference:.1e}")
    return graph


def fold_batch_norm(graph: Graph) -> Graph | None:
    """conv → batch norm becomes a convolution with other weights and another bias.

    With r = gamma / √(variance + ε), the weights of a channel are multiplied by its r, and its bias becomes
    (bias - mean) r + beta.
    """
    found = None
    for norm in [step for step in graph.steps if isinstance(step, BatchNormStep)]:
        conv = next((step for step in graph.steps if step.name == norm.inputs[0]), None)
        if isinstance(conv, ConvStep) and len(graph.readers(conv.name)) == 1:
            found = graph = _folded(graph, conv, norm)
    return found


def merge_matmuls(graph: Graph) -> Graph | None:
    """Products of one tensor with several given matrices become one product with the matrices side by side."""
    found = None
    for source in dict.fromkeys(step.inputs[0] for step in graph.steps):
        mates = [step for step in graph.steps if _can_merge(graph, step, source)]
        rows = {graph.given[step.inputs[1]][0] for step in mates}
        if len(mates) > 1 and len(rows) == 1:
            found = graph = _merged(graph, [step for step in mates if isinstance(step, MatmulStep)])
    return found


def fuse_pointwise(graph: Graph) -> Graph | None:
    """Element-wise operations run with what makes their input, as long as nothing else reads it."""
    taken = {name for group in graph.groups for name in group}
    groups = list(graph.groups)
    for head in graph.steps:
        if head.name in taken or not isinstance(head, MatmulStep | ConvStep | PointwiseStep | ScaleStep):
            continue
        group = [head.name]
        while (after := _only_pointwise_reader(graph, group[-1])) is not None and after.name not in taken:
            group.append(after.name)
        if len(group) > 1:
            groups.append(tuple(group))
            taken.update(group)
    return replace(graph, groups=tuple(groups)) if len(groups) > len(graph.groups) else None


RULES: Mapping[Rewrite, Callable[[Graph], Graph | None]] = {
    "fold_batch_norm": fold_batch_norm,
    "merge_matmuls": merge_matmuls,
    "fuse_pointwise": fuse_pointwise,
}
"""What each rule makes of a graph; None where there is nothing for it to do."""


def _difference(before: Graph, after: Graph, inputs: Mapping[str, Array]) -> float:
    """How far apart the results are in float64, at most."""
    old, new = before.evaluate(inputs), after.evaluate(inputs)
    largest = 0.0
    for name in before.results:
        scale = float(np.abs(old[name]).max()) or 1.0
        largest = max(largest, float(np.abs(old[name] - new[name]).max()) / scale)
    return largest


def _folded(graph: Graph, conv: ConvStep, norm: BatchNormStep) -> Graph:
    weight, bias = f"{norm.name}_weight", f"{norm.name}_bias"
    weight_shape = graph.shapes()[conv.inputs[1]]

    def scale(gamma: Array, variance: Array) -> Array:
        return np.asarray(gamma / np.sqrt(variance + EPSILON))

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
    if not isinstance(step, MatmulStep) or step.inputs[0] != source or step.transpose_a or step.transpose_b:
        return False
    weight = step.inputs[1]
    grouped = {name for group in graph.groups for name in group}
    return len(graph.given.get(weight, ())) == 2 and len(graph.readers(weight)) == 1 and step.name not in grouped


def _merged(graph: Graph, mates: list[MatmulStep]) -> Graph:
    name = "_".join(step.name for step in mates)
    weights = tuple(step.inputs[1] for step in mates)
    widths = [graph.given[weight][1] for weight in weights]
    rows = graph.given[weights[0]][0]

    def side_by_side(*parts: Array) -> Array:
        return np.concatenate(parts, axis=1)

    derived = {**graph.derived, f"{name}_weight": Derived(weights, (rows, sum(widths)), side_by_side)}
    columns = dict(graph.columns)
    for step, width in zip(mates, widths, strict=True):
        first = sum(widths[: mates.index(step)])
        columns[step.name] = Columns(name, first, width)
    merged = mates[0].model_copy(update={"name": name, "inputs": (mates[0].inputs[0], f"{name}_weight")})
    steps = tuple(merged if step is mates[0] else step for step in graph.steps if step not in mates[1:])
    return replace(graph, steps=steps, derived=derived, columns=columns)


def _only_pointwise_reader(graph: Graph, name: str) -> ChainStep | None:
    readers = graph.readers(name)
    if len(readers) != 1 or not isinstance(readers[0], PointwiseStep | ScaleStep):
        return None
    return readers[0] if readers[0].inputs[0] == name and readers[0].inputs.count(name) == 1 else None
