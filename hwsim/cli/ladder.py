"""`hwsim ladder`: a story of the course in one command and one chart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwsim.cli.console import err, out, print_json, write_json
from hwsim.cli.show import Settings
from hwsim.cli.sweep_words import JsonFile, PlotFile, sort_words

if TYPE_CHECKING:
    from hwsim.results.result import RunResult

EXAMPLE = "Example: [cyan]hwsim ladder matmul --plot ladder.png[/cyan]   [cyan]hwsim ladder fusion[/cyan]"


def ladder_command(
    story_name: Annotated[
        str | None, typer.Argument(metavar="[STORY]", help="Which one; without it, the list.", show_default=False)
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MACHINES] [NAME=VALUE]...",
            help="Other machines than the story's own, and parameters to change, such as n=512.",
            show_default=False,
        ),
    ] = None,
    settings: Settings = None,
    plot: PlotFile = None,
    json_file: JsonFile = None,
) -> None:
    """Climb a ladder: the same computation in steps, with what each step brings."""
    from hwsim.cli.compare_screen import comparison_data, print_comparison
    from hwsim.cli.run import check_place, spinner
    from hwsim.results.plot.file import check_plot_file
    from hwsim.sweep.batch import run_tasks
    from hwsim.sweep.story import STORIES, find_story, story_tasks

    if story_name is None:
        for name, each in STORIES.items():
            out().print(f"  [cyan]hwsim ladder {name}[/cyan]  {each.title}. {each.question}", soft_wrap=True)
        return
    story = find_story(story_name)
    target = None if json_file in (None, "-") else Path(str(json_file)).expanduser()
    for option, path in (("--json", target), ("--plot", plot)):
        check_place(option, path)
    check_plot_file(plot)
    machines = [word for word in words or () if "=" not in word]
    changes = sort_words([word for word in words or () if "=" in word]).parameters
    chosen = tuple(name for word in machines for name in word.split(","))
    by_machine = story_tasks(story, chosen, changes, settings or ())
    with spinner("simulating"):
        refused: dict[str, str] = {}
        runs = {machine: run_tasks(tasks, refused=refused) for machine, tasks in by_machine.items()}
    for label, reason in refused.items():
        err().print(f"left out: {label}: {reason}", style="yellow", soft_wrap=True)
    rows: dict[tuple[str, ...], RunResult] = {
        (machine, step): result for machine, steps in runs.items() for step, result in steps.items()
    }
    if json_file == "-":
        print_json(comparison_data(rows, ("machine", "step")))
    else:
        out().print(f"[bold]{story.title}[/bold]. {story.question}", soft_wrap=True)
        for machine, steps in runs.items():
            if len(runs) > 1:
                out().print(f"\n{machine}")
            print_comparison({(step,): result for step, result in steps.items()}, ("step",))
    if target is not None:
        write_json(target, comparison_data(rows, ("machine", "step")))
    if plot is not None:
        _draw(story.title, runs, plot)


def _draw(title: str, runs: dict[str, dict[str, RunResult]], plot: Path) -> None:
    from hwsim.results.plot.ladder import plot_ladder
    from hwsim.results.plot.steps import plot_steps

    if len(runs) == 1:
        machine, steps = next(iter(runs.items()))
        one = len({result.machine for result in steps.values()}) == 1
        plot_ladder(steps, plot, f"{title}, on {machine}" if one else title)
    else:
        plot_steps(runs, plot, title)
