"""`hwsim validate systolic`: folds of a systolic array against SCALE-Sim 3.0.0, exactly; its DRAM beside ours.

Cycles, reads and writes of the scratchpads and the mapping efficiency have to be equal in every row, given how
SCALE-Sim counts: its cycles are the index of the last one, and outputs that stay carry (rows + columns) writes too many
for each fold. DRAM traffic and stalls come from another buffer model there, and are printed as ratios.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import cast, get_args

from hwsim.api import simulate
from hwsim.catalog import load_machine
from hwsim.engine import Outcome
from hwsim.program.contraction import GemmShape, footprint
from hwsim.program.kernel import Kernel
from hwsim.program.loop_kernel import LoopKernel, build_kernel
from hwsim.spec.machine import MachineSpec
from hwsim.spec.workload import WorkloadSpec
from hwsim.targets.systolic.model import SystolicArray
from hwsim.targets.systolic.spec import Dataflow
from hwsim.targets.systolic.why import array_use
from hwsim.validation.report import Bar, ComparisonRow, Progress, relative_error, report
from hwsim.validation.table import LINE, Record, integer, number, one_of, read_table, row_error, sample, tables

WHAT = "cycles, scratchpad reads and writes and mapping efficiency of folds, against SCALE-Sim 3.0.0"

_SHAPE = ("M", "N", "K", "rows", "cols")
_CONV = ("ifmap_h", "ifmap_w", "filt_h", "filt_w", "channels", "num_filters", "stride")
_BUFFERS = ("ifmap_kb", "filter_kb", "ofmap_kb")
_COUNTS = ("total_cycles", "stall_cycles", "sram_ifmap_reads", "sram_filter_reads", "sram_ofmap_writes")
_DRAM = ("dram_ifmap_reads", "dram_filter_reads", "dram_ofmap_writes")
_COLUMNS = (
    "net", "layer", "kind", "dataflow", "mode", *_SHAPE, *_CONV, *_BUFFERS, *_COUNTS, *_DRAM,
    "mapping_eff_pct", "bw_ifmap", "bw_filter", "bw_ofmap",
)  # fmt: skip
CLOSE = 1e-9
"""Percentages are printed by SCALE-Sim as floating-point numbers."""


@dataclass(frozen=True)
class Beside:
    """What is not expected to be equal: bytes of each operand from main memory, and stalls."""

    ours: tuple[int, int, int]
    theirs: tuple[int, int, int]
    stalls: int
    their_stalls: int
    cycles: int
    limited: bool
    within: bool
    """Whether our traffic and time keep the bounds that hold for any schedule."""


def validate(data: Path | None = None, count: int | None = None, seed: int = 0) -> Progress:
    """The number of rows to come, then each row as it is done, then the report."""
    (path,) = tables(data, "systolic.csv", ())
    records = sample(read_table(path, _COLUMNS), lambda record: record["dataflow"], count, seed)
    yield len(records)
    rows, beside = [], []
    for record in records:
        row, other = _compare(path, record)
        rows.append(row)
        beside.append(other)
        yield row
    matched = sum(row.matched for row in rows)
    kept = sum(other.within for other in beside)
    bars = [
        Bar.every("cycles, reads, writes, mapping", matched, len(rows)),
        Bar.every("traffic and time within their bounds", kept, len(rows)),
    ]
    yield report("systolic", WHAT, rows, bars, _notes(beside))


def _compare(path: Path, record: Record) -> tuple[ComparisonRow, Beside]:
    array, shape = _array(path, record), _shape(path, record)
    expected = _expected(path, record, array, shape)
    found = array.occupy(shape)
    ours = {
        "compute cycles": float(found.cycles),
        "ifmap reads": float(found.input_reads),
        "filter reads": float(found.weight_reads),
        "ofmap writes": float(found.output_writes),
        "mapping efficiency": float(100 * found.mapping_efficiency),
    }
    errors = {name: relative_error(ours[name], theirs) for name, theirs in expected.items()}
    errors["mapping efficiency"] *= errors["mapping efficiency"] > CLOSE
    off = max(errors, key=lambda name: errors[name])
    detail = f"{off}: {ours[off]:g} here, {expected[off]:g} there" if errors[off] else ""
    name = f"{record['net']} {record['layer']} {array.rows}x{array.columns} {record['mode']}"
    return ComparisonRow(f"{name} line {record[LINE]}", record["dataflow"], errors[off], detail), _beside(path, record)


def _expected(path: Path, record: Record, array: SystolicArray, shape: GemmShape) -> dict[str, float]:
    cycles, stalls, inputs, weights, outputs = (integer(path, record, name) for name in _COUNTS)
    if array.dataflow == "os":
        rows, columns = array.fold_counts(shape)
        outputs -= rows * columns * (array.rows + array.columns)
    return {
        "compute cycles": cycles - stalls + 1,
        "ifmap reads": inputs,
        "filter reads": weights,
        "ofmap writes": outputs,
        "mapping efficiency": number(path, record, "mapping_eff_pct"),
    }


def _array(path: Path, record: Record) -> SystolicArray:
    dataflow = cast(Dataflow, one_of(path, record, "dataflow", get_args(Dataflow)))
    return SystolicArray(_positive(path, record, "rows"), _positive(path, record, "cols"), dataflow, "serial")


def _shape(path: Path, record: Record) -> GemmShape:
    return GemmShape(*(_positive(path, record, name) for name in ("M", "N", "K")))


def _positive(path: Path, record: Record, column: str) -> int:
    found = integer(path, record, column)
    if found < 1:
        raise row_error(path, record, column, f"{found} must be at least 1")
    return found


# DRAM and stalls ----------------------------------------------------------------------------------------------------


def _beside(path: Path, record: Record) -> Beside:
    """The whole model on the same array, buffers and bandwidth."""
    limited = record["mode"] == "USER"
    machine = _machine(_settings(path, record, limited))
    kernel = _kernel(path, record)
    outcome = simulate(machine, kernel)
    names = list(kernel.tensors)
    moved = outcome.tensors
    ours = (moved[names[0]].loads, moved[names[1]].loads, moved[names[2]].stores)
    theirs = tuple(integer(path, record, name) for name in _DRAM)
    return Beside(
        ours,
        (theirs[0], theirs[1], theirs[2]),
        array_use(outcome)["stall_cycles"],
        integer(path, record, "stall_cycles"),
        outcome.cycles,
        limited,
        _within(outcome, kernel, machine),
    )


def _within(outcome: Outcome, kernel: Kernel, machine: MachineSpec) -> bool:
    """Everything comes at least once; nothing is faster than arithmetic or than bytes over bandwidth."""
    used = array_use(outcome)
    least = compulsory_bytes(kernel)
    moved = outcome.dram.bytes_read + outcome.dram.bytes_written
    level = machine.dram
    rate = None if level.bandwidth is None else level.bandwidth.bytes_per_cycle(outcome.clock_hz)
    enough = rate is None or outcome.cycles * rate >= moved
    return moved >= least and enough and outcome.cycles >= used["streaming_cycles"]


def compulsory_bytes(kernel: Kernel) -> int:
    """Each element that the one loop of a kernel touches, once."""
    assert isinstance(kernel, LoopKernel)
    (loop,) = kernel.loops
    assert loop.operation.output is not None
    operands = (*loop.operation.inputs, loop.operation.output)
    return sum(footprint(each, loop.extents, kernel.tensors[each.tensor].element_bits) for each in operands)


def _settings(path: Path, record: Record, limited: bool) -> tuple[str, ...]:
    rates = [number(path, record, f"bw_{name}") for name in ("ifmap", "filter", "ofmap")]
    sizes = [_positive(path, record, name) for name in _BUFFERS]
    return (
        f"array.rows={record['rows']}",
        f"array.columns={record['cols']}",
        f"array.dataflow={record['dataflow']}",
        *(f"{name}.size={size} KiB" for name, size in zip(("ifmap", "filter", "ofmap"), sizes, strict=True)),
        f"dram.bandwidth={f'{sum(rates):g} B/cycle' if limited else 'inf'}",
    )


@lru_cache(maxsize=64)
def _machine(settings: tuple[str, ...]) -> MachineSpec:
    return load_machine("scalesim_32", settings).spec


def _kernel(path: Path, record: Record) -> Kernel:
    """A product, or a convolution whose windows overlap."""
    if record["kind"] != "conv":
        formula = "C[i,j] += A[i,k] * B[k,j]"
        sizes = {index: _positive(path, record, name) for index, name in (("i", "M"), ("j", "N"), ("k", "K"))}
    else:
        height, width, rows, columns, channels, filters, stride = (_positive(path, record, name) for name in _CONV)
        step = "" if stride == 1 else f"{stride}*"
        formula = f"O[y,x,f] += I[{step}y+r,{step}x+s,c] * W[r,s,c,f]"
        high, wide = (-(-(size - side + stride) // stride) for size, side in ((height, rows), (width, columns)))
        sizes = {"y": high, "x": wide, "f": filters, "r": rows, "s": columns, "c": channels}
    fields = {"format": 1, "name": "layer", "description": "A layer of the table.", "op": "formula"}
    return build_kernel(
        WorkloadSpec.model_validate({**fields, "formula": formula, "sizes": sizes, "precision": "int8"}), math=False
    )


def _notes(rows: list[Beside]) -> list[str]:
    """Ratios, ours over theirs."""
    notes = []
    for operand, name in enumerate(("ifmap reads", "filter reads", "ofmap writes")):
        ratios = sorted(row.ours[operand] / row.theirs[operand] for row in rows if row.theirs[operand])
        if ratios:
            notes.append(
                f"beside: DRAM {name}, hwsim / SCALE-Sim: median {median(ratios):.2f}, "
                f"from {ratios[0]:.2f} to {ratios[-1]:.2f}"
            )
    free = [row for row in rows if not row.limited]
    if free:
        quiet = sum(row.stalls == 0 for row in free)
        theirs = sum(row.their_stalls == 0 for row in free)
        notes.append(
            f"beside: without a bandwidth limit {quiet} of {len(free)} rows have no stall (SCALE-Sim {theirs})"
        )
    tight = [row for row in rows if row.limited]
    if tight:
        ours = median(row.stalls / row.cycles for row in tight)
        theirs_share = median(row.their_stalls / (row.cycles - row.stalls + row.their_stalls) for row in tight)
        notes.append(
            f"beside: with one, stalls are {ours:.1%} of the time (median of {len(tight)} rows; "
            f"SCALE-Sim {theirs_share:.1%}, which counts some of them twice)"
        )
    return notes
