"""What a file may say of a convolution: sizes, layouts, algorithm, loops, epilogue; and what is known in advance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Literal, Self, TypeVar

from pydantic import Field, model_validator

from hwsim.errors import CapacityError, InputError
from hwsim.numerics.format import Format, find_format
from hwsim.ops.pointwise import POINTWISE
from hwsim.program.contraction import ConvShape, Pair, conv_problem
from hwsim.program.kernel import Formula, Setting
from hwsim.spec.base import Bytes, Extent, IndexName, ParallelSchedule, Spec
from hwsim.spec.fields import did_you_mean
from hwsim.trace.nest import Size
from hwsim.units import format_bytes

ImageLayout = Literal["nchw", "nhwc"]
WeightLayout = Literal["oihw", "ohwi", "hwio"]
_Value = TypeVar("_Value")

DEFAULT_SCRATCH = 16 * 1024
OPTIONAL = ("n", "g")
"""Loops that a convolution of one image, or of one group, does not have."""


def ordered(layout: str, *, n: _Value, c: _Value, h: _Value, w: _Value) -> tuple[_Value, ...]:
    """Batch, channel, height and width as they lie in memory."""
    at = {"n": n, "c": c, "h": h, "w": w}
    return tuple(at[axis] for axis in layout)


class ConvSizes(Spec):
    """Images, filters, and how far the filters move; sizes along the width are those along the height if not given."""

    batch: Extent = Field(1, description="Images.")
    ci: Extent = Field(64, description="Input channels.")
    co: Extent | None = Field(None, description="Output channels; as many as input channels if not given.")
    height: Extent = Field(32, description="Rows of an input image.")
    width: Extent | None = Field(None, description="Columns of an input image.")
    kernel: Extent = Field(3, description="Rows of a filter.")
    kernel_w: Extent | None = Field(None, description="Columns of a filter.")
    stride: Extent = Field(1, description="Rows from one output to the next.")
    stride_w: Extent | None = Field(None, description="Columns from one output to the next.")
    padding: int = Field(0, ge=0, description="Rows of zeros above and below an image; they are stored around it.")
    padding_w: int | None = Field(None, ge=0, description="Columns of zeros on the left and on the right.")
    dilation: Extent = Field(1, description="Rows from one element of a filter to the next.")
    dilation_w: Extent | None = Field(None, description="Columns from one element of a filter to the next.")
    groups: Extent | Literal["depthwise"] = Field(
        1, description="Groups of channels that do not mix; depthwise: each input channel is a group."
    )

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if problem := conv_problem(*self._numbers):
            raise ValueError(problem)
        return self

    @property
    def group_count(self) -> int:
        return self.ci if self.groups == "depthwise" else self.groups

    @property
    def _numbers(self) -> tuple[int, int, int, Pair, Pair, Pair, Pair]:
        pads = self.padding, self.padding if self.padding_w is None else self.padding_w
        window, image = (self.kernel, self.kernel_w or self.kernel), (self.height, self.width or self.height)
        dilation = self.dilation, self.dilation_w or self.dilation
        return self.ci, self.co or self.ci, self.group_count, image, window, pads, dilation

    @property
    def shape(self) -> ConvShape:
        ci, co, groups, image, window, pads, dilation = self._numbers
        stride = self.stride, self.stride_w or self.stride
        return ConvShape(ci, co, image, window, self.batch, stride, pads, dilation, groups)


class ConvSchedule(ParallelSchedule):
    """Algorithm, layouts, loop order, and tiles for registers and caches."""

    algorithm: Literal["direct", "im2col", "implicit", "winograd", "winograd_nonfused", "fft"] = Field(
        "direct",
        description="direct: loops over the images themselves. im2col: every window is copied into a large matrix, "
        "then a matrix product. implicit: the same block by block, with only a block of that matrix in scratch space. "
        "winograd (3x3 filters that move by one) and winograd_nonfused (3x3 or 5x5): fewer products of transformed "
        "tiles, for 2x2 outputs in one kernel and for 4x4 outputs with all transforms in memory. fft (filters up to "
        "8x8 that move by one): the same with Fourier transforms of tiles of 16 or 32 a side. These have loops of "
        "their own.",
    )
    layout: ImageLayout = Field(
        "nchw", description="Order of the axes of images in memory: batch, channel, height, width."
    )
    w_layout: WeightLayout = Field(
        "oihw", description="Order of the axes of filters in memory: output channel, input channel, height, width."
    )
    order: tuple[IndexName, ...] = Field(
        (),
        description="Loops, outermost first: n images, g groups, co output channels, h rows and w columns of the "
        "output, then ci input channels, kh rows and kw columns of a filter, which are one loop k in a matrix product.",
    )
    tile: dict[IndexName, Extent] = Field(
        {}, description="Extent of a cache tile along a loop; for implicit, that of the block along h, w and ci."
    )
    unroll: dict[IndexName, Extent] = Field({}, description="Extent of the register tile along a loop.")
    vector: bool = Field(False, description="Use the machine's vector unit.")
    along: IndexName | None = Field(
        None, description="Loop whose neighbours fill a vector; one that runs along memory if not given."
    )
    fused: bool = Field(
        True, description="Finish each output before it is stored; otherwise a pass over memory for each operation."
    )
    fold: bool = Field(False, description="Fold batch_norm into weights and bias before the run.")
    scratch: Bytes | None = Field(
        None, description="Room for the block of implicit; 16 KiB if not given.", examples=["16 KiB"]
    )
    share: IndexName | None = Field(
        None, description="Loop that is shared out among cores; the outermost over the output if not given."
    )


def loop_order(schedule: ConvSchedule, default: Sequence[str], also: Sequence[str] = ()) -> tuple[str, ...]:
    """The loops in the order that was asked for; a name that belongs nowhere is refused.

    `also` are loops that may be cut, although the order has no place for them.
    """
    asked = [index for index in _flat(schedule.order, default) if index in default or index not in OPTIONAL]
    missing = [index for index in OPTIONAL if index in default and index not in asked] if asked else []
    order = (*missing, *asked) if asked else tuple(default)
    if sorted(order) != sorted(default):
        raise InputError(
            f"schedule.order must name each of {', '.join(default)} once, found {', '.join(schedule.order)}"
        )
    known = (*default, *also)
    given = {"tile": schedule.tile, "unroll": schedule.unroll, "along": [schedule.along], "share": [schedule.share]}
    for name, indices in given.items():
        for index in indices:
            if index is not None and index not in (*known, *OPTIONAL):
                near = did_you_mean(index, known)
                raise InputError(
                    f"schedule.{name}: {schedule.algorithm} has no loop {index}; its loops are {', '.join(known)}{near}"
                )
    return order


def _flat(order: Sequence[str], default: Sequence[str]) -> tuple[str, ...]:
    """An order of all loops as im2col has them: those over taps and channels are one, where the first stood."""
    summed = ("kh", "kw", "ci")
    if "k" not in default or "k" in order or not set(summed) <= set(order):
        return tuple(order)
    first = next(index for index in order if index in summed)
    return tuple("k" if index == first else index for index in order if index == first or index not in summed)


def block_size(shape: ConvShape, schedule: ConvSchedule, element_bytes: Size) -> dict[str, int]:
    """What was asked for or, along the loops left open, as much as fits: columns first, then channels, then rows."""
    extents = {"h": shape.out[0], "w": shape.out[1], "ci": shape.ci // shape.groups}
    room = (DEFAULT_SCRATCH if schedule.scratch is None else schedule.scratch) // element_bytes
    asked = {index: min(schedule.tile[index], extents[index]) for index in extents if index in schedule.tile}
    found = dict.fromkeys(extents, 1) | asked
    for index in ("w", "ci", "h"):
        if index not in asked:
            others = prod(size for name, size in found.items() if name != index) * prod(shape.window)
            found[index] = max(1, min(extents[index], room // others))
    if schedule.scratch is not None and prod(found.values()) * prod(shape.window) > room:
        raise CapacityError(_too_large(shape, found, schedule.scratch, element_bytes))
    return found


def _too_large(shape: ConvShape, block: Mapping[str, int], scratch: int, element_bytes: Size) -> str:
    needed = ceil(prod(block.values()) * prod(shape.window) * element_bytes)
    most = scratch // (element_bytes * prod(shape.window) * block["h"] * block["w"])
    message = (
        f"a block of {block['h']}x{block['w']} outputs and {block['ci']} channels needs {format_bytes(needed)} in "
        f"scratch, which has {format_bytes(scratch)}"
    )
    if most:
        return f"{message}; the most channels that fit are {most} (tile.ci={most})"
    return f"{message}; not even one channel fits: take fewer rows or columns (tile.h, tile.w)"


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
        *(() if fused else _plain_loads(schedule, setting, macs, outputs)),
        *_windows(shape, schedule, fmt),
        _intensity(shape, fmt, macs, outputs),
    )


def _plain_loads(schedule: ConvSchedule, setting: Setting, macs: int, outputs: int) -> Iterator[Formula]:
    """Without tiles, an image element and a weight are loaded for each product, and each output is stored once."""
    vector = schedule.vector and setting.lanes > 1
    inside = set(schedule.order[-3:]) in (set(), {"ci", "kh", "kw"})
    if schedule.algorithm != "direct" or vector or schedule.tile or schedule.unroll or not inside:
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
        needed = ceil(prod(block.values()) * prod(shape.window) * fmt.element_bytes)
        yield Formula("scratch space of a core", "h·w·ci·K² of a block", needed, "B", "bytes.block")


def _intensity(shape: ConvShape, fmt: Format, macs: int, outputs: int) -> Formula:
    """The best that any schedule can reach: each element moved once."""
    inputs = shape.batch * shape.ci * prod(shape.image) + shape.co * shape.depth
    moved = inputs * fmt.element_bytes + outputs * find_format(fmt.sum_name).element_bytes
    return Formula(
        "arithmetic intensity, each element moved once",
        "2·n·co·h·w·ci·kh·kw / bytes of x, w and y",
        float(2 * macs / moved),
        "flop/B",
        "intensity.far",
    )


EpilogueName = Literal[
    "bias", "batch_norm", "scale_shift", "add", "sub", "mul", "relu", "square", "exp", "sigmoid", "tanh", "gelu", "silu"
]
EPSILON = 1e-5
"""Added to a variance before its root is taken: the default of PyTorch's BatchNorm2d."""
CHANNEL_PORTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "bias": ("add", ("b",)),
    "scale_shift": ("scale_shift", ("scale", "shift")),
    "batch_norm": ("scale_shift", ("norm_scale", "norm_shift")),
}
"""Names with a value for each channel: the operation, and the ports of its operands."""
RESIDUALS = ("residual", "residual_more")
"""Ports of all others, of the output's shape."""
NORM_PORTS = ("gamma", "beta", "mean", "var")


