"""What all parts of a file have in common: closed specs, names, numbers with units, formats, limits, shared loops.

    count: Units = Field(1, description="Number of cores.")

Each kind of count has a largest value, and the reason is part of the message: a number beyond it is a slip of the hand,
or would be simulated for longer than anybody waits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    PlainValidator,
    StringConstraints,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from hwsim.units import (
    Bandwidth,
    EnergyPrice,
    Latency,
    format_bytes,
    format_frequency,
    parse_bandwidth,
    parse_bytes,
    parse_energy,
    parse_frequency,
    parse_latency,
    parse_length,
    parse_power,
    plain,
)

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$", max_length=80)]
"""Names of machines, levels, units and clocks: lower case, as paths such as ``l1.size`` are made of them."""


def _quantity(parse: Callable[[Any], Any], render: Callable[[Any], str], *examples: str) -> tuple[Any, ...]:
    return (
        PlainValidator(parse),
        PlainSerializer(render, return_type=str),
        WithJsonSchema({"type": "string", "examples": list(examples)}),
    )


Bytes = Annotated[int, *_quantity(parse_bytes, format_bytes, "64 B", "32 KiB", "inf")]
Frequency = Annotated[int, *_quantity(parse_frequency, format_frequency, "2 GHz")]
LatencyField = Annotated[Latency, *_quantity(parse_latency, str, "4 cycles", "0.5 ns")]
BandwidthField = Annotated[Bandwidth, *_quantity(parse_bandwidth, str, "64 B/cycle", "25.6 GB/s", "inf")]
EnergyField = Annotated[EnergyPrice, *_quantity(parse_energy, str, "10 pJ", "4 pJ/bit")]
Watts = Annotated[Fraction, *_quantity(parse_power, lambda watts: f"{plain(watts)} W", "75 W")]
Nanometres = Annotated[Fraction, *_quantity(parse_length, lambda nm: f"{plain(nm)} nm", "45 nm")]


class Spec(BaseModel):
    """Frozen, strict, and closed: a field that is not declared is an error, never ignored."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", validate_default=False, defer_build=True, allow_inf_nan=False
    )


class Sourced(Spec):
    """A group of physical numbers that tells where they come from."""

    source: str | dict[str, str] | None = Field(
        None,
        description="Where the numbers of this group come from: one text for all, or one for each field. "
        "Start an unsourced choice with 'assumption:', a fitted number with 'fitted:'.",
        examples=[
            "data sheet, table 3",
            {"size": "data sheet, table 3", "latency": "assumption: as in zen3"},
        ],
    )


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
    exponent: int = Field(ge=2, le=10, description="Bits of the exponent.")
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
                raise ValueError(f"'{value}': e takes 2 to 10 bits, and m 1 to 50") from None
        elif value not in names:
            from hwsim.spec.fields import did_you_mean

            near = did_you_mean(value, names) or "; nor like e5m3"
            raise ValueError(f"'{value}' is not one of {', '.join(names)}{near}")
        return value

    return WrapValidator(choose)


LEAST_SUM_EXPONENT = 3
"""A sum of products of ordinary numbers passes 2 to this power soon."""


def sum_problem(accumulate: str | FormatSpec) -> str:
    """Why a format cannot keep sums: it ends where they begin. Nothing where it can."""
    if isinstance(accumulate, str) and accumulate in ("int8", "int4", "uint4"):
        return f"{accumulate} cannot keep sums of products: they overflow it at once; int16 and int32 can"
    short = SHORT_NAME.fullmatch(accumulate) if isinstance(accumulate, str) else None
    if short is not None:
        accumulate = FormatSpec(exponent=int(short[1]), mantissa=int(short[2]))
    if isinstance(accumulate, str):
        return ""
    own = accumulate.bias if accumulate.bias is not None else 2 ** (accumulate.exponent - 1) - 1
    largest = 2**accumulate.exponent - 1 - own - (accumulate.specials == "ieee")
    saturates = accumulate.overflow == "saturate" or (accumulate.overflow is None and accumulate.specials == "none")
    if saturates or largest >= LEAST_SUM_EXPONENT:
        return ""
    return (
        f"numbers of this format end below {2.0 ** (largest + 1):g}, and sums of products pass that; "
        f"give it more bits of exponent, or 'overflow: saturate'"
    )


