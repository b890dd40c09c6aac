"""The number formats that tensors may be stored in, by name.

Adding a format is one more entry in ``FORMATS``; any other floating-point format is ``e5m3`` or a `FormatSpec`. A
format narrower than what NumPy computes in is rounded whenever a value is stored, as a machine does that keeps sums in
a wider register.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import get_args

import numpy as np
from pydantic import ValidationError

from hwsim.errors import InputError
from hwsim.numerics.block import make_mx
from hwsim.numerics.grid import Grid
from hwsim.numerics.kind import Array, FloatFormat, Format, make_float, make_integer
from hwsim.spec.fields import did_you_mean
from hwsim.spec.number import SHORT_NAME, FormatSpec, WeightOnly

__all__ = ["FORMATS", "Array", "Format", "find_format"]

_E4M3 = make_float("fp8_e4m3", Grid(4, 3, 7, "nan", "nan"), "fp32")
_E3M2 = make_float("fp6_e3m2", Grid(3, 2, 3, "none", "saturate"), "fp32")
_E2M1 = make_float("fp4_e2m1", Grid(2, 1, 1, "none", "saturate"), "fp32")

FORMATS: Mapping[str, Format] = {
    fmt.name: fmt
    for fmt in (
        make_float("fp64", Grid(11, 52, 1023), held=np.float64),
        make_float("fp32", Grid(8, 23, 127), held=np.float32),
        make_float("tf32", Grid(8, 10, 127), "fp32", bits=32),  # lies in memory as fp32 does
        make_float("bf16", Grid(8, 7, 127)),
        make_float("fp16", Grid(5, 10, 15), held=np.float16),
        _E4M3,
        make_float("fp8_e5m2", Grid(5, 2, 15), "fp32"),
        _E3M2,
        make_float("fp6_e2m3", Grid(2, 3, 1, "none", "saturate"), "fp32"),
        _E2M1,
        make_mx("mxfp8", _E4M3),
        make_mx("mxfp6", _E3M2),
        make_mx("mxfp4", _E2M1),
        make_integer("int64", np.int64, "int64", wraps=True),
        make_integer("int32", np.int32, "int32", wraps=True),
        make_integer("int16", np.int16, "int64"),
        make_integer("int8", np.int8, "int32"),
        make_integer("int4", np.int8, "int32", bits=4),
        make_integer("uint4", np.uint8, "int32", bits=4),
    )
}


def find_format(name: str | FormatSpec) -> Format:
    """A format by its name, by a short name such as ``e5m3``, or as a workload file describes it."""
    if isinstance(name, FormatSpec):
        return _own_format(name)
    if name in FORMATS:
        return FORMATS[name]
    short = SHORT_NAME.fullmatch(name)
    if short is not None:
        try:
            return _own_format(FormatSpec(exponent=int(short[1]), mantissa=int(short[2])))
        except ValidationError:
            raise InputError(f"'{name}': e takes 2 to 11 bits, and m 1 to 50") from None
    if name in get_args(WeightOnly):
        raise InputError(f"precision: {name} is about weights of a matrix product; here, one of {', '.join(FORMATS)}")
    near = did_you_mean(name, FORMATS) or ", nor like e5m3"
    raise InputError(f"'{name}' is not one of the number formats {', '.join(FORMATS)}{near}")


@cache
def _own_format(spec: FormatSpec) -> FloatFormat:
    by_specials = {"ieee": "inf", "nan": "nan", "none": "saturate"}
    overflow = spec.overflow or by_specials[spec.specials]
    usual = 2 ** (spec.exponent - 1) - 1
    bias = usual if spec.bias is None else spec.bias
    grid = Grid(spec.exponent, spec.mantissa, bias, spec.specials, overflow)  # type: ignore[arg-type]
    words = [f"e{spec.exponent}m{spec.mantissa}"]
    words += [spec.specials] if spec.specials != "ieee" else []
    words += [overflow] if overflow != by_specials[spec.specials] else []
    words += [f"bias{bias}".replace("-", "m")] if bias != usual else []
    return make_float(spec.name or "_".join(words), grid, "fp32" if grid.dtype == np.float32 else "fp64")