@dataclass(frozen=True)
class After:
    """One operation of an epilogue on the value so far: `operands` are its ports, each with the axes of the output in
    memory that it has (None: all). Of a batch norm, `norm` are the ports from which scale and shift are made."""

    name: str
    op: str
    operands: tuple[tuple[str, tuple[int, ...] | None], ...] = ()
    value: float | None = None
    norm: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.op not in POINTWISE:
            near = did_you_mean(self.op, POINTWISE)
            raise InputError(f"'{self.op}' is no pointwise operation{near}; there are {', '.join(POINTWISE)}")
        rule = POINTWISE[self.op]
        if len(self.operands) != rule.operands:
            raise InputError(f"{self.op} takes {rule.operands} operands beside the value, found {len(self.operands)}")
        if (self.value is not None) != rule.takes_number:
            raise InputError(
                f"{self.op} needs a number: give value" if rule.takes_number else f"{self.op} takes no value"
            )

    @property
    def given(self) -> tuple[str, ...]:
        return self.norm or self.ports

    @property
    def ports(self) -> tuple[str, ...]:
        return tuple(port for port, _ in self.operands)

    @property
    def places(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Each operand with its axes."""
        return ((port, tuple(range(4)) if axes is None else axes) for port, axes in self.operands)

    def expression(self, value: str, operands: Sequence[str]) -> str:
        rule = POINTWISE[self.op]
        return rule.written(x=value, value=repr(self.value), **dict(zip("yz", operands, strict=False)))


def make_epilogue(asked: Sequence[str | After], channel_axis: int) -> tuple[After, ...]:
    """Names as a workload has them, or operations; a port that occurs again has the number of its operation behind
    it."""
    found: list[After] = []
    taken: set[str] = set()

    def free(ports: Sequence[str], number: int) -> tuple[str, ...]:
        return tuple(f"{port}_{number}" if port in taken else port for port in ports)

    for number, each in enumerate(asked, 1):
        if isinstance(each, After):
            found.append(each)
            continue
        if each not in CHANNEL_PORTS and each not in POINTWISE:
            known = tuple(dict.fromkeys((*CHANNEL_PORTS, *POINTWISE)))
            raise InputError(f"epilogue: '{each}' is not one of {', '.join(known)}{did_you_mean(each, known)}")
        whole = (each, RESIDUALS[: POINTWISE[each].operands]) if each in POINTWISE else ("", ())
        op, roles = CHANNEL_PORTS.get(each, whole)
        ports = free(roles, number)
        axes = (channel_axis,) if each in CHANNEL_PORTS else None
        norm = free(NORM_PORTS, number) if each == "batch_norm" else ()
        found.append(After(each, op, tuple((port, axes) for port in ports), norm=norm))
        taken.update((*ports, *norm))
    return tuple(found)
