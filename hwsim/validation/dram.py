"""`hwsim validate dram`: dependent reads of one channel of DDR4-3200, in patterns, against Ramulator 2.1.

What the controller takes is found on the pattern that opens no rows; how much longer the others take follows from the
timing of the chips. Ramulator's reads at random are a little faster than its conflicts, because some find their bank
closed after a refresh: rows that a refresh closes are not modelled.
"""

from __future__ import annotations

from pathlib import Path

from hwsim.api import resolve_machine, run_all
from hwsim.spec.dram_device import DEVICES
from hwsim.validation.report import Bar, ComparisonRow, Progress, each_row, report
from hwsim.validation.table import Record, number, read_table, tables

WHAT = "dependent reads of a channel of DDR4-3200, against Ramulator 2.1"
FITTED = "row hit"
"""The pattern on which the controller's share was found."""
STEPS = 20_000
LIMIT = 0.10
_COLUMNS = ("pattern", "bytes", "stride", "nanoseconds", "source")
_ONE_LINE: dict[str, object] = {
    f"{cache}.{field}": value for cache in ("l1", "l2") for field, value in (("size", "64 B"), ("ways", 1))
}
"""Caches that hold next to nothing, so that every read goes to memory."""


def validate(data: Path | None = None, count: int | None = None, seed: int = 0) -> Progress:
    """The number of rows to come, then each row as it is done, then the report."""
    (path,) = tables(data, "dram.csv", ())
    records = read_table(path, _COLUMNS)
    hits = [number(path, record, "nanoseconds") for record in records if record["pattern"] == FITTED]
    chips = DEVICES["ddr4_3200"]
    latency = (hits[0] if hits else chips.cl) + chips.trp + chips.trcd

    def compared(record: Record) -> ComparisonRow:
        simulated, expected = read_time(record, latency), number(path, record, "nanoseconds")
        words = f"{simulated:.1f} ns simulated, {expected:.1f} in Ramulator"
        return ComparisonRow.of(record["pattern"], "latency", simulated, expected, words)

    rows = yield from each_row([record for record in records if record["pattern"] != FITTED], compared)
    worst = max((row.error for row in rows), default=0.0)
    yield report("dram", WHAT, rows, [Bar.at_most("worst pattern", LIMIT, worst)])


def read_time(record: Record, latency: float) -> float:
    """Nanoseconds of one read of a pattern; ``latency`` is that of a row which has to be closed and opened."""
    memory: dict[str, object] = {
        "dram.device": "ddr4_3200",
        "dram.latency": f"{latency} ns",
        "dram.latency_of": "conflict",
    }
    machine = resolve_machine("course_cpu", _ONE_LINE | memory)
    parameters = {"bytes": record["bytes"], "stride": record["stride"], "steps": STEPS}
    return run_all(machine, "pointer_chase", parameters=parameters, math=False).result.time_s * 1e9 / STEPS
