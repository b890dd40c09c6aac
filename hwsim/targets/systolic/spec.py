"""A systolic array as a machine file describes it: cells, vector unit, what fills its scratchpads; and its rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from hwsim.spec.base import BandwidthField, Bytes, Cycles, LatencyField, Name, PerCycle, Rate, Side, Spec, Units
from hwsim.spec.fields import Finding, did_you_mean, unknown_formats
from hwsim.spec.machine import CacheSpec, DramSpec, MachineSpec, ScratchpadSpec, UnitSpec

Dataflow = Literal["ws", "os", "is"]
Folding = Literal["serial", "pipelined"]
OPERANDS = ("input", "weight", "output")


class ArrayFormatSpec(Spec):
    """What the cells do in one number format."""

    rate: Rate = Field(description="Multiply-accumulates that a cell does in one cycle.", examples=[1])
    accumulate: str = Field(description="Number format that sums are kept in.", examples=["int32"])
    stands_for: str | None = Field(
        None,
        description="What the machine computes in truth, where it has no such format and this one takes its place.",
        examples=["16-bit integers"],
    )


class VectorUnitSpec(Spec):
    """The unit beside the array that does what the array cannot: bias, activation, pooling, softmax."""

    lanes: PerCycle = Field(ge=1, description="Elements that it takes in one cycle.", examples=[256])
    special: Cycles = Field(
        4, ge=1, description="Cycles of a lane for a division, square root or exponential; others take one."
    )


class DmaSpec(Spec):
    """What moves tiles between main memory and the scratchpads."""

    engines: Units = Field(1, description="Transfers that can be under way at once.")
    setup: LatencyField | None = Field(None, description="Time from a request to its first byte; none if not given.")
    bandwidth: BandwidthField | None = Field(None, description="What one engine moves; no limit if not given.")
    request: Bytes | None = Field(
        None,
        description="Bytes side by side that one request brings; fewer take an engine as long. Requests are not "
        "counted if not given.",
    )
    translation: LatencyField | None = Field(
        None,
        description="Time of an engine that loads for the address of each page of 4 KiB that it comes to; with "
        "`bandwidth` and `request` alone.",
    )
    writers: Units | None = Field(
        None,
        description="Engines that only store, beside those that load. A store waits for no answer, so `bandwidth` does "
        "not limit it. The same engines do both if not given.",
    )
    writing: BandwidthField | None = Field(
        None,
        description="What one of `writers` moves, in requests as full as rows of the array's results make them; no "
        "limit if not given.",
    )


class CommandSpec(Spec):
    """What it takes to issue a command. One streams rows that lie side by side, at most as many as the array has."""

    base: Cycles = Field(description="Cycles of a command, whatever it streams.", examples=[7])
    row: Rate = Field(
        description="Cycles for each of its rows besides; a command that streams for longer takes as long as that.",
        examples=[0.33],
    )


class SystolicSpec(UnitSpec):
    """Rows x columns of multiply-accumulate cells, each of which hands its operands on to its neighbours."""

    kind: Literal["systolic"]
    name: Name = Field(description="How paths and counters call the array.", examples=["array"])
    count: Units = Field(1, description="Number of arrays; those that share scratchpads work on one tile together.")
    clock: Name | None = Field(None, description="Clock domain; the machine's first clock if not given.")
    rows: Side = Field(description="Rows of cells: the depth of a sum, where weights or inputs stay.")
    columns: Side = Field(description="Columns of cells.")
    dataflow: Dataflow = Field(
        "ws", description="Which operand stays in the cells: ws the weights, os the outputs, is the inputs."
    )
    dataflows: tuple[Dataflow, ...] = Field(
        (), description="Dataflows that the array can be set to for a run; none but `dataflow` if not given."
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
    command: CommandSpec | None = Field(
        None,
        description="What a command takes that streams few rows, where weights stay; commands are not counted if not "
        "given.",
    )
    gathers: bool = Field(
        True,
        description="Whether channels of several positions of a window can share the rows of a fold, where weights "
        "stay; otherwise each position is a fold of its own, and what a window skips comes along.",
    )
    vector: VectorUnitSpec = Field(description="The unit for what the array cannot do.")
    dma: DmaSpec = Field(DmaSpec(), description="What fills and empties the scratchpads.")
    activations: Name | None = Field(
        None,
        description="Level that inputs come from and outputs go to, as long as they fit there: a scratchpad in "
        "which layers follow each other; main memory if not given.",
    )
    handover: LatencyField | None = Field(
        None,
        description="Time from the last result of a layer to the first value of one that reads it on the chip; no time "
        "if not given.",
    )
    host: BandwidthField | None = Field(
        None,
        description="What inputs that stay on the chip come with from the host before a run, and results leave with "
        "after it; without it they lie there already.",
    )


UNIT = SystolicSpec


def an_array_has_scratchpads(machine: MachineSpec) -> Iterator[Finding]:
    """Each operand needs a place next to the array, and nothing loads through caches."""
    if not _arrays(machine):
        return
    for operand in OPERANDS:
        if not any(isinstance(level, ScratchpadSpec) and operand in level.holds for level in machine.memory):
            message = f"no scratchpad holds '{operand}', which a systolic array takes from or leaves in one"
            yield Finding(("memory",), message)
    for index, level in enumerate(machine.memory):
        if isinstance(level, CacheSpec):
            message = "a systolic array has scratchpads, not caches; make this a level of kind scratchpad"
            yield Finding(("memory", index, "kind"), message)


def arrays_share_all_their_scratchpads(machine: MachineSpec) -> Iterator[Finding]:
    """Several arrays work on one tile together."""
    for _, unit in _arrays(machine):
        for index, level in enumerate(machine.memory):
            if unit.count > 1 and isinstance(level, ScratchpadSpec) and level.shared_by not in ("all", unit.count):
                message = f"{unit.count} arrays work on one tile together: write 'all', found {level.shared_by}"
                yield Finding(("memory", index, "shared_by"), message)


def activations_name_a_level(machine: MachineSpec) -> Iterator[Finding]:
    homes = [
        level.name
        for level in machine.memory
        if isinstance(level, DramSpec)
        or (isinstance(level, ScratchpadSpec) and {"input", "output"} <= set(level.holds))
    ]
    for index, unit in _arrays(machine):
        if unit.activations is not None and unit.activations not in homes:
            message = f"'{unit.activations}' is no level that holds inputs and outputs: {', '.join(homes)}"
            yield Finding(("compute", index, "activations"), message + did_you_mean(unit.activations, homes))


def array_formats_are_known(machine: MachineSpec) -> Iterator[Finding]:
    for index, unit in _arrays(machine):
        for name, fmt in unit.formats.items():
            yield from unknown_formats(("compute", index, "formats", name), name, fmt.accumulate)


def _arrays(machine: MachineSpec) -> list[tuple[int, SystolicSpec]]:
    return [(index, unit) for index, unit in enumerate(machine.compute) if isinstance(unit, SystolicSpec)]


RULES = (
    an_array_has_scratchpads,
    arrays_share_all_their_scratchpads,
    activations_name_a_level,
    array_formats_are_known,
)
