"""Dependent loads around a ring of pointers in random order: what one load costs when nothing hides it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from hwsim.kernels.kernel import Kernel, Setting
from hwsim.kernels.step import Block, Chain, Instructions, Stage, Step, Work
from hwsim.numerics.format import Array, find_format
from hwsim.spec.ops.probe import ChaseWorkload
from hwsim.trace.nest import Access, Nest, Table

POINTER_BYTES = 8


class PointerChase(Kernel):
    """The ring visits each of its entries once before it returns to the first."""

    def __init__(self, workload: ChaseWorkload, setting: Setting) -> None:
        super().__init__(workload.name, find_format("fp64"), setting)
        self.sizes = workload.sizes
        self.entries = self.sizes.bytes // self.sizes.stride
        words = self.entries * self.sizes.stride // POINTER_BYTES
        self.tensors["ring"] = self.space.allocate("ring", [max(1, words)], self.fmt)
        random = np.random.default_rng([setting.seed, 0])
        self._visits: NDArray[np.int64] = np.concatenate([[0], 1 + random.permutation(self.entries - 1)])
        self._found = np.zeros(1, np.int64)

    @property
    def useful_flops(self) -> int:
        return 0

    @property
    def tolerance(self) -> float:
        return 0.0

    def stages(self) -> Sequence[Stage]:
        return [Stage(self.name, (Block(0, self._steps),))]

    def _steps(self) -> Iterator[Step]:
        if self.setting.math:
            self._found[0] = self._follow()
        hops = self.sizes.steps
        work = Work(0, 0, Instructions(load=hops), fmt=self.fmt.name, chain=Chain("load", hops), loop_starts=1)
        yield Step("chase", work, tuple(self._nests()))

    def _nests(self) -> Iterator[Nest]:
        """Whole rounds of the ring, then the part of a round that is left."""
        offsets = self._visits * self.sizes.stride
        rounds, rest = divmod(self.sizes.steps, self.entries)
        base = self.tensors["ring"].base
        if rounds:
            access = Access(base, (0, 0), POINTER_BYTES, tensor="ring", table=Table(offsets, (0, 1)))
            yield Nest((rounds, self.entries), (access,))
        if rest:
            access = Access(base, (0,), POINTER_BYTES, tensor="ring", table=Table(offsets, (1,)))
            yield Nest((rest,), (access,))

    def _follow(self) -> int:
        """Really follow the pointers: where the walk stands at the end."""
        following = np.empty(self.entries, np.int64)
        following[self._visits] = np.roll(self._visits, -1)
        pointers = following.tolist()
        here = 0
        for _ in range(self.sizes.steps):
            here = pointers[here]
        return int(here)

    def _output(self) -> Array:
        return self._found

    def _reference(self) -> Array:
        return np.array([self._visits[self.sizes.steps % self.entries]], np.float64)
