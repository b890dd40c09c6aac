"""What a lesson file may say: a question, a prediction, runs, claims, an explanation, and exercises that are graded."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from hwsim.spec.base import Name, Spec
from hwsim.spec.fields import did_you_mean

Setting = bool | int | float | str
"""A value of a parameter or of a field of a machine."""
Label = Annotated[str, StringConstraints(min_length=1, max_length=40)]


class PredictionSpec(Spec):
    """What the student says before the runs."""

    ask: str = Field(description="The question.")
    choices: dict[Name, str] = Field(
        description="Answers to choose from, by letter.", examples=[{"a": "yes", "b": "no"}]
    )
    right: Name = Field(description="The letter of the right one.")

    @model_validator(mode="after")
    def _right_is_a_choice(self) -> Self:
        if self.right not in self.choices:
            raise ValueError(f"right: '{self.right}' is not one of {', '.join(self.choices)}")
        return self


class LessonRunSpec(Spec):
    """One run: a workload on a machine."""

    label: Label = Field(description="What tables, charts and claims call it.")
    machine: str = Field(description="A machine by name, or a file beside the lesson.")
    workload: str = Field(description="A workload by name, or a file beside the lesson.")
    parameters: dict[str, Setting] = Field({}, description="Parameters of the workload.", examples=[{"n": 256}])
    set: dict[str, Setting] = Field({}, description="Fields of the machine.", examples=[{"l1.size": "64 KiB"}])
    math: bool = Field(True, description="Whether the answer is computed.")


class QuantitySpec(Spec):
    """A number that the runs give: a metric of one of them, or its ratio between two."""

    metric: str = Field("time_s", description="A metric, or the path of a number in a result.", examples=["l1.misses"])
    run: Label | None = Field(None, description="The run that it is of.")
    over: Label | None = Field(None, description="Divide by the same metric of this run.")


class ClaimSpec(QuantitySpec):
    """What the lesson says of its runs. It is checked whenever the lesson is shown."""

    say: str = Field(description="The sentence.")
    at_least: float | None = Field(None, description="The number is at least this.")
    at_most: float | None = Field(None, description="The number is at most this.")
    equals: float | None = Field(None, description="The number is this, up to `within`.")
    within: float = Field(0.0, ge=0, le=1, description="Share by which it may differ from `equals`.")
    source: str = Field("", description="Where the expected number comes from.")

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.run is None:
            raise ValueError("run: a claim is about a run")
        if self.at_least is None and self.at_most is None and self.equals is None:
            raise ValueError("a claim has at_least, at_most or equals")
        return self


class BeatSpec(Spec):
    """A run that the student's own parameters have to beat."""

    run: Label = Field(description="The run to beat; the answer changes its parameters.")
    metric: str = Field("time_s", description="The metric that has to be smaller.")
    by: float = Field(gt=1, description="By this factor.")
    only: tuple[str, ...] = Field((), description="Parameters that an answer may change; the schedule's if not given.")


class ExerciseSpec(QuantitySpec):
    """A question whose answer is graded."""

    name: Name = Field(description="What an answer file calls it.")
    ask: str = Field(description="The question.")
    choices: dict[Name, str] = Field({}, description="Answers to choose from, by letter.")
    answer: Setting | None = Field(None, description="The answer, where it is not a number of the runs.")
    best: str | None = Field(None, description="The answer is the label of the run with the least of this metric.")
    beat: BeatSpec | None = Field(None, description="The answer is parameters that beat a run.")
    within: float = Field(0.02, ge=0, le=1, description="Share by which a number may differ.")
    hint: str = Field("", description="Shown with a wrong answer.")
    because: str = Field("", description="Shown with a right answer, and by --solution.")

    @model_validator(mode="after")
    def _has_one_answer(self) -> Self:
        ways = [self.answer is not None, self.best is not None, self.beat is not None, self.run is not None]
        if sum(ways) != 1:
            raise ValueError("an exercise has one of answer, best, beat, or a metric of a run")
        if self.choices and self.answer not in self.choices:
            raise ValueError(f"answer: '{self.answer}' is not one of {', '.join(self.choices)}")
        return self


class ChartSpec(Spec):
    """What is drawn of the runs."""

    kind: Literal["bars", "roofline", "energy", "traffic"] = Field(
        "bars", description="Bars of metrics, runs on a roofline, stacks of energy, or traffic by level."
    )
    metrics: tuple[str, ...] = Field(("time_s",), description="What bars show, a panel each.")


class FactsSpec(Spec):
    """A table of facts from elsewhere."""

    title: str = Field(description="What the table is about.")
    columns: tuple[str, ...] = Field(description="Heads of the columns.")
    rows: tuple[tuple[Setting, ...], ...] = Field(description="Rows, a cell for each column.")
    source: str = Field(description="Where the facts come from.")


class LessonSpec(Spec):
    """A lesson, as one YAML file describes it."""

    format: Literal[1] = Field(description="Version of this file format.")
    name: Name = Field(description="What the lesson is called; the file has the same name.")
    title: str = Field(description="A few words.")
    topic: Literal["memory", "arithmetic", "operations", "hardware", "numbers", "assignments"] = Field(
        description="The part of the list in which it is."
    )
    source: str = Field("", description="The published assignment that it follows.")
    rows: tuple[str, ...] = Field((), description="Rows of the mission that it shows.")
    question: str = Field(description="What the lesson asks.")
    prediction: PredictionSpec | None = Field(None, description="What the student says first.")
    runs: tuple[LessonRunSpec, ...] = Field(min_length=1, description="What is simulated.")
    columns: tuple[str, ...] = Field(("time_s", "energy_j"), description="Metrics that the table of runs shows.")
    chart: ChartSpec = Field(ChartSpec(), description="What --plot draws.")
    facts: FactsSpec | None = Field(None, description="A table beside the runs.")
    claims: tuple[ClaimSpec, ...] = Field(min_length=1, description="What the runs show.")
    explanation: str = Field(description="Why it is so.")
    exercises: tuple[ExerciseSpec, ...] = Field((), description="Questions that --answer grades.")
    next: tuple[str, ...] = Field((), description="Commands to try next.")

    @model_validator(mode="after")
    def _names_its_runs(self) -> Self:
        labels = [run.label for run in self.runs]
        if len(set(labels)) < len(labels):
            raise ValueError("runs: each label only once")
        names = [exercise.name for exercise in self.exercises]
        if len(set(names)) < len(names):
            raise ValueError("exercises: each name only once")
        beaten = [exercise.beat.run for exercise in self.exercises if exercise.beat is not None]
        for said in (*self.claims, *self.exercises):
            beaten += [label for label in (said.run, said.over) if label is not None]
        for label in beaten:
            if label not in labels:
                raise ValueError(f"there is no run '{label}'{did_you_mean(label, labels)}")
        if self.facts is not None and any(len(row) != len(self.facts.columns) for row in self.facts.rows):
            raise ValueError("facts: each row has a cell for each column")
        return self
