"""Embedding: rows of a table, looked up by their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from hwsim.kernels.kernel import Formula, Setting
from hwsim.kernels.loop.loops import gather
from hwsim.kernels.loop_kernel import LoopKernel, Ranges, at, part
from hwsim.kernels.operator import Names, Operator, Port
from hwsim.kernels.rounding import Rounding
from hwsim.kernels.step import Instructions
from hwsim.numerics.format import Array, Format


class EmbeddingOperator(Operator):
    """Y[t] = W[ids[t]] for each of `tokens` numbers below `vocabulary`; a row has `width` elements."""

    name = "embedding"

    def __init__(
        self,
        tokens: int,
        vocabulary: int,
        width: int,
        *,
        vector: bool = True,
        ports: tuple[str, str, str] = ("ids", "W", "Y"),
    ) -> None:
        self.tokens, self.vocabulary, self.width = tokens, vocabulary, width
        self.vector = vector
        self.ids, self.table, self.target = ports
        self.inputs = (Port(self.ids, (tokens,), below=vocabulary), Port(self.table, (vocabulary, width)))
        self.outputs = (Port(self.target, (tokens, width)),)
        self.registers_needed = 2

    def emit(self, kernel: LoopKernel, names: Names) -> None:
        ids, table, target = names[self.ids], names[self.table], names[self.target]
        rows = kernel.tensor(table)
        looked_up = at(rows, None, "c")
        places = gather("t", (kernel.arrays[ids], rows.byte_stride(0)))
        looked_up = replace(looked_up, strides={"t": 0, **looked_up.strides}, gather=places)

        def compute(ranges: Ranges) -> None:
            tokens, columns = part(ranges, "t", "c")
            kernel.arrays[target][tokens, columns] = kernel.arrays[table][kernel.arrays[ids][tokens], columns]

        extents = {"t": self.tokens, "c": self.width}
        reads = [at(kernel.tensor(ids), "t"), looked_up]
        write = at(kernel.tensor(target), "t", "c")
        kernel.add_loop("lookup", extents, reads, write, Instructions(), compute, vector=self.vector)

    def reference(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """As a product with rows that are zero but for a single one."""
        chosen = tensors[self.ids][:, None] == np.arange(self.vocabulary)
        return {self.target: chosen.astype(np.float64) @ tensors[self.table]}

    def tolerance(self, rounding: Rounding) -> float:
        return 0.0

    def formulas(self, setting: Setting, fmt: Format) -> tuple[Formula, ...]:
        """Distinct rows come from memory once; a row that comes again may still be in a cache."""
        return (
            Formula("loads", "t + t·d", self.tokens * (1 + self.width), "elements", "loads"),
            Formula("stores", "t·d", self.tokens * self.width, "elements", "stores"),
        )
