"""The table of a comparison: time and speed-up, energy, traffic, memory, error, and what decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hwsim.cli.run_screen import screen
from hwsim.results.metrics import metrics_of, write
from hwsim.results.result import RunResult
from hwsim.results.text import data, ratio
from hwsim.results.words import explain_bound

_COLUMNS = ("time", "speed-up", "energy", "energy × time", "traffic", "memory", "error", "of peak", "bound by")


def print_comparison(
    rows: Mapping[tuple[str, ...], RunResult], heads: Sequence[str], first: RunResult | None = None
) -> None:
    """`rows` by their names, one for each head; speed-ups are against the first row, or against `first`."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    for head in heads:
        table.add_column(head, style="cyan", no_wrap=True)
    for head in _COLUMNS:
        table.add_column(head, justify="left" if head == "bound by" else "right", no_wrap=True)
    baseline = first or next(iter(rows.values()))
    for names, result in rows.items():
        table.add_row(*names, *_cells(result, baseline))
    console = screen()
    console.width = max(console.width, 150)
    console.print(table)


def comparison_data(rows: Mapping[tuple[str, ...], RunResult], heads: Sequence[str]) -> list[dict[str, Any]]:
    """The same as plain data."""
    baseline = next(iter(rows.values()))
    return [
        {**dict(zip(heads, names, strict=True)), "speed_up": baseline.time_s / result.time_s if result.time_s else None,
         "bound": explain_bound(result).short, **metrics_of(result)}
        for names, result in rows.items()
    ]  # fmt: skip


def _cells(result: RunResult, baseline: RunResult) -> list[str]:
    row = metrics_of(result)
    far = list(result.memory.values())[-1] if result.memory else None
    speed_up = ratio(baseline.time_s / result.time_s) if result.time_s else "–"
    return [
        write("time_s", result.time_s),
        speed_up,
        write("energy_j", result.energy_j),
        write("edp_js", row["edp_js"]),
        "–" if far is None else data(far.bytes_read + far.bytes_written),
        data(result.peak_memory_bytes),
        write("error_max_rel", row["error_max_rel"]),
        write("utilisation", row["utilisation"]),
        explain_bound(result).short,
    ]
