"""What `hwsim replay` reports: the counts as data, and as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hwsim.cli.console import out

if TYPE_CHECKING:
    from rich.table import Table

    from hwsim.cli.replay import Replay
    from hwsim.hardware.counters import CacheCounters
    from hwsim.spec.machine import MachineSpec


def as_data(replay: Replay, spec: MachineSpec, trace: str, settings: Sequence[str], seed: int) -> dict[str, Any]:
    """All counts, for JSON: the same inputs give the same bytes."""
    levels = replay.hierarchy.level_counters()
    return {
        "machine": spec.name,
        "settings": list(settings),
        "trace": trace,
        "format": replay.format,
        "seed": seed,
        "complete": replay.complete,
        "accesses": replay.accesses,
        "instructions": replay.instructions,
        "levels": {name: _level(counters) for name, counters in levels.items()},
        "dram": replay.hierarchy.dram.counters.to_dict(),
        "links": _links(spec, levels, replay),
    }


def _level(counters: CacheCounters) -> dict[str, int | float]:
    rate = counters.misses / counters.accesses if counters.accesses else 0.0
    return {**counters.to_dict(), "miss_rate": rate}


def _links(spec: MachineSpec, levels: dict[str, CacheCounters], replay: Replay) -> dict[str, int]:
    """Bytes over each link, in both directions, from the compute unit outwards."""
    from hwsim.spec.memory import DramSpec, RegistersSpec

    inner = next((level.name for level in spec.memory if isinstance(level, RegistersSpec)), spec.compute[0].name)
    memory = next((level.name for level in spec.memory if isinstance(level, DramSpec)), "memory")
    links: dict[str, int] = {}
    for name, counters in levels.items():
        links |= {f"{name}→{inner}": counters.bytes_read, f"{inner}→{name}": counters.bytes_written}
        inner = name
    dram = replay.hierarchy.dram.counters
    return links | {f"{memory}→{inner}": dram.bytes_read, f"{inner}→{memory}": dram.bytes_written}


def print_report(data: dict[str, Any]) -> None:
    """Tables for people."""
    console = out()
    fetches = data["instructions"]
    noun = "fetch" if fetches == 1 else "fetches"
    left_out = f", {fetches:,} instruction {noun} left out" if fetches else ""
    console.print(
        f"[bold]{data['machine']}[/bold] replayed {data['trace']} ({data['format']}): "
        f"{data['accesses']:,} accesses{left_out}",
        soft_wrap=True,
    )
    if data["levels"]:
        columns = ("reads", "read_misses", "writes", "write_misses", "writebacks")
        console.print(_count_table("caches", data["levels"], columns, "miss rate"))
    if any(level["prefetches"] or level["prefetch_reads"] for level in data["levels"].values()):
        console.print(_count_table("prefetches", data["levels"], ("prefetches", "prefetch_hits", "prefetch_reads")))
    rows = ("reads", "writes", "row_hits", "row_misses", "row_conflicts")
    console.print(_count_table("main memory", {"dram": data["dram"]}, rows))
    console.print(_link_table(data["links"]))


def _count_table(title: str, rows: dict[str, dict[str, Any]], columns: Sequence[str], rate: str | None = None) -> Table:
    table = _table(title, "level")
    for column in columns:
        table.add_column(column.replace("writebacks", "write-backs").replace("_", " "), justify="right")
    if rate:
        table.add_column(rate, justify="right")
    for name, counts in rows.items():
        last = [f"{counts['miss_rate']:.2%}"] if rate else []
        table.add_row(name, *(f"{counts[column]:,}" for column in columns), *last)
    return table


def _link_table(links: dict[str, int]) -> Table:
    table = _table("links", "from → to")
    table.add_column("bytes", justify="right")
    for name, moved in links.items():
        table.add_row(name.replace("→", " → "), f"{moved:,}")
    return table


def _table(title: str, first: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")
    table.add_column(first, style="cyan", no_wrap=True)
    return table
