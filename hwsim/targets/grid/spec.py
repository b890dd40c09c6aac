"""A grid of small processors with memories of their own, as a machine file describes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from hwsim.spec.base import Bits, Bytes, Name, PerCycle, Side
from hwsim.spec.fields import Finding, unknown_format
from hwsim.spec.machine import MachineSpec, UnitSpec


class GridSpec(UnitSpec):
    """Rows x columns of processing elements (PEs), each with a multiplier and scratchpads for its operands."""

    kind: Literal["grid"]
    name: Name = Field(description="How paths and counters call one processing element.", examples=["pe"])
    clock: Name | None = Field(None, description="Clock domain; the machine's first clock if not given.")
    rows: Side = Field(description="Rows of processing elements.")
    columns: Side = Field(description="Columns of processing elements.")
    dataflow: Literal["row_stationary"] = Field(
        "row_stationary",
        description="row_stationary: a PE convolves one row of a kernel with one row of the input; sums run up a "
        "column of PEs, input rows run along diagonals.",
    )
    bits: Bits = Field(16, ge=1, description="Bits of an operand, and of a sum where it is stored.")
    gate_zeros: bool = Field(
        False,
        description="Whether a zero input stops the multiplication, the read of its weight and the update of its sum.",
    )
    weight_words: PerCycle = Field(
        1, ge=1, description="Weights that enter the grid in one cycle; while they do, nothing is computed."
    )
    weight_buffer: Bytes | None = Field(
        None,
        description="Memory in which the weights of the next pass wait while this one is computed; without it they "
        "come when it is over.",
        examples=["8 KiB"],
    )
    double_buffered: bool = Field(
        True,
        description="Whether inputs come and finished sums leave while other passes are computed, where the buffer has "
        "room for both; otherwise the grid waits for them.",
    )
    drain_words: PerCycle = Field(
        4,
        ge=1,
        description="Finished sums that leave the buffer in one cycle, each through what is fused to the layer.",
    )
    accumulate: str | None = Field(
        None, description="Number format of a sum in an element; wide enough for all products if not given."
    )

    @property
    def count(self) -> int:
        """Processing elements."""
        return self.rows * self.columns


UNIT = GridSpec


def sums_have_a_known_format(machine: MachineSpec) -> Iterator[Finding]:
    for index, unit in enumerate(machine.compute):
        if isinstance(unit, GridSpec) and unit.accumulate is not None:
            yield from unknown_format(("compute", index, "accumulate"), unit.accumulate)


RULES = (sums_have_a_known_format,)
