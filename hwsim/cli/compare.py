"""`hwsim compare`: machines by workloads, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hwsim.cli.console import err, print_json, write_json
from hwsim.cli.show import Settings
from hwsim.cli.sweep_words import JsonFile, PlotFile, sort_words
from hwsim.errors import InputError

EXAMPLE = "Example: [cyan]hwsim compare course_cpu,zen3 matmul_naive,matmul_simd,matmul_tiled n=50[/cyan]"


def compare_command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MACHINES] [WORKLOADS] [NAME=VALUES]...",
            help="Machines and workloads with commas between; parameters apply to all, and several values of one "
            "(precision=fp32,int8) are compared as well.",
            show_default=False,
        ),
    ] = None,
    settings: Settings = None,
    no_math: Annotated[bool, typer.Option("--no-math", help="Do not compute the answers.")] = False,
    plot: PlotFile = None,
    json_file: JsonFile = None,
) -> None:
    """Compare machines and workloads: every combination, with speed-ups against the first."""
    from hwsim.cli.compare_screen import comparison_data, print_comparison
    from hwsim.cli.run import check_place, spinner
    from hwsim.results.plot.compare import Entry, plot_compare
    from hwsim.results.plot.file import check_plot_file
    from hwsim.sweep.batch import Task, run_tasks
    from hwsim.sweep.request import MACHINE, WORKLOAD, make_request

    given = sort_words(words or ())
    request = make_request(given.machines, given.workloads, given.parameters, {})
    target = None if json_file in (None, "-") else Path(str(json_file)).expanduser()
    for option, path in (("--json", target), ("--plot", plot)):
        check_place(option, path)
    check_plot_file(plot)
    if request.count > MOST:
        raise InputError(f"{request.count:,} runs are too many to compare at a glance (up to {MOST}); use hwsim sweep")
    axes = [axis.name for axis in request.axes if axis.swept]
    heads = [MACHINE, WORKLOAD, *axes]
    tasks: dict[tuple[str, ...], Task] = {}
    for place in request.coordinates():
        names = tuple(str(place[head]) for head in heads)
        parameters = {axis.name: place[axis.name] for axis in request.axes}
        tasks[names] = Task(" ".join(names), names[0], names[1], parameters, tuple(settings or ()))
    with spinner("simulating"):
        refused: dict[str, str] = {}
        results = run_tasks(list(tasks.values()), math=not no_math, refused=refused)
    rows = {names: results[task.label] for names, task in tasks.items() if task.label in results}
    for label, reason in refused.items():
        err().print(f"left out: {label}: {reason}", style="yellow", soft_wrap=True)
    if json_file == "-":
        print_json(comparison_data(rows, heads))
    else:
        print_comparison(rows, heads)
    if target is not None:
        write_json(target, comparison_data(rows, heads))
    if plot is not None:
        several = len(given.machines) > 1
        entries = [
            Entry(names[0] if several else " ".join(names[1:]), " ".join(names[1:]) if several else names[0], result)
            for names, result in rows.items()
        ]
        plot_compare(entries, plot, "" if several else f"on {given.machines[0]}")


MOST = 60
"""More runs than this do not fit a table that one looks at."""
