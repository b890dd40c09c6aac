"""`hwsim validate gemmini`: layers on a Gemmini of 16 x 16 cells, against its RTL on an FPGA.

Each layer was run with a given loop nest, and with the tiling of Gemmini's own library. A nest is written level by
level, outermost first: ``L3[WIO] K8 - L2[WI] K16X - L1[O] C4 P8 C16X - L0[W] P16``; factors below L3 make the tile that
lies in the scratchpad, and those of L3 say in which order the tiles come. An X marks a factor along the cells.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from pathlib import Path
from statistics import mean

from hwsim.api import prepare, resolve_machine, resolve_workload, simulate
from hwsim.engine import FEMTOSECONDS, Outcome
from hwsim.errors import CapacityError
from hwsim.validation.report import Bar, ComparisonRow, Progress, report
from hwsim.validation.residual import Residual, is_held_out, purpose_of
from hwsim.validation.table import Record, integer, number, read_table, row_error, sample, tables

WHAT = "cycles of layers on gemmini16, against clocked RTL"

MACHINE = "gemmini16"
AXES = {"P": "m", "Q": "m", "N": "m", "K": "n", "C": "k", "R": "k", "S": "k"}
"""What an index of a layer is in the matrix product."""
LOOPS = {"P": "w", "Q": "h", "K": "co", "C": "ci", "R": "kw", "S": "kh"}
"""The loop of a convolution that an index is."""
INPUT_ROW, SUM_ROW = 16, 64
"""Bytes of a row of the scratchpad and of the accumulators."""
BUFFERS = 2
"""The table has the rows that a tile may take. There are twice as many: nests whose tiles fill all of the rows, such as
that of 128 x 768 x 3072 with 16,384, take no longer than the arithmetic, so the next tile comes meanwhile."""
AIM, SLOWER = 0.15, 0.05
"""Of the mean error of given nests; and by how much the mapper's choice may take longer than Gemmini's own."""
_FACTOR = re.compile(r"([PQNKCRS])(\d+)X?")
_LAYER = ("c", "k", "p", "q", "r", "s", "stride")
_COLUMNS = (*_LAYER, "scratchpad_rows", "accumulator_rows", "mapping", "rtl_cycles", "rtl_auto_cycles", "source")


def validate(data: Path | None = None, count: int | None = None, seed: int = 0) -> Progress:
    """The number of rows to come, then each row as it is done, then the report."""
    (path,) = tables(data, "gemmini.csv", ())
    held_out = [record for record in read_table(path, _COLUMNS) if is_held_out(MACHINE, _name(record))]
    records = sample(held_out, lambda record: record["r"], count, seed)
    yield len(records)
    rows: list[ComparisonRow] = []
    slower = left_out = 0
    for record in records:
        own = simulate_layer(path, record, {}).cycles
        slower += own > (1 + SLOWER) * number(path, record, "rtl_auto_cycles")
        try:
            played = simulate_layer(path, record, nest_choices(path, record))
        except CapacityError:  # the library keeps a halo of the input only once
            left_out += 1
            continue
        found, measured = played.cycles, number(path, record, "rtl_cycles")
        name, kind = _name(record), f"{record['r']} x {record['s']} windows"
        words = f"{found:,} cycles simulated, {measured:,.0f} in RTL"
        seconds = played.elapsed_fs / FEMTOSECONDS
        residual = Residual("array_products", MACHINE, seconds, seconds * measured / found, purpose_of(MACHINE, name))
        rows.append(ComparisonRow.of(name, kind, found, measured, words, residual))
        yield rows[-1]
    words = f"layers where the mapper's choice is more than {SLOWER:.0%} slower than Gemmini's own"
    best = Bar(words, "0", str(slower), slower == 0)
    notes = [_given(mean(row.error for row in rows))] if rows else []
    notes += [f"{left_out} nests need more scratchpad here than there: left out"] if left_out else []
    yield report("gemmini", WHAT, rows, [best], notes)


def _name(record: Record) -> str:
    return " ".join(f"{field}={record[field]}" for field in _LAYER)


def _given(error: float) -> str:
    return f"given nests: mean error {error:.0%}, where {AIM:.0%} is the aim: {'reached' if error <= AIM else 'missed'}"


def nest_choices(path: Path, record: Record) -> dict[str, object]:
    """The tile of the scratchpad and the order of tiles that a nest says."""
    levels = [part.split("]", 1)[-1] for part in record["mapping"].split(" - ")]
    if len(levels) != 4:
        raise row_error(path, record, "mapping", "a nest has four levels, L3 to L0, with ' - ' between them")
    factors = [[(axis, int(count)) for axis, count in _FACTOR.findall(level)] for level in levels]
    tile = {axis: prod([n for level in factors[1:] for name, n in level if name == axis]) for axis in AXES}
    outer = [AXES[axis] for axis, count in factors[0] if count > 1]
    said: dict[str, object] = {"mapping.order": "".join(dict.fromkeys([*outer, *"mnk"]))}
    if is_product(path, record):
        sizes = {name: prod(n for axis, n in tile.items() if AXES[axis] == name) for name in "mnk"}
        return said | {f"mapping.tile_{name}": size for name, size in sizes.items()}
    said["mapping.reuse"] = "none"  # the library's convolution loads every tile anew, its product does not
    return said | {"mapping.box": {LOOPS[axis]: size for axis, size in tile.items() if axis in LOOPS}}


def is_product(path: Path, record: Record) -> bool:
    """A layer of 1 x 1 windows, each of which is used, is a matrix product."""
    return all(integer(path, record, name) == 1 for name in ("q", "r", "s", "stride"))


def simulate_layer(path: Path, record: Record, choices: dict[str, object]) -> Outcome:
    """A layer as `hwsim run` plays it, but that sums leave in 8 bits, as Gemmini scales them on the way out; 1 x 1
    windows are a matrix product."""
    c, k, p, q, r, s, stride = (integer(path, record, name) for name in _LAYER)
    sizes = {
        "scratchpad.size": f"{BUFFERS * integer(path, record, 'scratchpad_rows') * INPUT_ROW} B",
        "accumulator.size": f"{BUFFERS * integer(path, record, 'accumulator_rows') * SUM_ROW} B",
    }
    shape: dict[str, object]
    if is_product(path, record):
        layer, shape = "matmul", {"m": p * q, "n": k, "k": c, "packed": False}
    else:
        layer = "conv2d"
        shape = {"ci": c, "co": k, "height": (q - 1) * stride + s, "width": (p - 1) * stride + r, "kernel": r}
        shape |= {"stride": stride, "padding": 0, "layout": "nhwc", "w_layout": "hwio"}
    machine = resolve_machine(MACHINE, sizes)
    task = resolve_workload(layer, {"precision": "int8", **shape, **choices})
    kernel = prepare(machine, task, math=False)
    result = "C" if layer == "matmul" else "y"
    kernel.tensors[result] = replace(kernel.tensors[result], element_bits=8)
    return simulate(machine, kernel, task)
