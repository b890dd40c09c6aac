"""What `hwsim sweep` prints: the points, if they are few, and the best of each metric."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwsim.cli.run_screen import screen
from hwsim.cli.table import make_table
from hwsim.results.metrics import about, write
from hwsim.results.text import ratio
from hwsim.sweep.axis import typed

if TYPE_CHECKING:
    from rich.table import Table

    from hwsim.sweep.result_set import ResultSet, Row
    from hwsim.sweep.runner import Tally

COLUMNS = ("time_s", "energy_j", "edp_js", "error_max_rel", "utilisation")
_FEW = 30
_REASONS = 5


def print_sweep(results: ResultSet, tally: Tally, kept: str) -> None:
    console = screen()
    shown = columns(results)
    if len(results) <= _FEW:
        console.print(point_table(results, narrow(shown)))
    if results.done:
        console.print(best_table(results, shown))
    console.print(_how_it_went(results, tally, kept), style="dim", soft_wrap=True)
    for reason, count in tally.errors.most_common(_REASONS):
        console.print(f"[red]{count} failed[/red]: {reason}", soft_wrap=True)


def columns(results: ResultSet) -> list[str]:
    """The metrics worth a column: those that some point has, and the bytes of each level."""
    traffic = [name for name in results.metric_names if name.endswith((".fills", "dram.bytes"))]
    wanted = [*COLUMNS[:3], *traffic, *COLUMNS[3:]]
    return [name for name in wanted if any(row.metrics.get(name) is not None for row in results.done)]


def narrow(shown: list[str]) -> list[str]:
    """What fits beside the axes: the first level's lines and the furthest level's bytes stand for all."""
    fills = [name for name in shown if name.endswith(".fills")][:1]
    far = [name for name in shown if name.endswith(".bytes")][-1:]
    return [name for name in shown if name in ("time_s", "energy_j", "error_max_rel", *fills, *far)]


def point_table(results: ResultSet, shown: list[str]) -> Table:
    best = {name: results.best(name).position for name in shown} if results.done else {}
    axes = results.axis_names
    table = make_table(*axes, *(about(name).title for name in shown), left=tuple(range(len(axes))))
    table.columns[0].no_wrap = True
    for row in results:
        where = [typed(row[axis]) for axis in axes]
        if row.status != "done":
            table.add_row(*where, "[red]failed[/red]")
            continue
        cells = [write(name, row.metrics.get(name)) for name in shown]
        marked = [
            f"[bold cyan]{c}[/bold cyan]" if best[n] == row.position else c for n, c in zip(shown, cells, strict=True)
        ]
        table.add_row(*where, *marked)
    return table


def best_table(results: ResultSet, shown: list[str]) -> Table:
    """The best of each metric, where it is, and how much worse the worst is."""
    table = make_table("best", "value", "at", "the worst is", left=(0, 2))
    for name in shown:
        rows = [row for row in results.done if isinstance(row.metrics.get(name), int | float)]
        best = results.best(name)
        worst = (min if about(name).higher_is_better else max)(rows, key=lambda row: float(row.metrics[name] or 0.0))
        table.add_row(
            about(name).title, write(name, best.metrics[name]), where(results, best), _times(name, best, worst)
        )
    return table


def where(results: ResultSet, row: Row) -> str:
    return " ".join(f"{axis}={typed(row[axis])}" for axis in results.axis_names)


def _times(name: str, best: Row, worst: Row) -> str:
    a, b = best.metrics[name], worst.metrics[name]
    if not isinstance(a, int | float) or not isinstance(b, int | float) or not a or not b:
        return ""
    factor = b / a if b > a else a / b
    return "the same" if factor == 1 else f"{ratio(factor)} {'less' if about(name).higher_is_better else 'more'}"


def _how_it_went(results: ResultSet, tally: Tally, kept: str) -> str:
    parts = [f"{tally.computed:,} computed"]
    if tally.reused:
        parts.append(f"{tally.reused:,} were here already")
    if tally.failed:
        parts.append(f"{tally.failed:,} failed")
    return f"{len(results):,} points: {', '.join(parts)}; {kept}"
