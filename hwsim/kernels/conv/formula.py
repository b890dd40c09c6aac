"""Closed forms for a convolution: products, loads of the plain loops, and the size of the matrix of all windows."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, prod

from hwsim.kernels.conv.implicit import block_size
from hwsim.kernels.conv.shape import ConvShape
from hwsim.kernels.kernel import Formula, Setting
from hwsim.numerics.format import Format, find_format
from hwsim.spec.ops.conv import ConvSchedule


def conv_formulas(
    shape: ConvShape, schedule: ConvSchedule, setting: Setting, fmt: Format, side: int = 1
) -> tuple[Formula, ...]:
    """What is known in advance; `side` is that of a square of outputs of which a pool keeps one.

    A fused pool makes no more outputs than its squares have; one behind the convolution leaves some over.
    """
    outputs = shape.batch * shape.co * (shape.out[0] // side) * (shape.out[1] // side)
    fused = side > 1 and schedule.fused
    macs = outputs * side * side * shape.depth if fused else shape.macs
    return (
        Formula("products", "n·co·h·w·ci·kh·kw", macs, "multiply-adds", "macs"),
        *(() if fused else _plain_loads(shape, schedule, setting, macs, outputs)),
        *_windows(shape, schedule, fmt),
        _intensity(shape, fmt, macs, outputs),
    )


def _plain_loads(
    shape: ConvShape, schedule: ConvSchedule, setting: Setting, macs: int, outputs: int
) -> Iterator[Formula]:
    """Without tiles, an image element and a weight are loaded for each product, and each output is stored once."""
    vector = schedule.vector and setting.lanes > 1
    last = schedule.order[-3:] if schedule.order else shape.summed
    if schedule.algorithm != "direct" or vector or schedule.tile or schedule.unroll or set(last) != set(shape.summed):
        return
    yield Formula("loads of x", "n·co·h·w·ci·kh·kw", macs, "elements", "loads.x")
    yield Formula("loads of w", "n·co·h·w·ci·kh·kw", macs, "elements", "loads.w")
    yield Formula("stores of y", "n·co·h·w", outputs, "elements", "stores.y")


def _windows(shape: ConvShape, schedule: ConvSchedule, fmt: Format) -> Iterator[Formula]:
    """The matrix of all windows is K²/stride² times the images, where padding makes up for the edges."""
    if schedule.algorithm == "im2col":
        image = shape.batch * shape.ci * prod(shape.image) * fmt.element_bytes
        value = float(image * prod(shape.window) / prod(shape.stride))
        yield Formula("matrix of all windows", "K²/stride² · bytes of x", value, "B", "bytes.windows")
    if schedule.algorithm == "implicit":
        block = block_size(shape, schedule, fmt.element_bytes)
        needed = ceil(block.elements(shape) * fmt.element_bytes)
        yield Formula("scratch space of a core", "h·w·ci·K² of a block", needed, "B", "bytes.block")


def _intensity(shape: ConvShape, fmt: Format, macs: int, outputs: int) -> Formula:
    """The best that any schedule can reach: each element moved once."""
    inputs = shape.batch * shape.ci * prod(shape.image) + prod(shape.filter_shape)
    moved = inputs * fmt.element_bytes + outputs * find_format(fmt.sum_name).element_bytes
    return Formula(
        "operations per byte, each element moved once",
        "2·n·co·h·w·ci·kh·kw / bytes of x, w and y",
        float(2 * macs / moved),
        "flop/B",
        "intensity.byte",
    )
