"""`hwsim.compare`: machines by workloads side by side, for Python and notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwsim.api import DEFAULT_MACHINE, DEFAULT_WORKLOAD
from hwsim.result import RunResult
from hwsim.results.explanation import explain
from hwsim.results.metrics import metrics_of, shown, write
from hwsim.sweep.grid import MACHINE, WORKLOAD, make_request
from hwsim.sweep.ladder import NamedRun, read_by_some, run_named
from hwsim.text import ratio

if TYPE_CHECKING:
    from hwsim.results.plot.style import Figure

Names = str | Path | Sequence[str | Path]


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs by their names, one for each head; speed-ups are against the first."""

    heads: tuple[str, ...]
    runs: Mapping[tuple[str, ...], RunResult]
    refused: Mapping[str, str]
    """Why a combination is not among them."""

    def __getitem__(self, names: str | tuple[str, ...]) -> RunResult:
        """One run: ``comparison["course_cpu", "add"]``."""
        return self.runs[(names,) if isinstance(names, str) else names]

    def __len__(self) -> int:
        return len(self.runs)

    def speed_up(self, names: tuple[str, ...]) -> float:
        """How many times as fast as the first run this one is."""
        first = next(iter(self.runs.values()))
        return first.time_s / self.runs[names].time_s

    def to_dicts(self) -> list[dict[str, Any]]:
        """One flat dictionary for each run: names, speed-up, what bounds it, and all metrics."""
        return [
            {
                **dict(zip(self.heads, names, strict=True)),
                "speed_up": self.speed_up(names),
                "bound": explain(result).bound.short,
                **metrics_of(result),
            }
            for names, result in self.runs.items()
        ]

    def plot(self, path: str | Path | None = None) -> Figure:
        """Bars of time, energy and traffic; in a notebook they show themselves."""
        from hwsim.results.plot.compare import ComparedRun, plot_compare

        entries = [ComparedRun(names[0], " ".join(names[1:]), result) for names, result in self.runs.items()]
        return plot_compare(entries, None if path is None else Path(path))

    def __repr__(self) -> str:
        rows = [self._titles(), *self._rows()]
        widths = [max(len(row[number]) for row in rows) for number in range(len(rows[0]))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        )

    def _repr_html_(self) -> str:
        head = "".join(f"<th style='text-align:left'>{escape(cell)}</th>" for cell in self._titles())
        body = "".join(
            "<tr>"
            + "".join(f"<td style='text-align:left;white-space:nowrap'>{escape(cell)}</td>" for cell in row)
            + "</tr>"
            for row in self._rows()
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _titles(self) -> list[str]:
        return [*self.heads, "speed-up", *(metric.head or metric.title for metric in shown("compare")), "bound by"]

    def _rows(self) -> list[list[str]]:
        found = []
        for names, result in self.runs.items():
            row = metrics_of(result)
            cells = [write(metric.name, row[metric.name]) for metric in shown("compare")]
            found.append([*names, ratio(self.speed_up(names)), *cells, explain(result).bound.short])
        return found


def compare(
    machine: Names = DEFAULT_MACHINE,
    workload: Names = DEFAULT_WORKLOAD,
    *,
    set: Mapping[str, object] | None = None,  # noqa: A002 - the same word as --set on the command line
    math: bool = True,
    **parameters: object,
) -> Comparison:
    """Run every combination: ``hwsim.compare(["course_cpu", "zen3"], ["matmul_naive", "matmul_simd"], n=50)``.

    Values are one value, a list, or a text as on the command line; what has several is part of a run's names.
    """
    request = make_request(machine, workload, parameters, {})
    heads = (MACHINE, WORKLOAD, *(axis.name for axis in request.axes if axis.swept))
    settings = tuple(f"{name}={value}" for name, value in (set or {}).items())
    tasks: dict[tuple[str, ...], NamedRun] = {}
    for place in request.coordinates():
        names = tuple(str(place[head]) for head in heads)
        own = {axis.name: place[axis.name] for axis in request.axes}
        tasks[names] = NamedRun(" ".join(names), names[0], names[1], own, settings)
    refused: dict[str, str] = {}
    mine, _ = read_by_some(list(tasks.values()))
    results = run_named(mine, math=math, refused=refused)
    runs = {names: results[task.label] for names, task in tasks.items() if task.label in results}
    return Comparison(heads, runs, refused)
