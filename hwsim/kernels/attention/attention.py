"""Attention as an operator: O = softmax(Q Kᵀ / √d) V, with S in memory (naive) or tile by tile (fused)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from hwsim.kernels.attention.formula import attention_formulas
from hwsim.kernels.attention.fused import FusedLoops
from hwsim.kernels.attention.naive import NaiveLoops, matrix_format
from hwsim.kernels.attention.room import Room
from hwsim.kernels.attention.shape import REGISTERS, AttentionShape, Frame
from hwsim.kernels.attention.softmax import softmax
from hwsim.kernels.kernel import Formula, Kernel, Setting
from hwsim.kernels.loop_kernel import LoopKernel
from hwsim.kernels.operator import Names, Operator, OperatorKernel, Port, need_floats, run_of
from hwsim.kernels.rounding import Rounding, storing_error
from hwsim.numerics.format import Array, Format
from hwsim.spec.ops.attention import AttentionSchedule, AttentionWorkload

FUSED_SCRATCH = ("S", "P", "acc", "max", "new_max", "sum", "shrink")


class Attention(Operator):
    """Ports Q, K, V and O."""

    reads = frozenset({"accumulate", "chunk"})

    name = "attention"
    registers_needed = REGISTERS

    def __init__(self, shape: AttentionShape, schedule: AttentionSchedule | None = None) -> None:
        self.shape = shape
        self.schedule = schedule or AttentionSchedule()
        self.inputs = (Port("Q", shape.q_shape), Port("K", shape.kv_shape), Port("V", shape.kv_shape))
        self.outputs = (Port("O", shape.q_shape),)

    @property
    def variant(self) -> Literal["naive", "fused"]:
        return self.schedule.variant

    @property
    def tile(self) -> tuple[int, int]:
        """Br and Bc, cut down to what there is."""
        return min(self.schedule.br, self.shape.queries), min(self.schedule.bc, self.shape.keys)

    def emit(self, kernel: LoopKernel, names: Names) -> None:
        need_floats(self.name, kernel.fmt)
        frame, schedule = Frame(kernel, self.shape, names), self.schedule
        br, bc = self.tile
        if self.variant == "fused":
            if schedule.scratch is not None:
                Room(self.shape, kernel.fmt, schedule.scratch).check(br, bc)
            scratch = [self.scratch(name, names) for name in FUSED_SCRATCH]
            items = FusedLoops(kernel, frame, br, bc, schedule.vector, scratch).items()
        else:
            s, p, maximum, total = (self.scratch(name, names) for name in ("S", "P", "max", "sum"))
            loops = NaiveLoops(kernel, frame, br, bc, schedule.vector)
            loops.add_matrix(s)
            loops.add_matrix(p)
            items = (
                loops.scores("scores", "Q", "K", s),
                *loops.softmax(s, p, maximum, total, schedule.softmax or "plain"),
                loops.weigh("weigh", p, "V", "O"),
            )
        for item in items:
            kernel.add(item)
        kernel.shared_index = self.shape.shared_index(br)

    def reference(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """Head by head, by definition."""
        q, k, v = reference_heads(self.shape, tensors, "Q", "K", "V")
        p = reference_probabilities(self.shape, q, k)
        return {"O": self.shape.as_port(np.einsum("bhij,bhje->bhie", p, v))}

    def tolerance(self, rounding: Rounding) -> float:
        """Sums along d and along keys; P is stored before it is used, and with S in memory both are, and P twice."""
        sums = rounding.sum(self.shape.d) + rounding.sum(self.shape.keys) + rounding.operations(4)
        if self.variant == "fused":
            return 2 * rounding.stored + sums
        matrices = 3 * storing_error(matrix_format(rounding.fmt))
        return 2 * rounding.stored + matrices + rounding.kept_sum(-(-self.shape.keys // self.tile[1])) + sums

    def formulas(self, setting: Setting, fmt: Format) -> tuple[Formula, ...]:
        return attention_formulas(self.shape, self.schedule, *self.tile, fmt)


def reference_heads(shape: AttentionShape, tensors: Mapping[str, Array], *ports: str) -> list[Array]:
    """Ports as [batch, heads, length, d]; heads of K and V are repeated for each query head."""
    found = []
    for port in ports:
        heads = shape.kv_heads if port in ("K", "V") else shape.heads
        found.append(np.repeat(shape.by_heads(tensors[port], heads), shape.heads // heads, axis=1))
    return found


def reference_probabilities(shape: AttentionShape, q: Array, k: Array) -> Array:
    """softmax(Q Kᵀ * scale) in the precision of Q: [batch, heads, queries, keys]."""
    s = np.einsum("bhid,bhjd->bhij", q, k) * shape.factor
    if shape.causal:
        hidden = np.triu(np.ones((shape.queries, shape.keys), bool), 1 + shape.offset)
        s = np.where(hidden, -np.inf, s)
    return softmax(s)


def make_attention(workload: AttentionWorkload, setting: Setting, given: Mapping[str, Array] | None) -> Kernel:
    operator = Attention(AttentionShape.of(workload.sizes), workload.schedule)
    return OperatorKernel(operator, run_of(workload, workload.schedule, given), setting)
