"""Convolutions that multiply less, on a GPU: transforms, a matrix product for each point of them, transforms back.

`winograd` is one kernel behind the transform of the filters: a block loads tiles of images, transforms them in
registers, and keeps the sums of all points until it transforms them back. `winograd_nonfused` and `fft` have the
transforms of everything in memory, with a batched product between them. cuDNN has all three, as WINOGRAD,
WINOGRAD_NONFUSED and FFT_TILING.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import log2, prod
from typing import TYPE_CHECKING

from hwsim.ops.conv_transform import BACK, BETWEEN, FILTERS, IMAGES, PRODUCTS, Fourier, Transform, Winograd
from hwsim.program.gemm import GemmShape
from hwsim.program.loops import Item, Loop, all_loops
from hwsim.targets.gpu.device import KernelCost, element_bytes
from hwsim.targets.gpu.gemm import GemmBytes, fitting_tiles, gemm
from hwsim.targets.gpu.lower import Launch, OperatorLoops, launch_loops, tensors_of
from hwsim.targets.gpu.model import GATHER_OPERATIONS
from hwsim.targets.gpu.spec import TileSpec

if TYPE_CHECKING:
    from hwsim.ops.conv_operator import Conv2d
    from hwsim.program.convolution import ConvShape
    from hwsim.targets.gpu.model import GpuModel

FAMILY = "conv_winograd_fft"
FUSED = "winograd"
FUSED_TILE = TileSpec(m=128, n=128, k=8, stages=1, threads=256)
"""A fused block keeps the sums of 32 tiles by 32 filters at 16 points, as many as those of 128 x 128: the kernels of
cuDNN are called so."""
COMPLEX_TILES = tuple(
    TileSpec(m=m, n=2 * n, k=8, stages=2, threads=m * n // 32) for m, n in ((32, 32), (64, 32), (64, 64), (128, 64))
)
"""Products of complex numbers: a number of B is a column for its real and one for its imaginary part."""
LEAST_TILE = 64 * 128
"""Sums of the smallest block that multiplies the points of Winograd's transforms."""
FILTER_SHARE = 0.6
"""Of the bandwidth of a long stream, what transforms of filters reach, which read a few numbers at a time; those of
images reach all of it (fitted, with the next, on 3x3 convolutions on V100, A100 and T4)."""
PATCH_OPERATIONS = 3.0
"""For each point of a tile that a fused block transforms: two additions, and what they are scheduled with."""
STEP_OPERATIONS = 4.0
"""Operations for each number that a transform of Winograd's reads or writes."""


def transform_launches(task: OperatorLoops, operator: Conv2d, items: Sequence[Item]) -> Iterator[Launch]:
    """The kernels of a transformed convolution; its epilogue comes behind it in passes of its own."""
    assert operator.transform is not None
    names = (FILTERS, IMAGES, PRODUCTS, BACK)
    parts = {name: [loop for loop in all_loops(items) if loop.name == name] for name in names}
    yield from _kernels(task, operator, operator.transform, parts)
    yield from launch_loops(task, operator, [item for item in items if next(all_loops([item])).name not in names])


def _kernels(task: OperatorLoops, operator: Conv2d, found: Transform, parts: dict[str, list[Loop]]) -> Iterator[Launch]:
    shape, model, fmt = operator.shape, task.model, task.kernel.fmt.name
    filters, tiles = shape.co * shape.ci // shape.groups, prod(found.tiles(shape))
    share = FILTER_SHARE
    yield _launch(task, found, FILTERS, _transform(model, found, FILTERS, filters, shape.window, 1, fmt, share), parts)
    if operator.schedule.algorithm == FUSED:
        assert isinstance(found, Winograd)
        y = parts[BACK][-1].operation.output
        stored = element_bytes(fmt) if y is None else task.stored_bytes(y.tensor)
        whole = [loop for name in (IMAGES, PRODUCTS, BACK) for loop in parts[name]]
        yield _launch(task, found, FUSED, fused_cost(model, found, shape, fmt, stored), {FUSED: whole}, ("V", "M"))
        return
    images, results = shape.batch * shape.ci, shape.batch * shape.co
    yield _launch(task, found, IMAGES, _transform(model, found, IMAGES, images, shape.image, tiles, fmt), parts)
    yield _launch(task, found, PRODUCTS, product_cost(model, found, shape, fmt), parts)
    yield _launch(task, found, BACK, _transform(model, found, BACK, results, shape.out, tiles, fmt), parts)


