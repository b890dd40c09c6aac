"""What one tile of a product does to the arrays and their scratchpads."""

from __future__ import annotations

from hwsim.hardware.systolic import GemmShape
from hwsim.mapping.chip import Chip
from hwsim.mapping.step import ArrayWork, Counts


def fold_tile(
    chip: Chip, shape: GemmShape, batch: int, bits: tuple[int, int, int], adds_up: bool
) -> tuple[ArrayWork, Counts, int]:
    """The cycles of `batch` products of one shape, what they read and write, and the folds of each array.

    `bits` are those of an input, a weight and a sum; `adds_up` says that sums of an earlier tile are added to.
    """
    array, pads = chip.array, chip.pads
    folds, stream = array.share(shape, batch, chip.unit.count)
    once = array.occupy(shape)
    counts = Counts(macs=batch * shape.macs, hops=batch * once.hops)
    counts.touch(pads["input"].name, "read", batch * once.input_reads, bits[0])
    counts.touch(pads["weight"].name, "read", batch * once.weight_reads, bits[1])
    counts.touch(pads["output"].name, "write", batch * once.output_writes, bits[2])
    again = once.output_reads + (shape.m * shape.n if adds_up else 0)
    counts.touch(pads["output"].name, "read", batch * again, bits[2])
    body = (folds - 1) * array.interval(stream) + stream
    work = ArrayWork(folds * stream, body, stream, max(body, chip.feed_cycles(counts.per_pad())))
    return work, counts, folds
