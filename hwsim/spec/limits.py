"""The largest value that each kind of count may have, and the reason, which is part of the message.

    count: Units = Field(1, description="Number of cores.")

A number beyond these is a slip of the hand, or would be simulated for longer than anybody waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema


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
