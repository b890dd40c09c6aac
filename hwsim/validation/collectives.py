"""`hwsim validate collectives`: collectives of several devices against measured ones.

The constants of the system files were fitted on one half of the measured rows; only rows of the other half are
reported, whatever table is given.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hwsim.systems.bars import COLLECTIVE
from hwsim.systems.communicate import communicate
from hwsim.systems.spec import SystemSpec, load_system
from hwsim.validation.report import Bar, ComparisonRow, Progress, each_row, report
from hwsim.validation.residual import FIT, Purpose, Residual, purpose_of
from hwsim.validation.table import (
    LINE,
    Record,
    integer,
    number,
    one_of,
    read_table,
    row_error,
    sample,
    table_error,
    tables,
)

FORMAT_BYTES = {"half": 2, "bfloat16": 2, "int8": 1}
OPERATIONS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}
LIBRARIES = {
    "NCCL": "nccl",
    "oneCCL": "oneccl",
    "TRTLLM": "trtllm",
    "SGLang_CustomAllReduce_graph": "sglang",
    "SGLang_CustomAllReduce_eager": "sglang_eager",
    "vLLM_custom_graph": "vllm",
    "vLLM_custom_eager": "vllm_eager",
}
"""What the table calls a library, and what the system files do."""


def whole(library: str, op: str, devices: int) -> int:
    """How many times the counted elements the whole buffer is: oneCCL counts what one device gives to an all-gather."""
    return devices if library == "oneccl" and op == "all_gather" else 1


SYSTEMS = {
    "a100_80": "dgx_a100", "h100": "dgx_h100", "h200": "dgx_h200", "b200": "b200_8", "b300": "b300_8",
    "gb200": "gb200_4", "gb300": "gb300_4", "l40s": "l40s_8", "rtx_pro_6000": "rtx_pro_6000_8", "b60": "arc_b60_8",
}  # fmt: skip
"""The system that each machine of the table was measured in."""

POOL, POOL_ROWS = "collectives/measured.csv", 200
"""A larger table in a folder that is given with --data, and how many of its rows on each machine are enough."""
WHAT = "collectives of 2, 4 and 8 devices, played on links, against measured times; rows that nothing was fitted on"
BAR = 0.15
NO_BAR = {
    "l40s": "what passes its host bridges is slower than the ring of any library explains, and differs between "
    "libraries; a bus whose bandwidth falls with the number of devices brought it from 51 % to what it is, a ring of "
    "its own for each framework brought nothing"
}
"""Systems without a bar, and why."""
COLUMNS = ("machine", "library", "op", "dtype", "devices", "elements", "latency_us")


@dataclass(frozen=True)
class CollectiveRow:
    """One row of the table."""

    machine: str
    library: str
    op: str
    form: str
    devices: int
    elements: int
    seconds: float

    @property
    def purpose(self) -> Purpose:
        """What rows of this shape are for: constants of system files have seen those that are fitted on."""
        names = {name: theirs for theirs, name in OPERATIONS.items()}
        return purpose_of(names[self.op], self.form, self.devices, self.elements)

    @property
    def nbytes(self) -> int:
        return self.elements * FORMAT_BYTES[self.form] * whole(self.library, self.op, self.devices)


def validate(data: Path | None = None, count: int | None = None, seed: int = 0) -> Progress:
    """The number of rows to come, then each row as it is done, then the report."""
    (path,) = tables(data, "collectives.csv", (POOL,))
    found = read_table(path, COLUMNS)
    if data is not None and data.is_dir():
        found = [each for each in found if each["machine"] in SYSTEMS and each["library"] in LIBRARIES]
        count = POOL_ROWS if count is None else count
    records = [(record, _measured(path, record)) for record in found]
    held = [record for record, row in records if row.purpose != FIT]
    if not held:
        raise table_error(path, 1, "", "no row of this table is held out: all of its shapes were fitted on")
    chosen = sample(held, lambda record: record["machine"], count, seed)
    systems: dict[str, SystemSpec] = {}

    def compared(record: Record) -> ComparisonRow:
        row = _measured(path, record)
        system = systems.setdefault(row.machine, load_system(SYSTEMS[row.machine]))
        return compare(system, row, record[LINE])

    rows = yield from each_row(chosen, compared)
    groups = report("collectives", WHAT, rows).groups
    judged = {name: found for name, found in groups.items() if name not in NO_BAR}
    bars = [Bar.at_most(f"{name}: mean error", BAR, found.mape) for name, found in judged.items()]
    notes = [f"{name}: no bar, {groups[name].mape:.1%}: {why}" for name, why in NO_BAR.items() if name in groups]
    if skipped := len(records) - len(held):
        notes.append(f"{skipped} rows of the table have shapes that constants were fitted on, and are left out")
    yield report("collectives", WHAT, rows, bars, notes)


def compare(system: SystemSpec, row: CollectiveRow, line: str) -> ComparisonRow:
    """A row against the same call that `hwsim collective` makes."""
    form = "int8" if row.form == "int8" else "bf16"
    found = communicate(system, row.op, row.nbytes, devices=row.devices, library=row.library, form=form)
    name = f"line {line}: {row.library} {row.op} of {row.nbytes} B on {row.devices}"
    words = f"{found.seconds * 1e6:.1f} µs simulated ({found.kernel}), {row.seconds * 1e6:.1f} measured"
    residual = Residual(COLLECTIVE, system.machine, found.seconds, row.seconds, row.purpose)
    return ComparisonRow.of(name, row.machine, found.seconds, row.seconds, words, residual)


def _measured(path: Path, record: Record) -> CollectiveRow:
    for column, known in (("machine", SYSTEMS), ("library", LIBRARIES), ("op", OPERATIONS), ("dtype", FORMAT_BYTES)):
        one_of(path, record, column, known)
    devices, elements = integer(path, record, "devices"), integer(path, record, "elements")
    latency = number(path, record, "latency_us")
    if devices not in (2, 4, 8) or elements < 1 or latency <= 0:
        raise row_error(path, record, "", "devices are 2, 4 or 8, and elements and latency_us more than 0")
    op, library = OPERATIONS[record["op"]], LIBRARIES[record["library"]]
    return CollectiveRow(record["machine"], library, op, record["dtype"], devices, elements, latency * 1e-6)
