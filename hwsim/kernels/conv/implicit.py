"""Implicit matrix product: of the matrix of all windows, only a block lies in scratch space at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, prod

import numpy as np

from hwsim.errors import CapacityError, InputError
from hwsim.kernels.conv.direct import default_order
from hwsim.kernels.conv.im2col import copy_order, flat_filters, summed_strides
from hwsim.kernels.conv.job import ConvJob
from hwsim.kernels.conv.plan import default_along, loop_order, make_plan
from hwsim.kernels.conv.shape import ConvShape, image_of, product, span, spans
from hwsim.kernels.loop.loops import LoopOperation, Operand
from hwsim.kernels.loop.program import Item
from hwsim.kernels.loop_kernel import Ranges, TileLoop
from hwsim.kernels.step import Instructions
from hwsim.numerics.format import Array, Format
from hwsim.spec.ops.conv import ConvSchedule
from hwsim.trace.nest import Size
from hwsim.trace.view import TensorView
from hwsim.units import format_bytes

DEFAULT_SCRATCH = 16 * 1024


@dataclass(frozen=True)
class BlockSize:
    """Rows and columns of outputs, and input channels, whose windows lie in scratch space together."""

    h: int
    w: int
    ci: int

    def elements(self, shape: ConvShape) -> int:
        return self.h * self.w * self.ci * prod(shape.window)


def block_size(shape: ConvShape, schedule: ConvSchedule, element_bytes: Size) -> BlockSize:
    """What was asked for or, along the loops left open, as much as fits: columns first, then channels, then rows."""
    extents = shape.extents
    room = (DEFAULT_SCRATCH if schedule.scratch is None else schedule.scratch) // element_bytes
    asked = {index: min(schedule.tile[index], extents[index]) for index in ("h", "w", "ci") if index in schedule.tile}
    found = dict.fromkeys(("h", "w", "ci"), 1) | asked
    for index in ("w", "ci", "h"):
        if index not in asked:
            others = prod(size for name, size in found.items() if name != index) * prod(shape.window)
            found[index] = max(1, min(extents[index], room // others))
    block = BlockSize(**found)
    if schedule.scratch is not None and block.elements(shape) > room:
        raise CapacityError(_too_large(shape, block, schedule.scratch, element_bytes))
    return block


def _too_large(shape: ConvShape, block: BlockSize, scratch: int, element_bytes: Size) -> str:
    needed = ceil(block.elements(shape) * element_bytes)
    most = scratch // (element_bytes * prod(shape.window) * block.h * block.w)
    message = (
        f"a block of {block.h}x{block.w} outputs and {block.ci} channels needs {format_bytes(needed)} in scratch, "
        f"which has {format_bytes(scratch)}"
    )
    if most:
        return f"{message}; the most channels that fit are {most} (tile.ci={most})"
    return f"{message}; not even one channel fits: take fewer rows or columns (tile.h, tile.w)"


def add_implicit(job: ConvJob, name: str) -> None:
    """Block after block: its windows are copied, then multiplied by the filters; outputs collect over the blocks."""
    shape, kernel, schedule = job.shape, job.kernel, job.schedule
    _check(schedule)
    block = block_size(shape, schedule, job.fmt.element_bytes)
    extents = shape.extents
    whole = block.ci == extents["ci"]
    flat = whole or shape.w_layout == "oihw"
    scratch = _BlockMemory(shape, block, _allocate(job, name, block), job.fmt)
    copy = _copy_loop(job, scratch)

    inner = ("k",) if flat else shape.summed
    outputs = tuple(index for index in default_order(shape) if index not in shape.summed)
    asked = loop_order(schedule, (*outputs, "k"), also=("ci",))
    order = tuple(loop for index in asked for loop in (inner if index == "k" else (index,)))
    sums = {index: extents[index] for index in outputs} | (
        {"k": shape.depth} if flat else {index: extents[index] for index in inner}
    )
    inputs = (scratch.operand(flat), shape.filter_operand(kernel, job.names["w"], flat))
    operation = LoopOperation(inputs, job.output, late=tuple(job.late))
    along = schedule.along or _along(shape, flat)
    tile = {"h": block.h, "w": block.w}
    plan = make_plan(order, sums, schedule, operation, lanes=job.lanes, along=along, tile=tile)
    plan = replace(plan, tile={"co": min(schedule.tile["co"], extents["co"])} if "co" in schedule.tile else {})
    finished = whole and plan.completes(operation)

    def multiply(ranges: Ranges) -> None:
        filters, summed = (flat_filters(job), ("k",)) if flat else (job.filters(), ("ci", "kh", "kw"))
        rows, columns = product(scratch.windows(ranges, summed), filters[spans(ranges, "g", "co", *summed)])
        sums = image_of(kernel.dot(rows, columns), *(span(ranges, index)[1] for index in "nhw"))
        begun = any(ranges[index][0] > 0 for index in summed)
        job.keep(sums, ranges, not begun, finished)

    follows = {"k": ("ci", prod(shape.window))} if flat and not whole else {}
    gemm = job.sum_loop("gemm", sums, inputs, plan, multiply, finished=finished, follows=follows)
    body: tuple[Item, ...] = (copy, gemm)
    if not whole:
        body = (TileLoop("ci", extents["ci"], block.ci, body),)
    if job.epilogue and not finished:
        body = (*body, job.pass_loop("epilogue", job.epilogue, job.target, job.target))
    around = {"n": 1, "g": 1, "h": block.h, "w": block.w}
    for index, size in reversed(around.items()):
        if index in extents and (size < extents[index] or index == "h"):
            body = (TileLoop(index, extents[index], size, body),)
    for item in body:
        kernel.add(item)
    kernel.shared_index = _shared(schedule, extents)


def _check(schedule: ConvSchedule) -> None:
    wrong = [index for index in schedule.tile if index not in ("co", "h", "w", "ci")]
    if wrong:
        raise InputError(f"schedule.tile: implicit is cut along co, h, w and ci, not along {', '.join(wrong)}")


def _shared(schedule: ConvSchedule, extents: Mapping[str, int]) -> str:
    """Cores share whole blocks, so that none is copied twice."""
    free = [index for index in ("n", "g", "h", "w") if index in extents]
    if schedule.share is not None and schedule.share not in ("n", "g", "h", "w"):
        raise InputError(
            f"schedule.share: with implicit, cores share blocks of outputs: one of {', '.join(free)}, "
            f"not {schedule.share}"
        )
    asked = [schedule.share] if schedule.share in free else []
    return str([*asked, *(index for index in free if extents[index] > 1), *free][0])


def _along(shape: ConvShape, flat: bool) -> str:
    along = default_along(shape, flat=True)
    return "ci" if along == "k" and not flat else along


def _allocate(job: ConvJob, name: str, block: BlockSize) -> TensorView:
    depth = block.ci * prod(job.shape.window)
    shape = (depth, block.h, block.w) if job.shape.layout == "nchw" else (block.h, block.w, depth)
    return job.kernel.add_private(name, *shape)


@dataclass(frozen=True)
class _BlockMemory:
    """A block of windows in scratch space, where loops find each element at the strides of their operand.

    Cores take turns in the middle of their blocks, so that each block of outputs has values of its own.
    """

    shape: ConvShape
    block: BlockSize
    view: TensorView
    fmt: Format
    values: dict[tuple[int, ...], Array] = field(default_factory=dict)

    def store(self, ranges: Ranges, windows: Array) -> None:
        """Windows [n, g, ci, kh, kw, h, w] of a block of outputs."""
        stored = np.zeros(self.block.elements(self.shape), self.fmt.held)
        self._seen(stored, ranges, ("ci", "kh", "kw"))[...] = windows[0, 0]
        self.values[_place(ranges)] = stored

    def windows(self, ranges: Ranges, inner: Sequence[str]) -> Array:
        """The same as [n, g, *inner, h, w]; the next block takes their place."""
        return self._seen(self.values.pop(_place(ranges)), ranges, inner)[None, None]

    def _seen(self, stored: Array, ranges: Ranges, inner: Sequence[str]) -> Array:
        indices = (*inner, "h", "w")
        operand = self.operand(flat="k" in inner)
        steps = [int(operand.strides[index] / operand.element_bytes) * stored.itemsize for index in indices]
        extents = [ranges[index][1] for index in indices]
        last = sum(step * (extent - 1) for step, extent in zip(steps, extents, strict=True))
        assert last < stored.nbytes, "a block holds all windows of its outputs"
        return np.lib.stride_tricks.as_strided(stored, extents, steps)

    def operand(self, flat: bool) -> Operand:
        """As loops see it: every tile finds the same memory; with `flat`, one loop k runs through a window."""
        axes = ("k", "h", "w") if self.shape.layout == "nchw" else ("h", "w", "k")
        strides = {index: self.view.byte_stride(axis) for axis, index in enumerate(axes)}
        local = {"h": (self.block.h, 0), "w": (self.block.w, 0)}
        if flat:
            local["k"] = (self.block.ci * prod(self.shape.window), 0)
        else:
            strides |= summed_strides(self.shape, strides.pop("k"), self.block.ci)
            local["ci"] = (self.block.ci, 0)
        return Operand(self.view.name, self.view.start, self.view.element_bytes, strides, local)


def _place(ranges: Ranges) -> tuple[int, ...]:
    """The first output of a block."""
    return tuple(span(ranges, index)[0] for index in ("n", "g", "h", "w"))


def _copy_loop(job: ConvJob, scratch: _BlockMemory) -> Item:
    shape, kernel = job.shape, job.kernel
    extents = {index: shape.extents[index] for index in copy_order(shape)}
    x = shape.input_operand(kernel, job.names["x"])

    def copy(ranges: Ranges) -> None:
        scratch.store(ranges, job.windows()[spans(ranges, "n", "g", "ci", "kh", "kw", "h", "w")])

    return kernel.make_loop(
        "copy", extents, [x], scratch.operand(flat=False), Instructions(), copy, vector=job.schedule.vector
    )
