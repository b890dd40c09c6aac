"""Number formats as files name them: the known ones, any ``ExMy``, or a format of your own."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    Field,
    StringConstraints,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from hwsim.spec.base import Name, Spec
from hwsim.spec.fields import did_you_mean

PlainFormat = Literal[
    "fp64", "fp32", "tf32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "fp6_e3m2", "fp6_e2m3", "fp4_e2m1",
    "int64", "int32", "int16", "int8", "int4", "uint4",
]  # fmt: skip
BlockedFormat = Literal["mxfp8", "mxfp6", "mxfp4"]
"""Blocks of 32 numbers with a common scale."""
KNOWN_FORMATS: tuple[str, ...] = (*get_args(PlainFormat), *get_args(BlockedFormat))
WeightOnly = Literal["w8a16", "w4a16"]
"""Activations in fp16 and weights in int8 or int4, which are turned into fp16 before they are multiplied."""

SHORT_NAME = re.compile(r"e(\d{1,2})m(\d{1,2})")
ShortName = Annotated[str, StringConstraints(pattern=r"^e\d{1,2}m\d{1,2}$")]


class FormatSpec(Spec):
    """A floating-point format of your own: a sign, exponent bits and mantissa bits."""

    name: Name | None = Field(None, description="How results call it; `e5m3` and the like if not given.")
    exponent: int = Field(ge=2, le=11, description="Bits of the exponent.")
    mantissa: int = Field(ge=1, le=50, description="Bits of the mantissa, without the hidden one.")
    bias: int | None = Field(None, description="Subtracted from the stored exponent; 2^(exponent-1) - 1 if not given.")
    specials: Literal["ieee", "nan", "none"] = Field(
        "ieee",
        description="ieee: the largest exponent means infinity and NaN. nan: only its last code means NaN, as in "
        "fp8_e4m3. none: all codes are numbers, as in fp4_e2m1.",
    )
    overflow: Literal["inf", "nan", "saturate"] | None = Field(
        None,
        description="What becomes of a number that is too large; inf, nan or saturate for specials ieee, nan and none "
        "if not given.",
    )

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        if self.overflow == "inf" and self.specials != "ieee":
            raise ValueError(f"overflow: inf needs a format with infinities (specials: ieee, not {self.specials})")
        if self.overflow == "nan" and self.specials == "none":
            raise ValueError("overflow: nan needs a format with NaN (specials: ieee or nan)")
        bias = self.bias if self.bias is not None else 2 ** (self.exponent - 1) - 1
        if not -900 <= 1 - bias - self.mantissa <= 2**self.exponent - bias <= 1000:
            raise ValueError(f"bias {bias} moves the format out of the range of float64")
        return self


def _choose(*known: Any) -> WrapValidator:
    """One clear sentence for a name that is not known; groups are checked field by field."""
    names = [name for literal in known for name in get_args(literal)]

    def choose(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        if not isinstance(value, str):
            return handler(value)
        short = SHORT_NAME.fullmatch(value)
        if short is not None:
            try:
                FormatSpec.model_validate({"exponent": int(short[1]), "mantissa": int(short[2])})
            except ValidationError:
                raise ValueError(f"'{value}': e takes 2 to 11 bits, and m 1 to 50") from None
        elif value not in names:
            near = did_you_mean(value, names) or "; nor like e5m3"
            raise ValueError(f"'{value}' is not one of {', '.join(names)}{near}")
        return value

    return WrapValidator(choose)


Precision = Annotated[
    PlainFormat | BlockedFormat | WeightOnly | ShortName | FormatSpec, _choose(PlainFormat, BlockedFormat, WeightOnly)
]
"""What tensors may be stored in."""
SumFormat = Annotated[PlainFormat | ShortName | FormatSpec, _choose(PlainFormat)]
"""What sums may be kept in."""
