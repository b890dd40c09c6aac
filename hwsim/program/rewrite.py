"""Rules that change a chain and not its result. Each is tried, and kept only if the answer stays the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from hwsim.numerics.format import Array
from hwsim.program.chain_workload import ChainStep, Rewrite
from hwsim.program.fuse import is_elementwise
from hwsim.program.graph import Columns, Derived, Graph, within_epilogues
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