Precision = Annotated[
    PlainFormat | BlockedFormat | WeightOnly | ShortName | FormatSpec, _choose(PlainFormat, BlockedFormat, WeightOnly)
]
"""What tensors may be stored in."""
SumFormat = Annotated[PlainFormat | ShortName | FormatSpec, _choose(PlainFormat)]
"""What sums may be kept in."""


@dataclass(frozen=True)
class Most:
    """An upper end with its reason."""

    value: int
    why: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        described = handler(schema)
        return {**described, "maximum": self.value}

    def _check(self, number: Any) -> Any:
        if number > self.value:
            raise ValueError(f"must be at most {self.value:,}, found {_shown(number)}: {self.why}")
        return number


def _shown(number: float) -> str:
    return f"{number:,}" if number < 10**15 else f"{number:.3g}"


LARGEST_SIZE = 10**9
"""Of anything that a workload counts."""
SMALLEST_SHARE = 1e-6

Units = Annotated[int, Field(ge=1), Most(4096, "each of them is simulated by itself")]
Banks = Annotated[int, Field(ge=1), Most(65_536, "no memory has as many")]
Side = Annotated[int, Field(ge=1), Most(16_384, "no array has as many on a side")]
Cycles = Annotated[int, Most(1_000_000, "nothing inside a unit takes as long")]
PerCycle = Annotated[int, Most(65_536, "no unit does as many in a cycle")]
Held = Annotated[int, Field(ge=1), Most(16_777_216, "no unit holds as many")]
Bits = Annotated[int, Most(65_536, "no register or word is as wide")]
Products = Annotated[int, Field(ge=1), Most(LARGEST_SIZE, "no sum is as long")]
Tile = Annotated[int, Field(ge=1), Most(LARGEST_SIZE, "no tensor is as long")]
KernelTile = Annotated[int, Field(ge=1), Most(65_536, "no kernel has as large a tile")]
Seed = Annotated[int, Field(ge=0), Most(10**18 - 1, "a seed has at most 18 digits")]
Rate = Annotated[float, Field(ge=SMALLEST_SHARE), Most(1_000_000, "no unit does as many in a cycle")]
Share = Annotated[float, Field(ge=SMALLEST_SHARE, le=1)]


class TakesAway:
    """Of a mapping in which a variant takes an entry of what it extends away: ``tensor: {fp16: null}``."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Entries without a value are gone before the rest is looked at."""
        return core_schema.no_info_before_validator_function(self.without_none, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """What an editor takes: a value, or null."""
        found = handler(schema)
        for entries in (found.get("patternProperties", {}), found):
            for key in [*entries] if entries is not found else ["additionalProperties"]:
                if isinstance(entries.get(key), dict):
                    entries[key] = {"anyOf": [entries[key], {"type": "null"}]}
        return found

    @staticmethod
    def without_none(value: Any) -> Any:
        return {key: each for key, each in value.items() if each is not None} if isinstance(value, dict) else value


Extent = Annotated[int, Field(ge=1, le=10**9)]
Dimension = Extent | Name
"""An extent: a number, or the name of one of the sizes of a file."""
IndexName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
TensorName = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$", max_length=80)]


class ParallelSchedule(Spec):
    """How a loop is shared out among cores."""

    parallel: Literal["none", "rows"] = Field(
        "none", description="rows: the outermost loop over the output is shared out among the cores."
    )
    split: Literal["static", "dynamic"] = Field(
        "static",
        description="static: an equal share for each core; dynamic: smaller shares, taken when free.",
    )
    cores: Extent | None = Field(None, description="Cores to use; all that the machine has if not given.")


class NoSchedule(Spec):
    """Nothing to choose."""
