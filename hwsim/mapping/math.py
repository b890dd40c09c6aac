"""The real math of a kernel in the order of an array: sums of as many products as it has rows, added up one by one."""

from __future__ import annotations

from collections.abc import Iterator

from hwsim.kernels.kernel import Kernel
from hwsim.kernels.loop.loops import Range
from hwsim.kernels.loop.program import Item, Loop, walk
from hwsim.mapping.chip import Chip
from hwsim.mapping.cut import cut_to
from hwsim.mapping.gemm import GemmView, gemm_view
from hwsim.numerics.format import find_format


def compute(chip: Chip, kernel: Kernel, items: list[Item]) -> None:
    """Fill in the kernel's results."""
    for item in items:
        if isinstance(item, Loop):
            view = gemm_view(item)
            for ranges in chunks(chip, view, kernel) if view is not None else [item.ranges({})]:
                item.compute(ranges)
        else:
            for loop, inner, _ in walk([item], {}):
                loop.compute(inner)


def chunks(chip: Chip, view: GemmView, kernel: Kernel) -> Iterator[dict[str, Range]]:
    """A product in pieces along k that fit the rows of the array, each of which is added to the accumulators.

    Where sums are stored in a narrower format than they are kept in, they are rounded once, at the end: the whole sum
    is then one piece.
    """
    whole = view.loop.ranges({})
    stored = kernel.tensors[view.output.tensor].element_bits
    rounds = stored < find_format(chip.sum_format).bits or view.loop.late_body.total or view.loop.operation.late
    if rounds or chip.array.dataflow == "os":
        yield whole
        return
    for ranges in cut_to({index: whole[index][1] for index in view.k}, chip.array.rows).ranges():
        yield {**whole, **ranges}
