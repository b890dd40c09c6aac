"""`hwsim.tune`: the best schedule that a search finds, for Python and notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwsim.api import DEFAULT_MACHINE, DEFAULT_WORKLOAD
from hwsim.result import RunResult
from hwsim.results.metrics import about, write
from hwsim.sweep import tune as searching
from hwsim.sweep.grid import make_request
from hwsim.sweep.search import usual_space
from hwsim.sweep.store import MEMORY, ResultStore
from hwsim.text import digits

if TYPE_CHECKING:
    from hwsim.results.plot.style import Figure
    from hwsim.sweep.result_set import ResultSet
    from hwsim.sweep.tune import SearchOutcome


@dataclass(frozen=True, repr=False)
class Tuned:
    """What a search found."""

    search: SearchOutcome

    @property
    def best(self) -> dict[str, Any]:
        """The best point: its choices, and its metrics."""
        return self.search.best.to_dict()

    @property
    def choices(self) -> dict[str, Any]:
        """What was chosen, without what was left to the machine."""
        axes = [axis.name for axis in self.search.request.swept]
        return {name: self.best[name] for name in axes if self.best[name] != "auto"}

    @property
    def result(self) -> RunResult:
        """The run of the best point."""
        assert self.search.found is not None
        return self.search.found

    @property
    def gain(self) -> float | None:
        """How many times better than the default; None where there is none."""
        return self.search.gain

    @property
    def command(self) -> str:
        """The command that runs it again."""
        return self.search.command

    @property
    def results(self) -> ResultSet:
        """Every point that was simulated."""
        return self.search.results

    def plot(self, path: str | Path | None = None) -> Figure:
        """Time against energy of all that was simulated, with what nothing beats."""
        return self.search.results.plot("pareto", path)

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _repr_html_(self) -> str:
        return "<div>" + "".join(f"<p>{escape(line)}</p>" for line in self._lines()) + "</div>"

    def _lines(self) -> list[str]:
        metric = self.search.metric
        word = "most" if about(metric).higher_is_better else "least"
        chosen = ", ".join(f"{name}={value}" for name, value in self.choices.items()) or "the default"
        lines = [f"{word} {about(metric).title}: {write(metric, self.search.best.metrics[metric])} with {chosen}"]
        if self.gain is not None:
            lines.append(f"{digits(self.gain)} times better than the default schedule")
        return [*lines, f"{self.search.candidates:,} combinations, {self.search.simulated:,} simulated", self.command]


def tune(
    machine: str = DEFAULT_MACHINE,
    workload: str = DEFAULT_WORKLOAD,
    *,
    metric: str = "time",
    budget: str | None = None,
    set: Mapping[str, object] | None = None,  # noqa: A002 - the same word as --set on the command line
    math: bool = True,
    jobs: int | None = None,
    **parameters: object,
) -> Tuned:
    """Find the best schedule: ``hwsim.tune("course_cpu", "matmul_tiled", n=64, tile="4..64:x2", metric="energy")``.

    Without any list or range, the machine's own choices are searched. ``budget`` is a time or a number of points, as on
    the command line: ``"60s"``, ``"200"``.
    """
    request = make_request(machine, workload, parameters, set or {}, math=math)
    usual = not request.swept
    if usual:
        settings = [f"{name}={value}" for name, value in (set or {}).items()]
        space = usual_space(machine, workload, parameters, settings)
        request = make_request(machine, workload, space, set or {}, math=math)
    store = ResultStore(MEMORY)
    limit = searching.parse_budget(budget)
    return Tuned(searching.tune(request, metric, store, budget=limit, jobs=jobs, default_first=usual))
