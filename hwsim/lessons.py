"""A lesson that can be taken: its runs are made once, its claims are checked against them, answers are graded.

lesson = hwsim.lesson("tiling")
lesson.findings()                      # each claim, with the number that the runs give
lesson.grade({"best_tile": "tile 16"}) # deterministic, and without a network

Numbers and words of a lesson: metrics, paths into a result, ratios of runs; its tables and findings as text.

Grades: answers against what the runs give, exercise by exercise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from hwsim.api import run_all
from hwsim.catalog import find_lesson, is_path, load_lesson_file, shown
from hwsim.errors import InputError, SpecError
from hwsim.files import note_input
from hwsim.result import RunResult
from hwsim.results.metrics import METRICS, about, aligned, energy_split, full_name, html_table, metrics_of, write
from hwsim.spec.fields import did_you_mean
from hwsim.sweep.grid import typed
from hwsim.target import Table
from hwsim.units import percent, ratio, seconds

if TYPE_CHECKING:
    from hwsim.results.plot.style import Figure
    from hwsim.spec.lesson import BeatSpec, ClaimSpec, ExerciseSpec, LessonRunSpec, LessonSpec, QuantitySpec


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

        return grade(self, answers)

    def plot(self, path: str | Path | None = None) -> Figure:
        """Its chart; in a notebook it shows itself."""
        from hwsim.results.plot.compare import plot_lesson

        metrics = self.spec.chart.metrics
        numbers = {label: [number_of(run, name) for name in metrics] for label, run in self.results.items()}
        heads = [column_head(name) for name in metrics]

        def words(number: int, amount: float) -> str:
            return write_number(metrics[number], amount)

        good = [name.startswith(SHARE) or about(full_name(name)).higher_is_better for name in metrics]
        file = None if path is None else Path(path)
        return plot_lesson(self.spec, self.results, numbers, heads, words, file, good)

    def best(self, metric: str) -> str:
        """The label of the run with the least of a metric; the first of equal ones."""
        return min(self.results, key=lambda label: number_of(self.results[label], metric))

    def __repr__(self) -> str:
        spec, table = self.spec, run_table(self)
        seen = [f"{HOLDS if each.holds else FAILS} {finding_line(each)}" for each in self.findings()]
        runs = aligned([table.columns, *table.rows])
        return "\n".join(
            [spec.title, *paragraphs(spec.question), "", *runs, "", *seen, "", *paragraphs(spec.explanation)]
        )

    def _repr_html_(self) -> str:
        """The question, the runs, what they show, and why."""
        spec, table = self.spec, run_table(self)
        lines = [f"{HOLDS if each.holds else FAILS} {escape(finding_line(each))}" for each in self.findings()]
        seen = "".join(f"<li>{line}</li>" for line in lines)
        asked, why = (
            "".join(f"<p>{escape(part)}</p>" for part in paragraphs(text)) for text in (spec.question, spec.explanation)
        )
        return (
            f"<div><h4>{escape(spec.title)}</h4>{asked}{html_table(table.columns, table.rows)}"
            f"<ul style='list-style:none;padding-left:0'>{seen}</ul>{why}</div>"
        )

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


INSTRUCTIONS, SHARE, OVER_LONGEST = "instructions", "share.", "time over longest part"
"""Beside metrics: all instructions, loop control left out; the share of a part in the energy that is not static; the
time over what its longest part would take alone."""
_LOOP = "other"


@dataclass(frozen=True)
class Quantity:
    """A number with how people write it."""

    number: float
    text: str


def measure(results: Mapping[str, RunResult], wanted: QuantitySpec) -> Quantity:
    """The number that a claim or an exercise is about."""
    assert wanted.run is not None
    value = number_of(results[wanted.run], wanted.metric)
    if wanted.over is None:
        return Quantity(value, write_number(wanted.metric, value))
    below = number_of(results[wanted.over], wanted.metric)
    if not below:
        raise InputError(f"{wanted.metric} of '{wanted.over}' is 0: nothing can be divided by it")
    return Quantity(value / below, ratio(value / below))


def number_of(result: RunResult, name: str) -> float:
    """A number of a run. Raises InputError where it has none of that name."""
    found = find_number(result, name)
    if found is None:
        known = [*METRICS, *(key for key in metrics_of(result) if "." in key), INSTRUCTIONS]
        raise InputError(f"a run has no number '{name}'{did_you_mean(name, known)}; numbers: {', '.join(known)}")
    return found


def find_number(result: RunResult, name: str) -> float | None:
    """A number of a run; None where this one has none of that name, as a GPU has no L1 misses."""
    found = _look_up(result, full_name(name))
    return None if isinstance(found, bool) or not isinstance(found, int | float) else float(found)


def write_number(name: str, value: float | None) -> str:
    """With its unit; a dash where there is no such number."""
    if value is None:
        return "–"
    if name.startswith(SHARE):
        return percent(value, 1)
    if name == OVER_LONGEST:
        return ratio(value)
    if name.startswith("bounds."):
        return seconds(value)
    if float(value).is_integer() and name not in METRICS and not name.startswith("energy") and ".bytes" not in name:
        return f"{int(value):,}"
    return write(full_name(name), int(value) if float(value).is_integer() and value < 2**53 else value)


def _look_up(result: RunResult, name: str) -> Any:
    row = metrics_of(result)
    if name in row:
        return row[name]
    if name == OVER_LONGEST:
        return result.time_s / result.bounds.lower_s if result.bounds.lower_s else None
    if name == INSTRUCTIONS:
        return sum(count for kind, count in result.work.instructions.items() if kind != _LOOP)
    if name.startswith(SHARE):
        return _share(result, name.removeprefix(SHARE))
    found: Any = result.to_dict()
    for part in name.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    return found


def _share(result: RunResult, part: str) -> float | None:
    """Of arithmetic, control, operand supply or a memory level; none where the machine has no prices."""
    split = energy_split(result)
    dynamic = sum(amount for name, amount in split.items() if name != "static")
    return split.get(part, 0.0) / dynamic if dynamic else None


HOLDS, FAILS = "✓", "✗"
_HEADS = {
    INSTRUCTIONS: "instructions",
    "intensity.byte": "FLOP per byte",
    "intensity.element": "FLOP per element",
    "error_rms_rel": "rms error",
    "bounds.lower_s": "longest part",
    "bounds.upper_s": "sum of all parts",
}
_LEVEL = "intensity.levels."


def column_head(metric: str) -> str:
    """What the column of a metric is called."""
    if metric in _HEADS:
        return _HEADS[metric]
    if metric.startswith(SHARE):
        return f"{metric.removeprefix(SHARE)} share"
    if metric.startswith(_LEVEL):
        return f"FLOP per byte of {metric.removeprefix(_LEVEL)}"
    parts = metric.split(".")
    if parts[0] == "tensors" and len(parts) == 4:
        return f"{parts[1]} words into {parts[3]}"
    if parts[0] == "tensors":
        return f"{parts[2]} of {parts[1]}"
    if metric.startswith("work.instructions."):
        return f"{parts[-1]} instructions"
    return about(full_name(metric)).title


def run_table(lesson: Lesson) -> Table:
    """The runs, a row each: what they cost in the metrics that the lesson is about, and what bounds them."""
    from hwsim.results.explanation import explain

    spec = lesson.spec
    rows = []
    for label, result in lesson.results.items():
        cells = [write_number(metric, find_number(result, metric)) for metric in spec.columns]
        rows.append((label, *cells, explain(result).bound.short))
    heads = [column_head(metric) for metric in spec.columns]
    return Table(("run", *heads, "bound by"), tuple(rows), (0, len(heads) + 1))


def facts_table(spec: LessonSpec) -> Table | None:
    """The table of facts, if the lesson has one."""
    if spec.facts is None:
        return None
    rows = tuple(tuple(str(cell) for cell in row) for row in spec.facts.rows)
    return Table(spec.facts.columns, rows, tuple(range(len(spec.facts.columns))))


def finding_line(finding: ClaimCheck) -> str:
    """``A tile of 16 is faster than none: 2.65×``."""
    return f"{finding.claim.say}: {finding.value.text}"


def paragraphs(text: str) -> list[str]:
    """Paragraphs of a text of a file, each on one line."""
    return [" ".join(part.split()) for part in text.strip().split("\n\n")]


def commands(lesson: Lesson) -> list[str]:
    """Each run as a command to type; runs on files beside the lesson have none."""
    from hwsim.catalog import is_path

    found = []
    for run in lesson.spec.runs:
        if is_path(run.machine) or is_path(run.workload):
            continue
        words = ["hwsim run", run.machine, run.workload]
        words += [f"{name}={quote(typed(value))}" for name, value in run.parameters.items()]
        words += [f"--set {name}={quote(typed(value))}" for name, value in run.set.items()]
        found.append(" ".join(words + ([] if run.math else ["--no-math"])))
    return found


_SCHEDULE = ("schedule", "choices", "mapping", "threads")


@dataclass(frozen=True)
class Mark:
    """One exercise: what was said, whether it is right, and a word about it."""

    name: str
    said: Any
    right: bool
    word: str


@dataclass(frozen=True)
class Grade:
    """All exercises of a lesson."""

    lesson: str
    marks: tuple[Mark, ...]

    @property
    def right(self) -> int:
        return sum(mark.right for mark in self.marks)

    @property
    def score(self) -> float:
        """Right answers over exercises."""
        return self.right / len(self.marks) if self.marks else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for a grader."""
        marks = [{"name": m.name, "said": m.said, "right": m.right, "word": m.word} for m in self.marks]
        return {"lesson": self.lesson, "score": self.score, "right": self.right, "of": len(self.marks), "marks": marks}


