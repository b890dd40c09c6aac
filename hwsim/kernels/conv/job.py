"""ConvJob: what all algorithms of a convolution share: its tensors in a kernel, its math, and its epilogue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product as combinations
from math import prod

from hwsim.kernels.conv.plan import count_registers, shared_loop
from hwsim.kernels.conv.shape import ConvShape, image_of, product, span, spans
from hwsim.kernels.loop.loops import LoopOperation, LoopPlan, Operand, Range
from hwsim.kernels.loop.program import Item, Loop, TileLoop
from hwsim.kernels.loop_kernel import Compute, LoopKernel, Ranges
from hwsim.kernels.operator import Names
from hwsim.kernels.step import Instructions
from hwsim.kernels.tensor.element import Element, Extra, apply_elements, element_body, element_extras
from hwsim.numerics.dot import accumulate
from hwsim.numerics.format import Array, Format
from hwsim.spec.ops.conv import ConvSchedule

Convolve = Callable[[Ranges], Array]
"""Sums over a range, as [n, g, co, h, w]."""

FMA = Instructions(fma=1)
MOST_TILES = 2048
"""Around an epilogue that is done tile by tile, not more tiles than this are told apart."""


@dataclass(frozen=True)
class ConvJob:
    """A convolution being added to a kernel; `target` is the tensor that holds its outputs."""

    kernel: LoopKernel
    names: Names
    shape: ConvShape
    schedule: ConvSchedule
    epilogue: tuple[Element, ...]
    target: str

    @property
    def fmt(self) -> Format:
        return self.kernel.fmt

    @property
    def sum_fmt(self) -> Format:
        return self.kernel.find_sum_format()

    @property
    def lanes(self) -> int:
        return self.kernel.setting.lanes if self.schedule.vector else 1

    @property
    def output(self) -> Operand:
        return self.shape.output_operand(self.kernel, self.target)

    # Math -------------------------------------------------------------------------------------------------------------

    def windows(self) -> Array:
        padded = self.kernel.padded(self.names["x"], self.shape.halo)[1]
        assert padded is not None, "values are asked for only where there is math"
        return self.shape.windows(padded)

    def filters(self) -> Array:
        return self.shape.filters(self.kernel.arrays[self.names["w"]])

    def convolve(self, ranges: Ranges) -> Array:
        """The sums over a range of all loops, as [n, g, co, h, w], in the type that sums are kept in."""
        windows = self.windows()[spans(ranges, "n", "g", "ci", "kh", "kw", "h", "w")]
        filters = self.filters()[spans(ranges, "g", "co", "ci", "kh", "kw")]
        rows, columns = product(windows, filters)
        return image_of(self.kernel.dot(rows, columns), *(span(ranges, index)[1] for index in "nhw"))

    def keep(self, values: Array, ranges: Ranges, first: bool, finished: bool) -> None:
        """Store sums, or add them to what earlier tiles have left; a finished output passes the epilogue before."""
        here = self.shape.outputs(self.kernel.arrays[self.target])[spans(ranges, "n", "g", "co", "h", "w")]
        if finished and self.epilogue:
            values = self.finish(values, self.epilogue, ranges)
        if first:
            here[...] = self.sum_fmt.store(values)
        else:
            accumulate(here, values, self.sum_fmt)

    def finish(self, values: Array, elements: Sequence[Element], ranges: Ranges) -> Array:
        """Sums [n, g, co, h, w] of a range after some operations, in the type that arithmetic runs in."""

        def fetch(extra: Extra) -> Array:
            name = self.names[extra.port]
            stored = self.shape.outputs_along(self.kernel.arrays[name], extra.axes_of(4), ranges)
            return self.kernel.formats[name].load(stored)

        return apply_elements(elements, values.astype(self.sum_fmt.computed, copy=False), fetch)

    # Loops ------------------------------------------------------------------------------------------------------------

    def sum_loop(
        self,
        name: str,
        extents: Mapping[str, int],
        inputs: Sequence[Operand],
        plan: LoopPlan,
        compute: Compute,
        *,
        finished: bool,
        follows: Mapping[str, tuple[str, int]] | None = None,
    ) -> Loop:
        """The loop of the products; where its sums are finished in registers, the epilogue is done there."""
        operation = LoopOperation(tuple(inputs), self.output)
        registers = count_registers(plan, operation)
        self.kernel.registers_needed = max(self.kernel.registers_needed, registers)
        return self.kernel.make_loop(
            name,
            {index: extents[index] for index in plan.order},
            inputs,
            self.output,
            FMA,
            compute,
            plan=plan,
            accumulates=True,
            late=self.late if finished else (),
            late_body=element_body(self.epilogue) if finished else Instructions(),
            follows=follows,
        )

    @property
    def late(self) -> list[Operand]:
        return self.extras(self.epilogue)

    def extras(self, elements: Sequence[Element]) -> list[Operand]:
        """What operations read beside the value, as the loops of the output see it."""
        return [
            self.shape.output_operand(self.kernel, self.names[extra.port], extra.axes_of(4))
            for extra in element_extras(elements)
        ]

    def add_sum(
        self, name: str, extents: Mapping[str, int], inputs: Sequence[Operand], plan: LoopPlan, convolve: Convolve
    ) -> None:
        """The loop of the products, and the epilogue: in registers if sums are finished there, else tile by tile."""
        finished = plan.completes(LoopOperation(tuple(inputs), self.output))
        summed = [index for index in plan.order if index not in self.output.strides]
        tile = plan.tile

        def compute(ranges: Ranges) -> None:
            for cut in _summed_cuts(ranges, plan.order, summed, tile):
                first = all(cut[index][0] == 0 for index in summed)
                self.keep(convolve(cut), cut, first, finished)

        shared = shared_loop(self.schedule, plan, extents, self.output)
        around: list[tuple[str, int]] = []
        if self.epilogue and not finished:
            around, plan = _peeled(plan, extents, summed)
        body: tuple[Item, ...] = (self.sum_loop(name, extents, inputs, plan, compute, finished=finished),)
        if self.epilogue and not finished:
            body = (*body, self.pass_loop("epilogue", self.epilogue, self.target, self.target))
        for index, size in reversed(around):
            body = (TileLoop(index, extents[index], size, body),)
        for item in body:
            self.kernel.add(item)
        self.kernel.shared_index = shared

    def pass_loop(self, name: str, elements: Sequence[Element], source: str, target: str) -> Loop:
        """One loop over the output that does some operations of the epilogue, from memory to memory."""
        kernel, shape = self.kernel, self.shape
        order = ("n", "g", "co", "h", "w") if shape.layout == "nchw" else ("n", "h", "w", "g", "co")
        extents = {index: shape.extents[index] for index in order if index in shape.extents}
        reads = [shape.output_operand(kernel, source), *self.extras(elements)]

        def compute(ranges: Ranges) -> None:
            where = spans(ranges, "n", "g", "co", "h", "w")
            values = self.sum_fmt.load(shape.outputs(kernel.arrays[source])[where])
            values = self.finish(values, elements, ranges)
            shape.outputs(kernel.arrays[target])[where] = self.sum_fmt.store(values)

        write = shape.output_operand(kernel, target)
        body, vector = element_body(elements), self.schedule.vector
        return kernel.make_loop(name, extents, reads, write, body, compute, vector=vector)


def _summed_cuts(
    ranges: Ranges, order: Sequence[str], summed: Sequence[str], tile: Mapping[str, int]
) -> Iterator[dict[str, Range]]:
    """A range, cut at the tiles of the loops of the sum, in loop order."""
    cuts = []
    for index in order:
        first, extent = ranges[index]
        size = tile.get(index, extent) if index in summed else extent
        starts = range(first, first + extent, size)
        cuts.append([(index, (start, min(size, first + extent - start))) for start in starts])
    for combination in combinations(*cuts):
        yield dict(combination)


def _peeled(
    plan: LoopPlan, extents: Mapping[str, int], summed: Sequence[str]
) -> tuple[list[tuple[str, int]], LoopPlan]:
    """The outermost loops over the output, as loops over tiles with room for an epilogue, and the plan of the rest.

    Only those outside of all sums: what runs inside of a sum comes back to the same output later.
    """
    around: list[tuple[str, int]] = []
    tile = dict(plan.tile)
    for index in [*(index for index in plan.order if index in plan.tile), *plan.order]:
        known = {name for name, _ in around}
        tiles = prod(-(-extents[name] // size) for name, size in around)
        if index in summed or index in known or tiles >= MOST_TILES:
            break
        around.append((index, tile.pop(index, plan.step(index))))
    return around, replace(plan, tile=tile)
