"""A lesson that can be taken: its runs are made once, its claims are checked against them, answers are graded.

lesson = hwsim.lesson("tiling")
lesson.findings()                      # each claim, with the number that the runs give
lesson.grade({"best_tile": "tile 16"}) # deterministic, and without a network
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwsim.api import run_all
from hwsim.catalog import find_lesson, is_path, load_lesson_file
from hwsim.errors import InputError
from hwsim.lessons.text import SHARE, Quantity, measure, number_of, runs_best, write_number
from hwsim.result import RunResult
from hwsim.results.metrics import about, full_name

if TYPE_CHECKING:
    from hwsim.lessons.grade import Grade
    from hwsim.results.plot.style import Figure
    from hwsim.spec.lesson import ClaimSpec, LessonRunSpec, LessonSpec


@dataclass(frozen=True)
class ClaimCheck:
    """A claim, the number that the runs give for it, and whether it holds."""

    claim: ClaimSpec
    value: Quantity
    holds: bool


@dataclass(frozen=True)
class Prediction:
    """What somebody said before the runs."""

    said: str
    right: str

    @property
    def is_right(self) -> bool:
        return self.said == self.right


@dataclass(frozen=True, repr=False)
class Lesson:
    """A lesson from its file."""

    spec: LessonSpec
    folder: Path = field(compare=False)

    @cached_property
    def results(self) -> dict[str, RunResult]:
        """What its runs give, by label; they are made when they are first asked for."""
        return {run.label: self.run(run) for run in self.spec.runs}

    def run(self, run: LessonRunSpec, changes: Mapping[str, Any] | None = None) -> RunResult:
        """One of its runs, with other parameters where there are `changes`."""
        done = run_all(
            self._file(run.machine),
            self._file(run.workload),
            set=dict(run.set),
            math=run.math,
            parameters={**run.parameters, **(changes or {})},
        )
        return done.result

    def findings(self) -> tuple[ClaimCheck, ...]:
        """Each claim with its number."""
        return tuple(self._finding(claim) for claim in self.spec.claims)

    def predict(self, choice: str) -> Prediction:
        """Raises InputError for a letter that is none of the choices."""
        asked = self.spec.prediction
        if asked is None:
            raise InputError(f"the lesson {self.spec.name} asks for no prediction")
        if choice not in asked.choices:
            raise InputError(f"prediction '{choice}': it is one of {', '.join(asked.choices)}")
        return Prediction(choice, asked.right)

    def grade(self, answers: Mapping[str, Any]) -> Grade:
        """How many of the exercises are right; the same answers always get the same grade."""
        from hwsim.lessons.grade import grade

        return grade(self, answers)

    def plot(self, path: str | Path | None = None) -> Figure:
        """Its chart; in a notebook it shows itself."""
        from hwsim.lessons.text import column_head
        from hwsim.results.plot.lesson import plot_lesson

        metrics = self.spec.chart.metrics
        numbers = {label: [number_of(run, name) for name in metrics] for label, run in self.results.items()}
        heads = [column_head(name) for name in metrics]

        def words(number: int, amount: float) -> str:
            return write_number(metrics[number], amount)

        good = [name.startswith(SHARE) or about(full_name(name)).higher_is_better for name in metrics]
        file = None if path is None else Path(path)
        return plot_lesson(self.spec, self.results, numbers, heads, words, file, good)

    def best(self, metric: str) -> str:
        """The label of the run with the least of a metric."""
        return runs_best(self.results, metric)

    def __repr__(self) -> str:
        from hwsim.lessons.text import lesson_lines

        return "\n".join(lesson_lines(self))

    def _repr_html_(self) -> str:
        from hwsim.lessons.text import lesson_html

        return lesson_html(self)

    def _finding(self, claim: ClaimSpec) -> ClaimCheck:
        value = measure(self.results, claim)
        number = value.number
        holds = (
            (claim.at_least is None or number >= claim.at_least)
            and (claim.at_most is None or number <= claim.at_most)
            and (claim.equals is None or abs(number - claim.equals) <= claim.within * abs(claim.equals))
        )
        return ClaimCheck(claim, value, holds)

    def _file(self, name: str) -> str | Path:
        """A file beside the lesson, or a name that the catalog knows."""
        return self.folder / name if is_path(name) else name


def lesson(name: str | Path) -> Lesson:
    """A lesson by name or by the path of its file; `hwsim lesson` lists them."""
    file = find_lesson(name)
    return Lesson(load_lesson_file(file), file.resolve().parent)