def grade(lesson: Lesson, answers: Mapping[str, Any]) -> Grade:
    """Raises InputError for an answer to a question that was not asked."""
    names = [exercise.name for exercise in lesson.spec.exercises]
    if not names:
        raise InputError(f"the lesson {lesson.spec.name} has no exercises")
    for name in answers:
        if name not in names:
            raise InputError(f"'{name}' is no exercise of {lesson.spec.name}{did_you_mean(str(name), names)}; "
                             f"they are {', '.join(names)}")  # fmt: skip
    return Grade(lesson.spec.name, tuple(_mark(lesson, each, answers) for each in lesson.spec.exercises))


def read_answers(path: Path, lesson: str) -> dict[str, Any]:
    """The answers of a file: ``lesson: tiling`` and ``answers: {name: value}``."""
    from hwsim.spec.document import read_document

    note_input(path)
    node, problems = read_document(path, shown(path))
    if problems:
        raise SpecError(tuple(problems))
    data = node.plain()
    if not isinstance(data, dict) or set(data) - {"lesson", "answers"} or not isinstance(data.get("answers"), dict):
        raise InputError(f"{shown(path)}: an answer file has 'lesson: {lesson}' and 'answers:' with a line for each")
    if data.get("lesson", lesson) != lesson:
        raise InputError(f"{shown(path)}: these are answers for the lesson {data['lesson']}, not {lesson}")
    return dict(data["answers"])


