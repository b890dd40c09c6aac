"""Writes the pages for people who learn: lessons, glossary, and what shows each row of the mission. `make docs`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from hwsim.catalog import find_lesson, lesson_names, load_lesson_file
from hwsim.cli.lesson import TOPICS
from hwsim.files import write_text
from hwsim.glossary import TERMS
from hwsim.lessons import paragraphs
from hwsim.spec.lesson import LessonSpec

DOCS = Path(__file__).resolve().parent
NOTICE = "<!-- Written by docs/generate_learning.py; change hwsim and run `make docs`. -->\n"
MISSION = DOCS / "mission.yaml"


def glossary_page() -> str:
    """Every term, in the order of the alphabet."""
    lines = ["# Glossary\n", NOTICE]
    lines.append("Words of the screens. `hwsim explain TERM` prints the same, also for other words of a term.\n")
    for term in sorted(TERMS.values(), key=lambda each: each.name.casefold()):
        lines.append(f"**{term.name}**: {_plain(term.meaning)}")
        if term.see:
            lines.append(f"See {', '.join(term.see)}.")
        if term.lesson:
            lines.append(f"`hwsim lesson {term.lesson}` shows it.")
        lines.append("")
    return "\n".join(lines)


def lessons_page() -> str:
    """All lessons by topic: question, prediction, what the runs show, why."""
    lines = ["# Lessons\n", NOTICE]
    lines.append(
        "`hwsim lesson` lists them, `hwsim lesson NAME` takes one: a question, your prediction, the runs, what they\n"
        "show and why, and exercises that `--answer` grades. [Teach with lessons](../how-to/teach-with-lessons.md)\n"
        "says how to write one, and how to grade.\n"
    )
    specs = [load_lesson_file(find_lesson(name)) for name in lesson_names()]
    for topic, title in TOPICS.items():
        lines.append(f"## {title}\n")
        for spec in (each for each in specs if each.topic == topic):
            lines += _lesson(spec)
    return "\n".join(lines)


def _lesson(spec: LessonSpec) -> Iterator[str]:
    yield f"### {spec.title}\n"
    yield f"    hwsim lesson {spec.name}\n"
    yield from (f"{_plain(part)}\n" for part in paragraphs(spec.question))
    if spec.source:
        yield f"*After {_plain(spec.source)}.*\n"
    if spec.prediction is not None:
        yield f"**Predict.** {_plain(' '.join(spec.prediction.ask.split()))}\n"
        yield from (f"- {letter}: {_plain(text)}" for letter, text in spec.prediction.choices.items())
        yield ""
    yield "**What the runs show**\n"
    yield from (f"- {_plain(claim.say)}" for claim in spec.claims)
    yield ""
    yield from (f"{_plain(part)}\n" for part in paragraphs(spec.explanation))


def mission_page() -> str:
    """Each row with what shows it."""
    lines = ["# The mission, row by row\n", NOTICE]
    lines.append(
        "hwsim grew out of the notes of five courses on ML systems. Every concept, claim and worked example in them\n"
        "that a simulator can show has a row here, with the command that shows it; the tests run each of them.\n"
    )
    for part, rows in mission_rows().items():
        lines += [f"## {part}\n", "| row | what the notes say | shown by |", "|---|---|---|"]
        for row, (claim, shown, *_) in rows.items():
            lines.append(f"| {row} | {_cell(_plain(claim))} | {_shown(shown)} |")
        lines.append("")
    return "\n".join(lines)


def mission_rows() -> dict[str, dict[str, list[Any]]]:
    """The rows of the mission by part: what is said, where it is shown, what the output has to contain."""
    found: dict[str, dict[str, list[Any]]] = yaml.safe_load(MISSION.read_text(encoding="utf-8"))
    return found


def _shown(place: str) -> str:
    if place.startswith("lesson "):
        return f"`hwsim {place}`"
    if place.startswith("docs/"):
        return f"[{Path(place).stem}](../{place.removeprefix('docs/')})"
    if place.startswith("examples/"):
        return f"`python {place}`"
    commands = place.removeprefix("! ").split(" && ")
    refused = " (refused on purpose)" if place.startswith("! ") else ""
    return ", then ".join(f"`{_cell(command)}`" for command in commands) + refused


def _plain(text: str) -> str:
    """Text that Markdown leaves as it is."""
    for sign in ("*", "_", "[", "]", "<", ">"):
        text = text.replace(sign, f"\\{sign}")
    return text


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


PAGES = {
    "reference/glossary.md": glossary_page,
    "reference/lessons.md": lessons_page,
    "explanation/mission.md": mission_page,
}


def main(folder: Path = DOCS) -> None:
    """Write every page."""
    for name, page in PAGES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_text(folder / name, page())


if __name__ == "__main__":
    main(*(Path(folder) for folder in sys.argv[1:2]))
