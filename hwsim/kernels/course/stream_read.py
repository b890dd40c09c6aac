"""Unit-stride reads over a stretch of memory, again and again: what a level can deliver."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hwsim.kernels.kernel import Setting
from hwsim.kernels.loop.loops import LoopPlan
from hwsim.kernels.loop_kernel import LoopKernel, Ranges, at, part
from hwsim.kernels.step import Instructions
from hwsim.numerics.format import Array, find_format
from hwsim.spec.ops.probe import StreamWorkload

UNROLL = 8
"""Loads in one pass through the loop; each adds to a sum of its own, so that none waits for another."""


class StreamRead(LoopKernel):
    """Adds up a vector, `passes` times."""

    def __init__(self, workload: StreamWorkload, setting: Setting, given: Mapping[str, Array] | None = None) -> None:
        super().__init__(workload.name, find_format(workload.precision), setting, workload.schedule, given)
        self.passes = workload.sizes.passes
        self.n = max(1, workload.sizes.bytes // self.fmt.element_bytes)
        a = self.add_input("A", self.n, positive=True)
        lanes = setting.lanes if workload.schedule.vector else 1
        unroll = {"i": UNROLL * lanes} if self.n >= UNROLL * lanes else {}
        plan = LoopPlan(("r", "i"), unroll=unroll, vector="i" if lanes > 1 else None, lanes=lanes)
        extents = {"r": self.passes, "i": self.n}
        self.add_loop("read", extents, [at(a, "i")], None, Instructions(add=1), self._read, plan=plan)
        self.shared_index = "i"
        self.registers_needed = UNROLL + 1
        self._sum = np.zeros(1, np.float64)

    @property
    def tolerance(self) -> float:
        """Nothing is stored; NumPy adds in pairs."""
        return self.rounding.operations(2 + (self.n * self.passes).bit_length())

    def _read(self, ranges: Ranges) -> None:
        here = self.arrays["A"][part(ranges, "i")]
        self._sum += float(self.fmt.load(here).sum()) * ranges["r"][1]

    def _output(self) -> Array:
        return self._sum.astype(self.fmt.computed)

    def _reference(self) -> Array:
        return np.array([self.arrays["A"].astype(np.float64).sum() * self.passes])
