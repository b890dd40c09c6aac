"""A grid of small processors with memories of their own, as a machine file describes it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hwsim.spec.base import Name, Sourced


class GridSpec(Sourced):
    """Rows x columns of processing elements (PEs), each with a multiplier and scratchpads for its operands."""

    kind: Literal["grid"]
    name: Name = Field(description="How paths and counters call one processing element.", examples=["pe"])
    clock: Name | None = Field(None, description="Clock domain; the machine's first clock if not given.")
    rows: int = Field(ge=1, description="Rows of processing elements.")
    columns: int = Field(ge=1, description="Columns of processing elements.")
    dataflow: Literal["row_stationary"] = Field(
        "row_stationary",
        description="row_stationary: a PE convolves one row of a kernel with one row of the input; sums run up a "
        "column of PEs, input rows run along diagonals.",
    )
    bits: int = Field(16, ge=1, description="Bits of an operand, and of a sum where it is stored.")
    gate_zeros: bool = Field(
        False,
        description="Whether a zero input stops the multiplication, the read of its weight and the update of its sum.",
    )
    weight_words: int = Field(
        1, ge=1, description="Weights that enter the grid in one cycle; while they do, nothing is computed."
    )

    @property
    def count(self) -> int:
        """Processing elements."""
        return self.rows * self.columns
