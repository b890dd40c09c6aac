"""Numbers and words of a lesson: metrics, paths into a result, ratios of runs; its tables and findings as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from hwsim.errors import InputError
from hwsim.results.metrics import METRICS, about, energy_split, full_name, metrics_of, write
from hwsim.spec.fields import did_you_mean
from hwsim.target import Table
from hwsim.text import percent, ratio, seconds

if TYPE_CHECKING:
    from hwsim.lessons.lesson import ClaimCheck, Lesson
    from hwsim.result import RunResult
    from hwsim.spec.lesson import LessonSpec, QuantitySpec

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


def runs_best(results: Mapping[str, RunResult], metric: str) -> str:
    """The label of the run with the least of a metric; the first of equal ones."""
    return min(results, key=lambda label: number_of(results[label], metric))


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
        words += [f"{name}={_typed(value)}" for name, value in run.parameters.items()]
        words += [f"--set {name}={_quoted(value)}" for name, value in run.set.items()]
        found.append(" ".join(words + ([] if run.math else ["--no-math"])))
    return found


def lesson_lines(lesson: Lesson) -> list[str]:
    """For a Python prompt."""
    spec = lesson.spec
    table = run_table(lesson)
    widths = [max(len(row[n]) for row in (table.columns, *table.rows)) for n in range(len(table.columns))]
    lines = [spec.title, *paragraphs(spec.question), ""]
    for row in (table.columns, *table.rows):
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    lines += ["", *(f"{HOLDS if f.holds else FAILS} {finding_line(f)}" for f in lesson.findings())]
    return [*lines, "", *paragraphs(spec.explanation)]


def lesson_html(lesson: Lesson) -> str:
    """For a notebook: the question, the runs, what they show, and why."""
    spec, table = lesson.spec, run_table(lesson)
    head = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in table.columns)
    body = "".join(
        "<tr>" + "".join(f"<td style='text-align:left'>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in table.rows
    )
    seen = "".join(f"<li>{HOLDS if f.holds else FAILS} {escape(finding_line(f))}</li>" for f in lesson.findings())
    asked = "".join(f"<p>{escape(part)}</p>" for part in paragraphs(spec.question))
    why = "".join(f"<p>{escape(part)}</p>" for part in paragraphs(spec.explanation))
    return (
        f"<div><h4>{escape(spec.title)}</h4>{asked}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        f"<ul style='list-style:none;padding-left:0'>{seen}</ul>{why}</div>"
    )


def _typed(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _quoted(value: object) -> str:
    text = _typed(value)
    return f"'{text}'" if " " in text else text
