"""Convolution as a matrix product: every window is copied into a matrix, K²/stride² times as large as the images."""

from __future__ import annotations

from math import prod

from hwsim.kernels.conv.direct import default_order
from hwsim.kernels.conv.job import ConvJob
from hwsim.kernels.conv.plan import default_along, loop_order, make_plan
from hwsim.kernels.conv.shape import ConvShape, image_of, product, span, spans
from hwsim.kernels.loop.grain import first_shared
from hwsim.kernels.loop.loops import LoopOperation, Operand
from hwsim.kernels.loop_kernel import Ranges
from hwsim.kernels.step import Instructions
from hwsim.numerics.format import Array
from hwsim.trace.nest import Size
from hwsim.trace.view import TensorView


def add_im2col(job: ConvJob, name: str, stage: str) -> None:
    """Two stages: the matrix is written, then multiplied by the filters."""
    shape, kernel = job.shape, job.kernel
    view = kernel.add_scratch(name, *matrix_shape(shape))
    _add_copy(job, view)
    kernel.begin_phase(stage)
    extents = {index: extent for index, extent in shape.extents.items() if index not in shape.summed}
    extents["k"] = shape.depth
    matrix = _matrix_operand(shape, view, flat=True)
    inputs = (matrix, shape.filter_operand(kernel, job.names["w"], flat=True))
    outputs = [index for index in default_order(shape) if index not in shape.summed]
    order = loop_order(job.schedule, (*outputs, "k"))
    along = job.schedule.along or default_along(shape, flat=True)
    operation = LoopOperation(inputs, job.output, late=tuple(job.late))
    plan = make_plan(order, extents, job.schedule, operation, lanes=job.lanes, along=along)

    def convolve(ranges: Ranges) -> Array:
        windows = _matrix(shape, kernel.arrays[name])[spans(ranges, "n", "g", "k", "h", "w")]
        rows, columns = product(windows, flat_filters(job)[spans(ranges, "g", "co", "k")])
        return image_of(kernel.dot(rows, columns), *(span(ranges, index)[1] for index in "nhw"))

    job.add_sum("gemm", extents, inputs, plan, convolve)


def copy_order(shape: ConvShape) -> tuple[str, ...]:
    """The loops that write the matrix from end to end."""
    order = ("n", "g", *shape.summed, "h", "w") if shape.layout == "nchw" else ("n", "h", "w", "g", *shape.summed)
    return tuple(index for index in order if index in shape.extents)


def summed_strides(shape: ConvShape, step: Size, channels: int) -> dict[str, Size]:
    """How far the loops of a sum move along a row of the matrix that holds so many input channels."""
    extents = shape.extents | {"ci": channels}
    strides = {}
    for index in reversed(shape.summed):
        strides[index] = step
        step *= extents[index]
    return strides


def matrix_shape(shape: ConvShape) -> tuple[int, ...]:
    """Along outputs where images are stored channel by channel, along channels otherwise."""
    if shape.layout == "nchw":
        return (shape.batch, shape.groups, shape.depth, *shape.out)
    return (shape.batch, *shape.out, shape.groups, shape.depth)


def flat_filters(job: ConvJob) -> Array:
    """Filters [g, co, k], each in the order in which it lies in memory."""
    axes = {"ci": 2, "kh": 3, "kw": 4}
    filters = job.filters()
    ordered = filters.transpose(0, 1, *(axes[index] for index in job.shape.summed))
    return ordered.reshape(*filters.shape[:2], prod(filters.shape[2:]))


def _add_copy(job: ConvJob, view: TensorView) -> None:
    shape, kernel = job.shape, job.kernel
    extents = {index: shape.extents[index] for index in copy_order(shape)}
    x = shape.input_operand(kernel, job.names["x"])

    def copy(ranges: Ranges) -> None:
        where = spans(ranges, "n", "g", "ci", "kh", "kw", "h", "w")
        _unfolded(shape, kernel.arrays[view.name])[where] = job.windows()[where]

    matrix = _matrix_operand(shape, view, flat=False)
    kernel.add_loop("im2col", extents, [x], matrix, Instructions(), copy, vector=job.schedule.vector)
    kernel.shared_index = first_shared(extents, [index for index in ("n", "h", "w") if index in extents])


def _matrix_operand(shape: ConvShape, view: TensorView, flat: bool) -> Operand:
    """The matrix as loops see it; with `flat`, one loop k runs through a whole window."""
    axes = ("n", "g", "k", "h", "w") if shape.layout == "nchw" else ("n", "h", "w", "g", "k")
    strides = {index: view.byte_stride(axis) for axis, index in enumerate(axes)}
    if not flat:
        strides |= summed_strides(shape, strides.pop("k"), shape.extents["ci"])
    own = {index: stride for index, stride in strides.items() if index in (*shape.extents, "k")}
    return Operand(view.name, view.base, view.element_bytes, own)


def _matrix(shape: ConvShape, array: Array) -> Array:
    """As [n, g, k, h, w]; a view."""
    return array if shape.layout == "nchw" else array.transpose(0, 3, 4, 1, 2)


def _unfolded(shape: ConvShape, array: Array) -> Array:
    """As [n, g, ci, kh, kw, h, w]; a view of a whole array, which is split and not copied."""
    inner = [shape.extents[index] for index in shape.summed]
    place = [shape.summed.index(index) for index in ("ci", "kh", "kw")]
    if shape.layout == "nchw":
        split = array.reshape(*array.shape[:2], *inner, *array.shape[3:])
        return split.transpose(0, 1, *(2 + axis for axis in place), 5, 6)
    split = array.reshape(*array.shape[:4], *inner)
    return split.transpose(0, 3, *(4 + axis for axis in place), 1, 2)