def _launch(
    task: OperatorLoops,
    found: Transform,
    name: str,
    cost: KernelCost,
    parts: dict[str, list[Loop]],
    kept: Sequence[str] = (),
) -> Launch:
    """One kernel; what it makes and uses itself, `kept` and the halves of transforms, stays on the SM."""
    inside = (*BETWEEN, *kept)
    moved = {
        tensor: elements
        for tensor, elements in tensors_of(task.kernel, parts[name]).items()
        if tensor.rpartition(".")[2] not in inside
    }
    made = replace(task.launch(name, cost, parts[name], moved, family=FAMILY), stage=name)
    if isinstance(found, Winograd) or name == PRODUCTS:
        return made
    return replace(made, flops=round(cost.activity.fma), macs=0)  # quick transforms, not products with their matrices


def fused_cost(model: GpuModel, found: Winograd, shape: ConvShape, fmt: str, out: float) -> KernelCost:
    """The 16 products of a block as one of 4 times as many rows and columns, whose elements are those of 4 points."""
    size, side = element_bytes(fmt), found.side
    tiles, groups = shape.batch * prod(found.tiles(shape)), shape.groups
    product = GemmShape(side * tiles, side * shape.co // groups, shape.ci // groups, groups)
    data = GemmBytes(
        side * size,
        side * size,
        shape.outputs * out / (groups * product.m * product.n),
        a_bytes=shape.batch * shape.ci * prod(shape.image) * size,
        gather=GATHER_OPERATIONS + side * PATCH_OPERATIONS,
    )
    return gemm(model.device, product, fmt, data, FUSED_TILE, 1, "lanes")


def product_cost(model: GpuModel, found: Transform, shape: ConvShape, fmt: str) -> KernelCost:
    """A product of tiles by filters over the channels for each point.

    Complex numbers are multiplied as two rows by two columns of real ones, of which memory has a row.
    """
    device, size, groups = model.device, element_bytes(fmt), shape.groups
    tiles, co, ci = shape.batch * prod(found.tiles(shape)), shape.co // groups, shape.ci // groups
    if isinstance(found, Fourier):
        data = GemmBytes(size, size / 2, size)
        return gemm(
            device, GemmShape(tiles, 2 * co, 2 * ci, found.points * groups), fmt, data, COMPLEX_TILES, 1, "lanes"
        )
    data, unit = GemmBytes(size, size, size), device.unit_for(fmt)
    listed = fitting_tiles(device, fmt, unit, data, found.points)
    large = tuple(tile for tile in listed if tile.m * tile.n >= LEAST_TILE) or listed
    return gemm(device, GemmShape(tiles, co, ci, found.points * groups), fmt, data, large, 1, unit)


def _transform(
    model: GpuModel,
    found: Transform,
    name: str,
    count: int,
    plane: tuple[int, int],
    tiles: int,
    fmt: str,
    share: float = 1.0,
) -> KernelCost:
    """So many planes of images, filters or results, each cut into tiles, to their points or back."""
    words = 1 if isinstance(found, Winograd) else 2
    plain, points = count * prod(plane), count * tiles * words * found.points
    written = plain if name == BACK else points
    work = STEP_OPERATIONS * (plain + points)
    if isinstance(found, Fourier):
        work = count * tiles * 2.5 * found.side**2 * log2(found.side**2)
    return model.elementwise(
        plain + points,
        fmt,
        writes=0,
        operations=work / (plain + points),
        name=name,
        written=written * element_bytes(fmt),
        share=share,
    )
