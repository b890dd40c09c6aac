"""A lesson in words: what a screen, a Python prompt, a notebook and the documentation site show of it."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from hwsim.lessons.quantity import INSTRUCTIONS, SHARE, find_number, write_number
from hwsim.results.metrics import about, full_name
from hwsim.target import Table

if TYPE_CHECKING:
    from hwsim.lessons.lesson import ClaimCheck, Lesson
    from hwsim.spec.lesson import LessonSpec

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
