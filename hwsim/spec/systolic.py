"""A systolic array as a machine file describes it: its cells, its vector unit, and what fills its scratchpads."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hwsim.spec.base import Name, Sourced, Spec
from hwsim.units import BandwidthField, LatencyField

Dataflow = Literal["ws", "os", "is"]
Folding = Literal["serial", "pipelined"]


class ArrayFormatSpec(Spec):
    """What the cells do in one number format."""

    rate: float = Field(gt=0, description="Multiply-accumulates that a cell does in one cycle.", examples=[1])
    accumulate: str = Field(description="Number format that sums are kept in.", examples=["int32"])


class VectorUnitSpec(Spec):
    """The unit beside the array that does what the array cannot: bias, activation, pooling, softmax."""

    lanes: int = Field(ge=1, description="Elements that it takes in one cycle.", examples=[256])
    special: int = Field(
        4, ge=1, description="Cycles of a lane for a division, square root or exponential; others take one."
    )


class DmaSpec(Spec):
    """What moves tiles between main memory and the scratchpads."""

    engines: int = Field(1, ge=1, description="Transfers that can be under way at once.")
    setup: LatencyField | None = Field(None, description="Time from a request to its first byte; none if not given.")
    bandwidth: BandwidthField | None = Field(None, description="What one engine moves; no limit if not given.")


class SystolicSpec(Sourced):
    """Rows x columns of multiply-accumulate cells, each of which hands its operands on to its neighbours."""

    kind: Literal["systolic"]
    name: Name = Field(description="How paths and counters call the array.", examples=["array"])
    count: int = Field(1, ge=1, description="Number of arrays; those that share scratchpads work on one tile together.")
    clock: Name | None = Field(None, description="Clock domain; the machine's first clock if not given.")
    rows: int = Field(ge=1, description="Rows of cells: the depth of a sum, where weights or inputs stay.")
    columns: int = Field(ge=1, description="Columns of cells.")
    dataflow: Dataflow = Field(
        "ws", description="Which operand stays in the cells: ws the weights, os the outputs, is the inputs."
    )
    folding: Folding = Field(
        "pipelined",
        description="pipelined: the next stationary tile is loaded while this one streams; serial: each fold fills, "
        "streams and drains by itself.",
    )
    formats: dict[str, ArrayFormatSpec] = Field(
        min_length=1, description="Number formats of the operands; the first is used where a workload names none."
    )
    whole_tiles: bool = Field(
        False, description="Whether a tile of weights that does not fill the array is stored and loaded padded to it."
    )
    vector: VectorUnitSpec = Field(description="The unit for what the array cannot do.")
    dma: DmaSpec = Field(DmaSpec(), description="What fills and empties the scratchpads.")
    activations: Name | None = Field(
        None,
        description="Level that inputs come from and outputs go to, as long as they fit there: a scratchpad in "
        "which layers follow each other; main memory if not given.",
    )
