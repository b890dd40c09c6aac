"""Which number formats a core computes in, how many values a vector holds, and what others are converted to."""

from __future__ import annotations

from hwsim.errors import InputError
from hwsim.numerics.block import BlockFormat
from hwsim.numerics.format import FORMATS, Format
from hwsim.numerics.kind import FloatFormat, IntFormat
from hwsim.spec.compute import CpuSpec


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