def solution(lesson: Lesson, exercise: ExerciseSpec) -> str:
    """The right answer, in words."""
    if exercise.beat is not None:
        return f"parameters that beat '{exercise.beat.run}' by {ratio(exercise.beat.by)}"
    if exercise.best is not None:
        return lesson.best(exercise.best)
    return exercise.choices.get(str(exercise.answer), "") or _expected(lesson, exercise).text


def _mark(lesson: Lesson, exercise: ExerciseSpec, answers: Mapping[str, Any]) -> Mark:
    if exercise.name not in answers or answers[exercise.name] is None:
        return Mark(exercise.name, None, False, "not answered")
    said = answers[exercise.name]
    if exercise.beat is not None:
        right, word = _beaten(lesson, exercise.beat, said)
    elif exercise.best is not None:
        best = lesson.best(exercise.best)
        right, word = str(said) in (best, best.split()[-1]), ""
    elif exercise.choices:
        right, word = str(said) == str(exercise.answer), ""
        if str(said) not in exercise.choices:
            word = f"it is one of {', '.join(exercise.choices)}"
    else:
        right, word = _near(said, _expected(lesson, exercise), exercise.within)
    return Mark(exercise.name, said, right, word or (exercise.because if right else exercise.hint))


def _expected(lesson: Lesson, exercise: ExerciseSpec) -> Quantity:
    if exercise.answer is None:
        return measure(lesson.results, exercise)
    number = float(exercise.answer) if isinstance(exercise.answer, int | float) else float("nan")
    return Quantity(number, str(exercise.answer))


def _near(said: Any, expected: Quantity, within: float) -> tuple[bool, str]:
    """Numbers with room for rounding; anything else as it is written."""
    if expected.number != expected.number:  # not a number: a word
        return str(said).strip().casefold() == expected.text.strip().casefold(), ""
    if isinstance(said, bool) or not isinstance(said, int | float):
        return False, "a number is expected, such as 1.5"
    return abs(said - expected.number) <= within * abs(expected.number), ""


def _beaten(lesson: Lesson, beat: BeatSpec, said: Any) -> tuple[bool, str]:
    """Whether a run with the student's parameters is better, by how much."""
    from hwsim.api import resolve_workload
    from hwsim.spec.variant import parameter_keys

    if not isinstance(said, dict) or not all(isinstance(name, str) for name in said):
        return False, "parameters are expected, such as {tile: 32}"
    base = next(run for run in lesson.spec.runs if run.label == beat.run)
    work = resolve_workload(lesson._file(base.workload), base.parameters)
    keys = parameter_keys(work)
    free = {name for name, key in keys.items() if key.path[0] in _SCHEDULE} | {n for n in said if n.startswith("tile.")}
    allowed = set(beat.only) if beat.only else free
    strange = sorted(name for name in said if name not in allowed)
    if strange:
        return False, f"{', '.join(strange)} may not be changed; these may: {', '.join(sorted(allowed))}"
    try:
        made = lesson.run(base, said)
    except InputError as error:
        return False, str(error)
    if made.verified is False:
        return False, "the answer of this run is wrong"
    gain = number_of(lesson.results[beat.run], beat.metric) / number_of(made, beat.metric)
    return gain >= beat.by, f"{ratio(gain)} against '{beat.run}'; {ratio(beat.by)} is asked for"
