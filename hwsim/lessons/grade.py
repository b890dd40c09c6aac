"""Grades: answers against what the runs give, exercise by exercise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwsim.catalog import shown
from hwsim.errors import InputError, SpecError
from hwsim.files import note_input
from hwsim.lessons.text import Quantity, measure, number_of
from hwsim.spec.fields import did_you_mean
from hwsim.text import ratio

if TYPE_CHECKING:
    from hwsim.lessons.lesson import Lesson
    from hwsim.spec.lesson import BeatSpec, ExerciseSpec

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
        right, word = str(said) == lesson.best(exercise.best), ""
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
    from hwsim.spec.parameters import parameter_keys

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
