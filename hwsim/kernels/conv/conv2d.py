"""Conv2d: convolution of images, with an epilogue of pointwise operations and a max-pool behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hwsim.errors import ShapeError
from hwsim.kernels.conv.batch_norm import NORM_PORTS, add_norm_loops
from hwsim.kernels.conv.direct import add_direct, default_order
from hwsim.kernels.conv.epilogue import make_epilogue
from hwsim.kernels.conv.formula import conv_formulas
from hwsim.kernels.conv.fused_pool import add_pooled
from hwsim.kernels.conv.im2col import add_im2col
from hwsim.kernels.conv.implicit import add_implicit, block_size
from hwsim.kernels.conv.job import ConvJob
from hwsim.kernels.conv.pool import PoolShape, pool_loop
from hwsim.kernels.conv.shape import FILTER_AXES, IMAGE_AXES, ConvShape
from hwsim.kernels.kernel import Formula, Setting
from hwsim.kernels.loop.loops import LoopPlan
from hwsim.kernels.loop_kernel import LoopKernel
from hwsim.kernels.operator import Names, Operator, Port
from hwsim.kernels.rounding import Rounding, sum_pieces
from hwsim.kernels.tensor.element import Element
from hwsim.numerics.format import Array, Format
from hwsim.spec.ops.conv import ConvSchedule


class Conv2d(Operator):
    """y = pool(epilogue(x * w)): images x, filters w, and a port for each operand of the epilogue.

    The schedule says whether all is fused into the loops of the convolution, or each operation is a stage of its own.
    """

    reads = frozenset({"accumulate", "chunk"})

    name = "conv2d"

    def __init__(
        self,
        shape: ConvShape,
        schedule: ConvSchedule | None = None,
        epilogue: Sequence[str | Element] = (),
        pool: int | None = None,
    ) -> None:
        self.shape = shape
        self.schedule = schedule or ConvSchedule(layout=shape.layout, w_layout=shape.w_layout)
        self.epilogue = make_epilogue(shape, epilogue)
        self.pool = pool
        if pool is not None and pool > min(shape.out):
            raise ShapeError(f"pool: squares of {pool} do not fit an output of {shape.out[0]}x{shape.out[1]}")
        x = Port("x", shape.image_shape(shape.ci, shape.image), halo=shape.halo)
        self.inputs = (x, Port("w", shape.filter_shape), *self.epilogue.ports)
        self.outputs = (Port("y", shape.image_shape(shape.co, self.out), wide=True),)

    @property
    def out(self) -> tuple[int, int]:
        """Rows and columns of what is stored."""
        side = self.pool or 1
        return self.shape.out[0] // side, self.shape.out[1] // side

    def emit(self, kernel: LoopKernel, names: Names) -> None:
        self.epilogue.check(kernel.fmt)
        names = self._with_norms(kernel, names)
        followed = bool(self.epilogue or self.pool) and not self.schedule.fused
        if not followed:
            self._add_conv(kernel, names, self.epilogue.elements, names["y"])
            return
        target = self._add_map(kernel, self.scratch("conv", names))
        self._add_conv(kernel, names, (), target)
        self._add_passes(kernel, names, target)

    def reference(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """One element of the filters after the other, over whole images."""
        shape = self.shape
        x = np.pad(tensors["x"].transpose(IMAGE_AXES[shape.layout]), ((0, 0), (0, 0), *((p, p) for p in shape.padding)))
        w = tensors["w"].transpose(FILTER_AXES[shape.w_layout])
        (h, wide), (sh, sw), (dh, dw) = shape.out, shape.stride, shape.dilation
        x = x.reshape(shape.batch, shape.groups, -1, *x.shape[2:])
        w = w.reshape(shape.groups, -1, *w.shape[1:])
        y: Array = np.zeros((shape.batch, shape.groups, shape.co // shape.groups, h, wide))
        for u in range(shape.window[0]):
            for v in range(shape.window[1]):
                seen = x[..., u * dh : u * dh + (h - 1) * sh + 1 : sh, v * dw : v * dw + (wide - 1) * sw + 1 : sw]
                y += np.einsum("ngchw,goc->ngohw", seen, w[..., u, v], optimize=True)
        y = y.reshape(shape.batch, shape.co, h, wide)
        y = self.epilogue.reference(y if shape.layout == "nchw" else y.transpose(0, 2, 3, 1), tensors)
        return {"y": y if self.pool is None else _pooled(y, self.pool, shape.layout == "nchw")}

    def tolerance(self, rounding: Rounding) -> float:
        """The sum, which is kept at each tile of its loops, and what follows: stored once, or after each operation."""
        pieces = _sum_pieces(self.shape, self.schedule, rounding)
        operations, norms = len(self.epilogue.elements), len(self.epilogue.norms)
        stores = min(1, operations) if self.schedule.fused else operations
        after = rounding.operations(operations) + rounding.kept * (stores + 2 * norms)
        return rounding.sum(self.shape.depth) + rounding.kept_sum(pieces) + after

    def formulas(self, setting: Setting, fmt: Format) -> tuple[Formula, ...]:
        found = conv_formulas(self.shape, self.schedule, setting, fmt, self.pool or 1)
        # What the epilogue multiplies and adds is no product of the convolution.
        return tuple(formula for formula in found if formula.compare != "macs" or not self.epilogue.body.fma)

    def _add_conv(self, kernel: LoopKernel, names: Names, epilogue: tuple[Element, ...], target: str) -> None:
        job = ConvJob(kernel, names, self.shape, self.schedule, epilogue, target)
        if self.pool and self.schedule.fused:
            add_pooled(job, self.pool)
        elif self.schedule.algorithm == "direct":
            add_direct(job)
        elif self.schedule.algorithm == "im2col":
            kernel.begin_phase(self.scratch("im2col", names))
            add_im2col(job, self.scratch("windows", names), self.scratch("gemm", names))
        else:
            add_implicit(job, self.scratch("block", names))

    def _with_norms(self, kernel: LoopKernel, names: Names) -> Names:
        """Scale and shift of each batch norm, made in a stage of their own before all else."""
        found = dict(names)
        for norm in self.epilogue.norms.values():
            kernel.begin_phase(self.scratch("statistics", names))
            scale, shift = (self.scratch(tensor, names) for tensor in norm.made)
            found |= dict(zip(norm.made, (scale, shift), strict=True))
            ports = {role: names[port] for role, port in zip(NORM_PORTS, norm.ports, strict=True)}
            add_norm_loops(kernel, ports, scale, shift, self.schedule.vector)
        if self.epilogue.norms:
            kernel.begin_phase(self.scratch("conv", names))
        return found

    def _add_passes(self, kernel: LoopKernel, names: Names, source: str) -> None:
        """Each operation of the epilogue as a stage that reads what the one before has stored, then the pool."""
        elements = self.epilogue.elements
        for number, (name, element) in enumerate(zip(self.epilogue.names, elements, strict=True), 1):
            last = number == len(elements) and self.pool is None
            target = names["y"] if last else self._add_map(kernel, self.scratch(f"{name}_{number}", names))
            kernel.begin_phase(self.scratch(name, names))
            job = ConvJob(kernel, names, self.shape, self.schedule, elements, target)
            kernel.add(job.pass_loop(name, (element,), source, target))
            source = target
        if self.pool is not None:
            kernel.begin_phase(self.scratch("max_pool", names))
            side, shape = (self.pool, self.pool), self.shape
            pooled = PoolShape(shape.batch, shape.co, shape.out, side, side, shape.layout)
            vector = self.schedule.vector
            kernel.add(pool_loop(kernel, pooled, "max_pool", source, names["y"], vector=vector, wide=True))
            kernel.shared_index = pooled.shared_index

    def _add_map(self, kernel: LoopKernel, name: str) -> str:
        kernel.add_scratch(name, *self.shape.output_shape, fmt=kernel.find_sum_format())
        return name


def _pooled(y: Array, side: int, channels_first: bool) -> Array:
    """The largest of each square, square by square of whole rows."""
    axis = 2 if channels_first else 1
    for each in (axis, axis + 1):
        squares = y.shape[each] // side
        cut = np.take(y, range(squares * side), axis=each)
        y = cut.reshape(*cut.shape[:each], squares, side, *cut.shape[each + 1 :]).max(axis=each + 1)
    return y


def _sum_pieces(shape: ConvShape, schedule: ConvSchedule, rounding: Rounding) -> int:
    """How many times at most a sum goes to memory before it is whole."""
    if schedule.algorithm == "implicit":
        block = block_size(shape, schedule, rounding.fmt.element_bytes)
        return -(-shape.extents["ci"] // block.ci)
    extents = shape.extents | {"k": shape.depth}
    summed = ("k",) if schedule.algorithm == "im2col" else shape.summed
    outputs = tuple(index for index in default_order(shape) if index not in shape.summed)
    order = tuple(index for index in schedule.order if index in extents) or (*outputs, *summed)
    tile = {index: size for index, size in schedule.tile.items() if index in order}
    return sum_pieces(LoopPlan(order, tile), extents, summed)
