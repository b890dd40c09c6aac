"""The backward pass of attention: dQ, dK and dV from dO.

With P = softmax(S) and S = scale * Q Kᵀ: dV = Pᵀ dO; dP = dO Vᵀ; dS = P * (dP - D), where D is the sum of P * dP along
a row; dQ = scale * dS K; dK = scale * dSᵀ Q. P is computed again from Q and K, or kept from the forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hwsim.kernels.attention.attention import reference_heads, reference_probabilities
from hwsim.kernels.attention.naive import NaiveLoops, matrix_format
from hwsim.kernels.attention.shape import REGISTERS, AttentionShape, Frame, here
from hwsim.kernels.attention.softmax_loops import wide_format
from hwsim.kernels.kernel import Kernel, Setting
from hwsim.kernels.loop.loops import LoopPlan
from hwsim.kernels.loop.program import Loop
from hwsim.kernels.loop_kernel import LoopKernel, Ranges, at
from hwsim.kernels.operator import Names, Operator, OperatorKernel, Port, need_floats, run_of
from hwsim.kernels.rounding import Rounding, storing_error
from hwsim.kernels.step import Instructions
from hwsim.numerics.format import Array
from hwsim.spec.ops.attention import AttentionBackwardWorkload, BackwardSchedule

DOWNHILL = Instructions(add=1, mul=2)
"""scale * P * (dP - D)."""


class AttentionBackward(Operator):
    """Ports Q, K, V, dO, and P where it is stored; dV, dK and dQ come out."""

    reads = frozenset({"accumulate", "chunk"})

    name = "attention_backward"
    registers_needed = REGISTERS

    def __init__(self, shape: AttentionShape, schedule: BackwardSchedule | None = None) -> None:
        self.shape = shape
        self.schedule = schedule or BackwardSchedule()
        self.stored = self.schedule.probabilities == "stored"
        inputs = [Port("Q", shape.q_shape), Port("K", shape.kv_shape), Port("V", shape.kv_shape)]
        inputs += [Port("dO", shape.q_shape)]
        self.inputs = (*inputs, *([Port("P", shape.matrix_shape, positive=True)] if self.stored else []))
        self.outputs = (Port("dV", shape.kv_shape), Port("dK", shape.kv_shape), Port("dQ", shape.q_shape))

    def emit(self, kernel: LoopKernel, names: Names) -> None:
        need_floats(self.name, kernel.fmt)
        shape, schedule = self.shape, self.schedule
        br = min(schedule.br, shape.queries)
        loops = NaiveLoops(kernel, Frame(kernel, shape, names), br, schedule.bc, schedule.vector)
        p, ds, drop = names.get("P", ""), self.scratch("dS", names), self.scratch("D", names)
        if not self.stored:
            p = self.scratch("P", names)
            loops.add_matrix(p)
            kernel.add(loops.scores("scores", "Q", "K", p))
            statistics = self.scratch("max", names), self.scratch("sum", names)
            for item in loops.softmax(p, p, *statistics, "plain"):
                kernel.add(item)
        loops.add_matrix(ds)
        kernel.add(loops.scores("dP", "dO", "V", ds, scaled=False))
        kernel.add(self._row_sums(kernel, loops, p, ds, drop))
        kernel.add(self._scores_gradient(kernel, loops, p, ds, drop))
        kernel.add(loops.weigh("dQ", ds, "K", "dQ"))
        kernel.shared_index = shape.shared_index(br)
        kernel.begin_phase("dK and dV")
        kernel.add(loops.gather("dK", ds, "Q", "dK"))
        kernel.add(loops.gather("dV", p, "dO", "dV"))
        pieces = {**shape.outer, "j": -(-shape.keys // schedule.bc)}
        kernel.shared_index = max(("j", *pieces), key=lambda index: pieces[index])

    def reference(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        shape = self.shape
        q, k, v, do = reference_heads(shape, tensors, "Q", "K", "V", "dO")
        p = tensors["P"] if self.stored else reference_probabilities(shape, q, k)
        dp = np.einsum("bhie,bhje->bhij", do, v)
        ds = shape.factor * p * (dp - (p * dp).sum(axis=-1, keepdims=True))
        shared = (shape.batch, shape.kv_heads, shape.repeat, shape.keys, shape.d)
        dk = np.einsum("bhij,bhid->bhjd", ds, q).reshape(shared).sum(axis=2)
        dv = np.einsum("bhij,bhie->bhje", p, do).reshape(shared).sum(axis=2)
        gradients = {"dV": dv, "dK": dk, "dQ": np.einsum("bhij,bhjd->bhid", ds, k)}
        return {name: shape.as_port(gradient) for name, gradient in gradients.items()}

    def tolerance(self, rounding: Rounding) -> float:
        """S, P, dP and dS are stored, and dP - D cancels; sums along d, keys and queries, the last two in pieces."""
        shape, schedule = self.shape, self.schedule
        longest = max(-(-shape.keys // schedule.bc), -(-shape.queries // schedule.br))
        matrices = 12 * storing_error(matrix_format(rounding.fmt))
        sums = rounding.sum(shape.d) + rounding.sum(shape.keys) + rounding.sum(shape.queries * shape.repeat)
        return 8 * rounding.stored + matrices + rounding.kept_sum(longest) + 2 * sums

    def _row_sums(self, kernel: LoopKernel, loops: NaiveLoops, p: str, dp: str, drop: str) -> Loop:
        """D: the sum of P * dP along each row."""
        shape = self.shape
        view = kernel.add_scratch(drop, *shape.rows, fmt=wide_format(kernel.fmt))

        def compute(ranges: Ranges) -> None:
            rows = here(ranges, *"bgri")
            left, right = (kernel.fmt.load(loops.matrix(name)[rows]) for name in (p, dp))
            kernel.arrays[drop][rows] = np.einsum("bgrij,bgrij->bgri", left, right)

        return kernel.make_loop(
            "row sums", shape.extents("j"), [loops.matrix_at(p), loops.matrix_at(dp)], at(view, *shape.names()),
            Instructions(fma=1), compute, plan=self._plan(loops), accumulates=True,
        )  # fmt: skip

    def _scores_gradient(self, kernel: LoopKernel, loops: NaiveLoops, p: str, dp: str, drop: str) -> Loop:
        """scale * dS in the place of dP."""
        shape = self.shape

        def compute(ranges: Ranges) -> None:
            rows = here(ranges, *"bgri")
            left, right = (kernel.fmt.load(loops.matrix(name)[rows]) for name in (p, dp))
            values = left * (right - kernel.arrays[drop][rows][..., None]) * left.dtype.type(shape.factor)
            loops.matrix(dp)[rows] = kernel.fmt.store(values)

        at_drop = at(kernel.tensor(drop), *shape.names())
        return kernel.make_loop(
            "dS", shape.extents("j"), [loops.matrix_at(p), loops.matrix_at(dp), at_drop], loops.matrix_at(dp),
            DOWNHILL, compute, plan=self._plan(loops),
        )  # fmt: skip

    def _plan(self, loops: NaiveLoops) -> LoopPlan:
        order = tuple(self.shape.extents("j"))
        return LoopPlan(order, vector="j" if loops.lanes > 1 else None, lanes=loops.lanes)


def make_attention_backward(
    workload: AttentionBackwardWorkload, setting: Setting, given: Mapping[str, Array] | None
) -> Kernel:
    operator = AttentionBackward(AttentionShape.of(workload.sizes), workload.schedule)
    return OperatorKernel(operator, run_of(workload, workload.schedule, given), setting)
