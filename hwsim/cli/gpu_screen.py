"""What the first screen shows for a run on a GPU: its launches, how they fill it, and its traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hwsim.cli.table import make_table
from hwsim.results.text import data, digits, percent, seconds

if TYPE_CHECKING:
    from rich.table import Table

    from hwsim.results.result import RunResult

MOST_LAUNCHES = 12


def gpu_words(unit: dict[str, Any]) -> str:
    """``108 SMs``."""
    return f"{unit['count']} {unit['name']}"


def launch_table(result: RunResult) -> Table:
    """Kernels in the order in which they are started."""
    launches = result.work["gpu"]["launches"]
    table = make_table("kernel", "time", "blocks", "waves", "warps per SM", "limited by", "bound by", left=(0, 5, 6))
    for launch in launches[:MOST_LAUNCHES]:
        warps = f"{launch['warps']} of {launch['most_warps']}" if "warps" in launch else ""
        table.add_row(
            launch["name"],
            seconds(launch["seconds"]),
            f"{launch['blocks']:,}",
            digits(launch["waves"]),
            warps,
            launch.get("limit", ""),
            launch["bound"],
        )
    rest = launches[MOST_LAUNCHES:]
    if rest:
        table.add_row(f"{len(rest)} more", seconds(sum(launch["seconds"] for launch in rest)))
    return table


def gpu_level_table(result: RunResult) -> Table:
    """What went through the L2 and what came from DRAM."""
    table = make_table("level", "bytes to and from", "found there", "op per byte")
    for name, counts in result.memory.items():
        moved = counts.bytes_read + counts.bytes_written
        per_byte = result.intensity["levels"][name]
        reads, misses = counts.reads, getattr(counts, "read_misses", None)
        hits = percent(reads - misses, reads) if misses is not None and reads else ""
        table.add_row(name, data(moved), hits, "" if per_byte is None else digits(per_byte))
    return table


def program_words(result: RunResult) -> str:
    """What only a hand-written kernel has; nothing for a library's."""
    launch = result.work["gpu"]["launches"][0]
    if "sectors_per_request" not in launch:
        return ""
    how = (
        ""
        if launch["walked"] == 1
        else f"; {percent(launch['walked'], 1)} of its steps were walked, the rest are alike"
    )
    return (
        f"{digits(launch['sectors_per_request'])} sectors for each load of a warp, "
        f"{percent(launch['bank_conflicts'], 1)} of the passes through shared memory are bank conflicts, "
        f"{percent(launch['l1_hit_rate'], 1)} of the sectors are found in the L1 and "
        f"{percent(launch['l2_hit_rate'], 1)} of the others in the L2{how}"
    )
