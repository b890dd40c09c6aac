"""What a kernel becomes on a core: the format that it computes in, its conversions, and the registers of its tiles.

Whatever is loaded from a tensor narrower than the arithmetic is widened, and rounded back before it is stored: one more
instruction for each such load and store, scalar or vector. Where the machine computes in the tensors' own format there
is nothing to do, but for weights that are stored more narrowly.

A value is what one register holds: a scalar, or a whole vector. A value without a register is loaded again at each use,
and stored again each time that it changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hwsim.errors import CapacityError, InputError
from hwsim.numerics.format import FORMATS, BlockFormat, Format
from hwsim.numerics.representation import FloatFormat, IntFormat
from hwsim.program.kernel import Kernel
from hwsim.program.steps import OutputBlock, Stage, Step
from hwsim.spec.memory import RegistersSpec
from hwsim.targets.cpu.spec import CpuSpec
from hwsim.trace.nest import Instructions


def converting_stages(kernel: Kernel) -> Sequence[Stage]:
    """The stages of a kernel, its arithmetic in the format that the machine computes in, conversions counted."""
    compute = kernel.compute_fmt
    narrow = frozenset(name for name, view in kernel.tensors.items() if view.element_bits < compute.bits)
    stages = kernel.stages()
    if not narrow and compute.name == kernel.fmt.name:
        return stages
    return [
        Stage(stage.name, tuple(_converting(block, narrow, kernel.fmt.name, compute.name) for block in stage.blocks))
        for stage in stages
    ]


def _converting(block: OutputBlock, narrow: frozenset[str], stored: str, compute: str) -> OutputBlock:
    def steps() -> Iterator[Step]:
        for step in block.steps():
            work = step.work
            count = sum(
                nest.count(access) for nest in step.nests for access in nest.accesses if access.tensor in narrow
            )
            fmt = compute if work.fmt == stored else work.fmt
            more = work.instructions + Instructions(convert=count)
            yield replace(step, work=replace(work, fmt=fmt, instructions=more))

    return OutputBlock(block.index, steps)


# Formats --------------------------------------------------------------------------------------------------------------


def lanes_of(unit: CpuSpec, fmt: Format) -> int:
    """Values of a format in one vector; 1 without a vector unit."""
    return max(1, unit.simd.bits // fmt.lane_bits) if unit.simd else 1


def choose_format(unit: CpuSpec, fmt: Format, *, convert: bool) -> Format:
    """The format that a core computes in: the tensors' own or, if asked, the narrowest it has that loses nothing."""
    if fmt.name in unit.formats:
        return fmt
    has = ", ".join(unit.formats)
    if not convert:
        raise InputError(
            f"precision: {unit.name} does not compute in {fmt.name}; it has {has}. Take one of these, or convert=true: "
            "converted on the way to registers and back, and counted"
        )
    wider = [FORMATS[name] for name in unit.formats if name in FORMATS and contains(FORMATS[name], fmt)]
    if not wider:
        raise InputError(f"precision: {unit.name} has no format with all numbers of {fmt.name}; it has {has}")
    return min(wider, key=lambda other: (other.lane_bits, -other.significand))


def contains(wide: Format, narrow: Format) -> bool:
    """Whether every number of a format is one of another; of an MX format, every element with a usual scale."""
    if isinstance(narrow, BlockFormat):
        many_exponents = isinstance(wide, FloatFormat) and wide.grid.exponent >= 8
        return many_exponents and contains(wide, narrow.element)
    if isinstance(wide, IntFormat) and isinstance(narrow, IntFormat):
        return wide.low <= narrow.low and narrow.high <= wide.high
    if isinstance(wide, FloatFormat) and isinstance(narrow, FloatFormat):
        in_range = wide.smallest <= narrow.smallest and narrow.largest <= wide.largest
        return in_range and wide.significand >= narrow.significand
    return False


# Registers ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spills:
    """Values that do not live in a register, and the accesses that this costs."""

    values: int = 0
    loads: int = 0
    stores: int = 0


class RegisterFile:
    """The registers of one compute unit."""

    def __init__(self, spec: RegistersSpec, name: str | None = None) -> None:
        self.spec = spec
        self.name = name or spec.name

    def fits(self, values: int) -> bool:
        return values <= self.spec.count

    def spills(self, values_needed: int, uses: int, updates: int = 0) -> Spills:
        """What a tile of so many values costs, each used `uses` times and changed `updates` times.

        Operands never change: they lie in memory anyway, and are only loaded again. Refused where the machine
        says so.
        """
        if self.fits(values_needed):
            return Spills()
        if self.spec.spill == "refuse":
            raise CapacityError(
                f"the register tile needs {values_needed} values in {self.name}, "
                f"which holds {self.spec.count}; {_advice(self.spec.count)}"
            )
        spilled = values_needed - self.spec.count
        return Spills(spilled, spilled * uses, spilled * updates)


def matmul_tile_registers(v1: int, v2: int, v3: int) -> int:
    """Values of a register tile of a matrix product: v1 x v3 of A, v2 x v3 of B, v1 x v2 sums."""
    return v1 * v3 + v2 * v3 + v1 * v2


def best_matmul_tile(registers: int) -> tuple[int, int] | None:
    """The tile v1 x v2 (v3 = 1) with the fewest loads, 1/v1 + 1/v2 per product; None if not even 1 x 1 fits.

    v3 changes no load and takes registers, so it is 1. Without whole numbers v1 = v2 = sqrt(registers + 1) -
    1.
    """
    best: tuple[int, int] | None = None
    v1 = 1
    while matmul_tile_registers(v1, v1, 1) <= registers:
        v2 = (registers - v1) // (v1 + 1)
        # v1 * v2 / (v1 + v2) is the reuse; compared without a division, so exactly.
        if best is None or v1 * v2 * sum(best) > best[0] * best[1] * (v1 + v2):
            best = v1, v2
        v1 += 1
    return best


def _advice(registers: int) -> str:
    tile = best_matmul_tile(registers)
    if tile is None:
        return "not even a 1x1 tile of a matrix product fits"
    needed = matmul_tile_registers(*tile, 1)
    return f"the best tile of a matrix product that fits is {tile[0]}x{tile[1]}x1, with {needed} values"
