"""`hwsim lesson`: a question, your prediction, the runs, what they show and why; and exercises that are graded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwsim.cli.arguments import JsonFile, PlotFile, check_output, spinner
from hwsim.cli.console import draw_table, err, out, print_plain, screen, styled, wrapped
from hwsim.errors import CheckFailedError, InputError
from hwsim.units import bar, counted

if TYPE_CHECKING:
    from rich.console import Console

    from hwsim.lessons import Grade, Lesson, Prediction

LESSON_EXAMPLE = "Example: [cyan]hwsim lesson tiling[/cyan], then [cyan]hwsim lesson tiling --answer a.yaml[/cyan]"
TOPICS = {
    "memory": "Memory and layout",
    "arithmetic": "Arithmetic and parallelism",
    "operations": "Operations of networks",
    "numbers": "Numbers and derivatives",
    "hardware": "Hardware",
    "assignments": "Published assignments",
}
_BAR = 24


def _complete(incomplete: str) -> list[str]:
    from hwsim.catalog import lesson_names

    return [name for name in lesson_names() if name.startswith(incomplete)]


def lesson_command(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[LESSON]", help="Which one; without it, the list.", show_default=False, autocompletion=_complete
        ),
    ] = None,
    predict: Annotated[
        str | None, typer.Option("--predict", metavar="LETTER", help="Your prediction, so that nobody asks for it.")
    ] = None,
    answer: Annotated[
        Path | None, typer.Option("--answer", metavar="FILE", help="Grade an answer file; exit 1 unless all is right.")
    ] = None,
    questions: Annotated[bool, typer.Option("--questions", help="Print an answer file to fill in.")] = False,
    solution: Annotated[bool, typer.Option("--solution", help="Also tell the answers to the exercises.")] = False,
    plot: PlotFile = None,
    json_file: JsonFile = None,
) -> None:
    """Take a lesson: a question, your prediction, the runs, what they show, why, and exercises that are graded."""
    from hwsim.lessons import lesson

    output = check_output(json_file, plot, (name, answer))
    if name is None:
        output.show(_list_data, _print_list)
        return
    taken = lesson(name)
    if questions:
        print_plain(question_text(taken))
        return
    if answer is not None:
        from hwsim.lessons import grade, read_answers

        said = read_answers(answer, taken.spec.name)
        with spinner("grading"):
            graded = grade(taken, said)
        output.show(graded.to_dict, lambda: _print_grade(graded))
        if graded.score < 1:
            raise typer.Exit(1)
        return
    guess = _prediction(taken, predict, alone=output.alone)
    with spinner("simulating"):
        findings = taken.findings()
    output.show(lambda: lesson_data(taken, guess), lambda: _print(taken, guess, solution))
    if plot is not None:
        taken.plot(plot)
    broken = [finding for finding in findings if not finding.holds]
    if broken:
        raise CheckFailedError("\n".join(f"this does not hold: {f.claim.say} ({f.value.text})" for f in broken))


def lesson_data(taken: Lesson, guess: Prediction | None) -> dict[str, Any]:
    """The lesson as plain data."""
    from hwsim.results.metrics import metrics_of

    return {
        "lesson": taken.spec.name,
        "title": taken.spec.title,
        "prediction": None if guess is None else {"said": guess.said, "right": guess.is_right},
        "runs": {label: metrics_of(result) for label, result in taken.results.items()},
        "claims": [
            {"say": each.claim.say, "value": each.value.number, "text": each.value.text, "holds": each.holds}
            for each in taken.findings()
        ],
        "exercises": [exercise.name for exercise in taken.spec.exercises],
    }


def question_text(taken: Lesson) -> str:
    """An answer file with the questions as comments."""
    lines = [f"lesson: {taken.spec.name}", "answers:"]
    for exercise in taken.spec.exercises:
        lines += [f"  # {part}" for part in _words(exercise.ask)]
        lines += [f"  #   {letter}: {text}" for letter, text in exercise.choices.items()]
        lines.append(f"  {exercise.name}:")
    return "\n".join(lines)


def _words(text: str) -> list[str]:
    from textwrap import wrap

    return wrap(" ".join(text.split()), 100)


def _list_data() -> list[dict[str, Any]]:
    from hwsim.catalog import find_lesson, lesson_names, load_lesson_file

    specs = [load_lesson_file(find_lesson(name)) for name in lesson_names()]
    return [
        {"name": s.name, "title": s.title, "topic": s.topic, "source": s.source, "exercises": len(s.exercises)}
        for s in sorted(specs, key=lambda s: (list(TOPICS).index(s.topic), s.name))
    ]


def _print_list() -> None:
    console = out()
    rows = _list_data()
    width = max(len(row["name"]) for row in rows)
    topic = ""
    for row in rows:
        if row["topic"] != topic:
            topic = row["topic"]
            console.print(styled(("" if row is rows[0] else "\n") + "", (TOPICS[topic], "bold")))
        console.print(styled("  ", (f"hwsim lesson {row['name']:<{width}}", "cyan"), f"  {row['title']}"))


def _prediction(taken: Lesson, given: str | None, *, alone: bool) -> Prediction | None:
    """From the command line, or from whoever sits at the terminal; nothing where there is nobody, or who skips it."""
    asked = taken.spec.prediction
    if given is not None:
        return taken.predict(given)
    if asked is None or alone or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    _print_question(screen(), taken)
    while True:
        try:
            said = input(f"your prediction ({', '.join(asked.choices)}; Enter skips): ").strip().lower()
        except EOFError:
            return None
        if not said:
            return None
        try:
            return taken.predict(said)
        except InputError as error:
            err().print(str(error))


def _print_question(console: Console, taken: Lesson) -> None:
    from hwsim.lessons import paragraphs

    spec = taken.spec
    console.print(styled((spec.title, "bold")))
    for part in paragraphs(spec.question):
        wrapped(console, "", part, style="")
    if spec.source:
        wrapped(console, "", f"After: {spec.source}", style="dim")
    if spec.prediction is not None:
        wrapped(console, "\nPredict: ", " ".join(spec.prediction.ask.split()), style="bold")
        for letter, text in spec.prediction.choices.items():
            wrapped(console, f"  {letter}) ", text, style="")


def _print(taken: Lesson, guess: Prediction | None, solution: bool) -> None:
    from hwsim.lessons import FAILS, HOLDS, facts_table, finding_line, paragraphs, run_table
    from hwsim.lessons import solution as right_answer

    console, spec = screen(), taken.spec
    if guess is None or not sys.stdin.isatty():
        _print_question(console, taken)
    console.print()
    console.print(draw_table(run_table(taken)))
    _print_bars(console, taken)
    facts = facts_table(spec)
    if facts is not None and spec.facts is not None:
        console.print(styled("\n", (spec.facts.title, "bold")))
        console.print(draw_table(facts))
        wrapped(console, "source: ", spec.facts.source, style="dim")
    console.print(styled("\n", ("What the runs show", "bold underline")))
    for finding in taken.findings():
        wrapped(console, f"{HOLDS if finding.holds else FAILS} ", finding_line(finding), style="")
    if spec.prediction is not None:
        right = f"{spec.prediction.right}) {spec.prediction.choices[spec.prediction.right]}"
        if guess is None:
            wrapped(console, "prediction: ", f"it is {right}", style="")
        else:
            mark = "right" if guess.is_right else "not so"
            wrapped(console, "prediction: ", f"you said {guess.said}: {mark}; it is {right}", style="bold")
    console.print(styled("\n", ("Why", "bold underline")))
    for part in paragraphs(spec.explanation):
        wrapped(console, "", part, style="")
    if spec.exercises:
        console.print(styled("\n", ("Exercises", "bold underline")))
        for exercise in spec.exercises:
            wrapped(console, f"{exercise.name}: ", " ".join(exercise.ask.split()), style="")
            for letter, text in exercise.choices.items():
                wrapped(console, f"  {letter}) ", text, style="")
            if solution:
                said = "; ".join(filter(None, (right_answer(taken, exercise), exercise.because)))
                wrapped(console, "  = ", said, style="bold")
        how = f"hwsim lesson {spec.name} --questions > a.yaml, fill it in, hwsim lesson {spec.name} --answer a.yaml"
        wrapped(console, "graded by: ", how, style="dim")
    for command in spec.next:
        wrapped(console, "next: ", command, style="cyan")


def _print_bars(console: Console, taken: Lesson) -> None:
    """The first metric of the chart as bars, the longest run as long as the screen allows."""
    from hwsim.lessons import column_head, number_of, write_number

    metric = taken.spec.chart.metrics[0]
    amounts = {label: number_of(result, metric) for label, result in taken.results.items()}
    most = max(amounts.values())
    if len(amounts) < 2 or most <= 0:
        return
    width = max(map(len, amounts))
    console.print(f"\n{column_head(metric)}", style="dim")
    for label, amount in amounts.items():
        drawn = bar(amount / most, _BAR) or "▏"
        console.print(styled((f"{label:>{width}} ", "cyan"), f"{drawn} {write_number(metric, amount)}"))


def _print_grade(graded: Grade) -> None:
    console = screen()
    for mark in graded.marks:
        sign, style = ("✓", "green") if mark.right else ("✗", "red")
        console.print(styled((f"{sign} {mark.name}", style), "" if mark.said is None else f": {mark.said}"))
        if mark.word:
            wrapped(console, "    ", mark.word, style="dim")
    console.print(styled((f"{graded.right} of {counted(len(graded.marks), 'exercise')} right", "bold")))
