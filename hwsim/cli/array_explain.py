"""What `hwsim explain` adds for a run on an array: how its cells were used, its tiles, and who moved what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwsim.cli.table import make_table
from hwsim.results.text import bar, percent

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from hwsim.results.result import RunResult

_MOST_PASSES = 24


def print_use(console: Console, result: RunResult) -> None:
    """The factors between the peak and what was reached."""
    from hwsim.results.array_words import utilisation

    used = utilisation(result)
    table = make_table("share of the peak", "", "", left=(0, 2))
    rows = (
        ("cells in use while values stream (mapping)", used.mapping),
        ("streaming, not filling or draining", used.streaming),
        ("at it, not stalled by data or the vector unit", used.running),
        ("all together", used.total),
    )
    for name, share in rows:
        table.add_row(name, percent(share, 1), bar(share, 24))
    console.print(table)


def pass_table(result: RunResult) -> Table:
    """Each loop: which unit did it, in which tiles, in which order."""
    table = make_table("loop", "unit", "tiles", "of", "order", left=(0, 1, 3, 4))
    passes = result.work["array"]["passes"]
    for each in passes[:_MOST_PASSES]:
        tile = " x ".join(f"{name} {size}" for name, size in each["tile"].items())
        table.add_row(each["name"], each["unit"], f"{each['tiles']:,}", tile, each["order"])
    if len(passes) > _MOST_PASSES:
        table.add_row(f"and {len(passes) - _MOST_PASSES} more", "", "", "", "")
    return table


def traffic_table(result: RunResult) -> Table:
    """Elements of each tensor that went to and from main memory, and how often each of its own did."""
    table = make_table("tensor", "elements", "loaded", "stored", "times", "lies in", left=(0, 5))
    for name, facts in result.tensors.items():
        moved = facts["loads"] + facts["stores"]
        often = f"{moved / facts['elements']:.2f}" if facts["elements"] else ""
        where = result.work["array"]["levels"].get(name, "")
        table.add_row(name, f"{facts['elements']:,}", f"{facts['loads']:,}", f"{facts['stores']:,}", often, where)
    return table
