"""What the first screen shows for a run on an array: how well it was used, its traffic, its tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hwsim.cli.table import make_table
from hwsim.results.text import data, digits, percent

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from hwsim.results.result import RunResult


_MOST_NAMES = 3
"""Tensors that the table lists for a level."""


def array_words(unit: dict[str, Any]) -> str:
    """``1 array of 256 x 256, ws, pipelined``."""
    if unit["kind"] == "grid":
        return f"{unit['rows']} x {unit['columns']} elements, {unit['dataflow'].replace('_', ' ')}"
    count = "1 array" if unit["count"] == 1 else f"{unit['count']} arrays"
    return f"{count} of {unit['rows']} x {unit['columns']}, {unit['dataflow']}, {unit['folding']}"


def without_loops(workload: dict[str, Any]) -> dict[str, Any]:
    """A workload without the loop order and register tiles of a matrix product, which an array does not read."""
    return {**workload, "schedule": {}} if workload["op"] == "matmul" else workload


def print_utilisation(console: Console, result: RunResult, indent: str) -> None:
    """Where the peak was lost, and the tiles."""
    from hwsim.results.array_words import utilisation

    used = utilisation(result)
    if used.total:
        shares = f"mapping {percent(used.mapping, 1)} × not filling or draining {percent(used.streaming, 1)}"
        console.print(
            f"{indent}utilisation {percent(used.total, 1)} = {shares} × not stalled {percent(used.running, 1)}"
        )
    passes = result.work["array"]["passes"]
    for each in passes[:1]:
        tile = " x ".join(f"{name} {size}" for name, size in each["tile"].items())
        more = f", and {len(passes) - 1} more passes" if len(passes) > 1 else ""
        console.print(
            f"{indent}{each['name']}: {each['tiles']:,} tiles of {tile}, order {each['order']}{more}", style="dim"
        )


def array_level_table(result: RunResult) -> Table:
    """Traffic on the array's side and on the other one, level by level."""
    from hwsim.hardware.counters import ScratchpadCounters

    table = make_table("level", "to and from the array", "moved in", "moved out", "holds", "op per byte")
    homes: dict[str, str] = result.work["array"]["levels"]
    for name, counts in result.memory.items():
        here = _few([tensor for tensor, level in homes.items() if level == name])
        per_byte = result.intensity["levels"][name]
        ops = "" if per_byte is None else digits(per_byte)
        if isinstance(counts, ScratchpadCounters):
            near = data(counts.bytes_read + counts.bytes_written)
            table.add_row(name, near, data(counts.bytes_filled), data(counts.bytes_drained), here, ops)
        else:
            table.add_row(name, "", data(counts.bytes_written), data(counts.bytes_read), here, ops)
    return table


def _few(names: list[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - _MOST_NAMES
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:_MOST_NAMES])} and {more} more"
