"""`hwsim compare`: machines by workloads, side by side; `hwsim ladder`: the steps of a ladder, in the same table.

`hwsim roofline`: what a machine can attain, and where workloads lie below it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwsim.cli.arguments import JsonFile, PlotFile, Settings, check_output, pairs, sort_words, spinner, word_argument
from hwsim.cli.console import err, make_table, out, styled, wrapped
from hwsim.errors import HwsimError, InputError
from hwsim.record import ALIKE, ALIKE_WORDS, NEVER_MARK, NEVER_WORDS, within_bars
from hwsim.results.metrics import (
    BOUND,
    MEMORY_SHARE,
    SPEED_UP,
    TRAFFIC,
    UNFIT,
    far_traffic,
    fits,
    memory_share,
    metrics_of,
    shown,
    throughput,
    write,
)
from hwsim.units import counted, digits, format_title, percent, rate, ratio

if TYPE_CHECKING:
    from rich.table import Table

    from hwsim.result import RunResult
    from hwsim.results.plot.run import Roofline
    from hwsim.spec.machine import MachineSpec
    from hwsim.sweep.compare import Ladder

COMPARE_EXAMPLE = "Example: [cyan]hwsim compare course_cpu,zen3 matmul_naive,matmul_simd,matmul_tiled n=50[/cyan]"


def compare_command(
    words: Annotated[
        list[str] | None,
        word_argument(
            "[MACHINES] [WORKLOADS] [NAME=VALUES]...",
            "Machines and workloads with commas between; parameters apply to all, and several values of one "
            "(precision=fp32,int8) are compared as well.",
        ),
    ] = None,
    settings: Settings = None,
    no_math: Annotated[bool, typer.Option("--no-math", help="Do not compute the answers.")] = False,
    plot: PlotFile = None,
    json_file: JsonFile = None,
) -> None:
    """Compare machines and workloads: every combination, with speed-ups against the first.

    Several machines compute in one precision, the narrowest that all have, and with all their cores, unless you say
    otherwise (precision=, parallel=none). A speed-up is against the first row of the same workload.
    """
    from hwsim.results.plot.compare import ComparedRun, plot_compare
    from hwsim.sweep.compare import baselines, like_with_like, named_runs, read_by_some, run_named
    from hwsim.sweep.grid import make_request

    given = sort_words(words or ())
    request = make_request(given.machines, given.workloads, given.parameters, {})
    output = check_output(json_file, plot, words or ())
    if request.count > MOST_RUNS:
        raise InputError(
            f"{request.count:,} runs are too many to compare at a glance (up to {MOST_RUNS}); use hwsim sweep"
        )
    heads, tasks = named_runs(request, tuple(settings or ()))
    with spinner("simulating"):
        refused: dict[str, str] = {}
        mine, left_out = read_by_some(list(tasks.values()))
        alike, notes = like_with_like(mine)
        results = run_named(alike, math=not no_math, refused=refused)
    rows = {names: results[task.label] for names, task in tasks.items() if task.label in results}
    for machine, unread in left_out.items():
        err().print(f"{', '.join(unread)} means nothing on {machine}: left out there", style="dim", soft_wrap=True)
    _print_refused(refused)
    output.show(lambda: comparison_data(rows, heads), lambda: print_comparison(rows, heads, notes=notes))
    if plot is not None:
        several = len(given.machines) > 1
        against = baselines(list(rows.values()))
        named = [(first, " ".join(rest)) if several else (" ".join(rest), first) for first, *rest in rows]
        runs = zip(named, rows.values(), against, strict=True)
        entries = [ComparedRun(*names, result, baseline) for names, result, baseline in runs]
        plot_compare(entries, plot, "" if several else f"on {given.machines[0]}")


MOST_RUNS = 60
"""More runs than this do not fit a table that one looks at."""


def print_comparison(
    rows: Mapping[tuple[str, ...], RunResult],
    heads: Sequence[str],
    first: RunResult | None = None,
    notes: Sequence[str] = (),
) -> None:
    """`rows` by their names, one for each head; speed-ups are against `first`, or the first row of the same work."""
    from hwsim.results.explanation import about_numbers

    results = list(rows.values())
    against = _baselines(results, first)
    console = out()
    any_model = any(throughput(metrics_of(result)) for result in results)
    cells = [
        {**dict(zip(heads, names, strict=True)), **_cells(result, baseline, heads, any_model)}
        for (names, result), baseline in zip(rows.items(), against, strict=True)
    ]
    for number, result in enumerate(results):
        if [each is result for each in against].count(True) == 1 and against[number] is result and len(results) > 1:
            cells[number]["speed-up"] = "–"  # no other row does as much
    same = {name: cells[0][name] for name in cells[0] if name in _SAID_ONCE and len({row[name] for row in cells}) == 1}
    kept = [name for name in cells[0] if name not in same or len(cells) == 1]
    if not set(heads) & set(kept):  # rows that differ in nothing that has a name
        kept = [heads[0], *kept]
    if len(cells) > 1 and (words := ", ".join(_say_once(*each) for each in same.items() if each[1] != "–")):
        console.print(f"all rows: {words}", style="dim")
    named = [number for number, name in enumerate(kept) if name in (*heads, "precision", "size", "on")]
    table = make_table(*kept, left=[*named, *(number for number, name in enumerate(kept) if name == "bound by")])
    table.names = max(1, len([name for name in kept if name in heads]))
    for row in cells:
        table.add_row(*(row[name] for name in kept))
    console.print(table)
    for note in [*notes, *_unlike(results, against), *about_numbers(results)]:
        wrapped(console, "note  ", note, style="dim")
    for result in results:
        if not fits(metrics_of(result)):
            share = write(MEMORY_SHARE, memory_share(result))
            wrapped(console, "note  ", f"{UNFIT} {_title_of(result, rows)} does not fit: {share} of the memory of "
                    f"{result.machine}; the time is that of a machine with more", style="bold red")  # fmt: skip
    if any(is_alike(*pair) for pair in zip(results, against, strict=True)):
        wrapped(console, "note  ", ALIKE_WORDS, style="dim")
    if not all(bar.is_known for result in results for bar in (result.time, result.energy_bar) if bar is not None):
        wrapped(console, "note  ", NEVER_WORDS, style="dim")


def _title_of(result: RunResult, rows: Mapping[tuple[str, ...], RunResult]) -> str:
    return " ".join(next(names for names, each in rows.items() if each is result))


def is_alike(result: RunResult, baseline: RunResult) -> bool:
    """Whether the times of two runs cannot be told apart by what is known of their errors."""
    return result is not baseline and bool(within_bars(result.time.ends, baseline.time.ends))


def _say_once(name: str, value: str) -> str:
    return f"{name} {value}" if name == "error" else value


_SAID_ONCE = ("machine", "workload", "precision", "size", "on", "error")
"""Columns that are left out where they say the same in every row: one line above the table says it."""


def _baselines(results: Sequence[RunResult], first: RunResult | None = None) -> list[RunResult]:
    from hwsim.sweep.compare import baselines

    return baselines(results) if first is None else [first] * len(results)


def _unlike(results: Sequence[RunResult], against: Sequence[RunResult]) -> list[str]:
    """What a speed-up would hide: rows that are measured against another one than the first."""
    if all(each is against[0] for each in against):
        return []
    if len({result.machine for result in results}) > 1:
        return ["speed-up is against the first row of the same workload and size"]
    return ["speed-up is against the first row that does as much work; – where there is no other"]


def _print_refused(refused: Mapping[str, str]) -> None:
    for label, reason in refused.items():
        err().print(f"left out: {label}: {reason}", style="yellow", soft_wrap=True)


def comparison_data(
    rows: Mapping[tuple[str, ...], RunResult], heads: Sequence[str], first: RunResult | None = None
) -> list[dict[str, Any]]:
    """The same as plain data."""
    from hwsim.results.explanation import explain

    return [
        {"precision": _precision(result), "on": explain(result).used, **dict(zip(heads, names, strict=True)),
         "speed_up": speed_up(result, baseline),
         "within_bars": within_bars(result.time.ends, baseline.time.ends) if result is not baseline else None,
         "bound": explain(result).bound.short, **metrics_of(result)}
        for (names, result), baseline in zip(rows.items(), _baselines(list(rows.values()), first), strict=True)
    ]  # fmt: skip


def speed_up(result: RunResult, baseline: RunResult) -> float | None:
    """How many times as fast a run is as the one it is compared with."""
    return baseline.time_s / result.time_s if result.time_s else None


def _precision(result: RunResult) -> str:
    return format_title(result.resolved.workload["precision"])


_FEW_SIZES = 4
"""Of more sizes than these, those that are 1 are left out: batches and strides that change nothing."""


def _size(result: RunResult, heads: Sequence[str]) -> str:
    """What a run was given to do, as it would be typed; what is a column of its own is left out."""
    sizes = result.resolved.workload.get("sizes", {})
    if about := result.work.use.get("model"):
        lengths = ("prompt", "generate") if "tokens_per_s" in about["metrics"] else ()
        sizes = {name: about[name] for name in (*lengths, "batch")}
    usual = (None, 0) if len(sizes) <= _FEW_SIZES else (None, 0, 1)
    said = [f"{name}={value}" for name, value in sizes.items() if value not in usual and name not in heads]
    return " ".join(said) or "–"


def _cells(result: RunResult, baseline: RunResult, heads: Sequence[str], any_model: bool) -> dict[str, str]:
    """What each column says of a run: its precision, the units that took part, its metrics with speed-up beside time
    and traffic among them, and what decides."""
    from hwsim.results.explanation import explain, with_bar

    row, far = metrics_of(result), far_traffic(result)
    cells = {(metric.column, metric.head or metric.title): with_bar(metric.name, result) for metric in shown("compare")}
    faster = speed_up(result, baseline)
    mark = f" {ALIKE}" if is_alike(result, baseline) else ""
    cells[SPEED_UP, "speed-up"] = "–" if faster is None else ratio(faster) + mark
    cells[TRAFFIC, "traffic"] = write(far, row.get(far))
    if any_model:
        speed = throughput(row)
        cells[BOUND, "throughput"] = write(speed, row.get(speed))
    if not fits(row):
        place = next(place for place in cells if place[1] == "memory")
        cells[place] += f" {UNFIT}"
    why = explain(result)
    names = {"precision": _precision(result)} if "precision" not in heads else {}
    names["size"] = _size(result, heads)
    names["on"] = why.used.partition(",")[0]
    cells[BOUND, "bound by"] = why.bound.short
    return names | {head: cells[column, head] for column, head in sorted(cells)}


LADDER_EXAMPLE = "Example: [cyan]hwsim ladder matmul --plot ladder.png[/cyan]   [cyan]hwsim ladder cuda[/cyan]"


def ladder_command(
    ladder_name: Annotated[
        str | None, typer.Argument(metavar="[LADDER]", help="Which one; without it, the list.", show_default=False)
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MACHINES] [NAME=VALUE]...",
            help="Other machines than the ladder's own, and parameters to change, such as n=512.",
            show_default=False,
        ),
    ] = None,
    settings: Settings = None,
    no_math: Annotated[bool, typer.Option("--no-math", help="Do not compute the answers.")] = False,
    plot: PlotFile = None,
    json_file: JsonFile = None,
) -> None:
    """Climb a ladder: the same computation in steps, with what each step brings."""
    from hwsim.sweep.compare import LADDERS, find_ladder, ladder_runs, run_named

    if ladder_name is None:
        for name, each in LADDERS.items():
            out().print(
                styled("  ", (f"hwsim ladder {name}", "cyan"), f"  {each.title}. {each.question}"), soft_wrap=True
            )
        return
    ladder = find_ladder(ladder_name)
    output = check_output(json_file, plot, words or ())
    machines = [word for word in words or () if "=" not in word]
    changes = sort_words([word for word in words or () if "=" in word]).parameters
    chosen = tuple(name for word in machines for name in word.split(","))
    by_machine = ladder_runs(ladder, chosen, changes, settings or ())
    with spinner("simulating"):
        refused: dict[str, str] = {}
        math = ladder.math and not no_math
        runs = {machine: run_named(tasks, math=math, refused=refused) for machine, tasks in by_machine.items()}
    _print_refused(refused)
    output.show(
        lambda: [
            entry
            for machine, steps in runs.items()
            for entry in comparison_data(
                {(machine, step): result for step, result in steps.items()},
                ("machine", "step"),
                next(iter(steps.values())),
            )
        ],
        lambda: _print_story(ladder, runs),
    )
    if plot is not None:
        _draw(ladder.title, runs, plot)


def _print_story(ladder: Ladder, runs: Mapping[str, Mapping[str, RunResult]]) -> None:
    known = {rung.name for rung in ladder.rungs}
    others = any(step not in known for steps in runs.values() for step in steps)
    question = "What does each step bring on this machine?" if others else ladder.question
    out().print(styled((ladder.title, "bold"), f". {question}"), soft_wrap=True)
    for machine, steps in runs.items():
        if len(runs) > 1:
            out().print(f"\n{machine}")
        first = next(iter(steps.values()))
        print_comparison({(step,): result for step, result in steps.items()}, ("step",), first)
        if nothing := _nothing_to_see(machine, list(steps.values())):
            wrapped(out(), "note  ", nothing, style="dim")


def _nothing_to_see(machine: str, steps: Sequence[RunResult]) -> str:
    """Why the steps of a ladder hardly differ on a machine, or nothing where they do."""
    first, last = steps[0], steps[-1]
    times = [step.time_s for step in steps]
    if len(steps) < 2 or max(times) > NO_GAIN * min(times):
        return ""
    if len({_precision(step) for step in steps}) > 1:
        return (
            f"{machine} takes as long in each of these formats: this ladder is for machines that gain from fewer bits"
        )
    if len({(step.cycles, step.energy_j) for step in steps}) == 1:
        return f"{machine} chooses its own loops, whatever those of the program: this ladder is for machines with cores"
    moved, moved_last = (metrics_of(step).get(far_traffic(step)) for step in (first, last))
    if moved == moved_last and first.peak_memory_bytes > last.peak_memory_bytes:
        return (
            f"at this size {machine} keeps on the chip what one step leaves to the next: a larger one shows the saving"
        )
    return ""


NO_GAIN = 1.05
"""Steps whose times differ by less than this show nothing."""


def _draw(title: str, runs: dict[str, dict[str, RunResult]], plot: Path) -> None:
    from hwsim.results.plot.compare import plot_ladder, plot_steps

    if len(runs) == 1:
        machine, steps = next(iter(runs.items()))
        one = len({result.machine for result in steps.values()}) == 1
        plot_ladder(steps, plot, f"{title}, on {machine}" if one else title)
    else:
        plot_steps(runs, plot, title)


ROOFLINE_EXAMPLE = (
    "Example: [cyan]hwsim roofline course_cpu matmul_naive,matmul_simd n=256 add:n=1048576 --plot roofline.png[/cyan]"
)

PROBE = "matmul"
"""The workload that every machine runs: it tells the peak rate of each format."""


def roofline_command(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="MACHINE [WORKLOADS]... [NAME=VALUE]...",
            help="A machine, workloads to put below its roofs, and their parameters: n=256 for all of them, "
            "add:n=1048576 for one.",
        ),
    ],
    settings: Settings = None,
    no_math: Annotated[bool, typer.Option("--no-math", help="As it always is: a roofline needs no answers.")] = False,
    plot: PlotFile = None,
    json_file: JsonFile = None,
) -> None:
    """Show one roof per memory level and per number format, with runs where their simulated traffic puts them."""
    from hwsim.api import resolve_machine
    from hwsim.results.plot.run import make_roofline, plot_roofline
    from hwsim.sweep.compare import NamedRun, run_named

    output = check_output(json_file, plot, words)
    names, common, own = sort_sizes(words)
    if not names:
        raise InputError("give a machine first, such as hwsim roofline course_cpu matmul_tiled")
    machine = resolve_machine(names[0], settings or ())
    tasks = [
        NamedRun(name, names[0], name, {**common, **own.get(name, {})}, tuple(settings or ()))
        for name in dict.fromkeys(names[1:])
    ]
    with spinner("simulating"):
        runs = run_named(tasks, math=False)
        roofline = make_roofline(machine, runs, probes(machine))
    output.show(lambda: _data(roofline), lambda: _print(machine, roofline, runs))
    if plot is not None:
        plot_roofline(roofline, plot)


def sort_sizes(words: Sequence[str]) -> tuple[list[str], dict[str, str], dict[str, dict[str, str]]]:
    """Names, parameters of all workloads, and parameters of one: ``add:n=1048576`` or ``matmul:n=512,k=64``."""
    hint = "write a parameter as name=value, such as n=256"
    names: list[str] = []
    common: list[str] = []
    own: dict[str, dict[str, str]] = {}
    for word in words:
        name, colon, rest = word.partition(":")
        if colon and "=" not in name:
            names.append(name)
            own[name] = pairs(rest.split(","), hint)
        elif "=" in word:
            common.append(word)
        else:
            names += [name for name in word.split(",") if name]
    return names, pairs(common, hint), own


def probes(machine: MachineSpec) -> dict[str, RunResult]:
    """A tiny product in each format that the machine has."""
    from hwsim.api import resolve_workload, run_all
    from hwsim.spec.fields import literals
    from hwsim.spec.workload import WorkloadSpec

    found = {}
    resolve_workload(PROBE, {})
    for form in literals(WorkloadSpec.model_fields["precision"].annotation):
        try:
            run = run_all(machine, PROBE, math=False, parameters={"n": 16, "precision": form})
        except HwsimError:
            continue  # a format that this machine does not compute in has no ceiling
        found[str(form)] = run.result
    return found


_ROOFLINE_WIDTH = 120
"""Levels of a machine and its formats take more room than other tables, where a terminal has it."""


def _print(machine: MachineSpec, roofline: Roofline, runs: dict[str, RunResult]) -> None:
    from hwsim.numerics.format import operation_unit

    console = out()
    console.width = min(console.width, _ROOFLINE_WIDTH)
    console.print(styled((roofline.machine, "bold"), f", roofs for {counted(roofline.units, 'compute unit')}"))
    together: dict[tuple[float, str], list[str]] = {}
    for form, peak in roofline.ceilings.items():
        together.setdefault((peak, operation_unit(form)), []).append(form)
    table = make_table("level", "bandwidth", *(f"ridge {', '.join(forms)}" for forms in together.values()))
    table.columns[0].no_wrap = True
    for level, bandwidth in roofline.roofs.items():
        table.add_row(level, rate(bandwidth, "B"), *(digits(peak / bandwidth) for peak, _ in together))
    table.add_section()
    table.add_row("peak", "", *(rate(*peak) for peak in together))
    console.print(table)
    console.print("ridge: arithmetic intensity (operations/byte) from which on the level no longer limits", style="dim")
    if any(unit.column_bytes is not None for unit in machine.compute):
        console.print(
            f"{machine.memory[-1].name}: inside its banks, where the units are; its pins have less", style="dim"
        )
    if runs:
        console.print()
        console.print(_spot_table(machine, roofline, runs))
        for result in runs.values():
            console.print(styled((f"{result.workload}: {result.time.source}", "dim")), soft_wrap=True)


def _spot_table(machine: MachineSpec, roofline: Roofline, runs: dict[str, RunResult]) -> Table:
    """Each run against the roofs of the units that it uses."""
    from hwsim.numerics.format import operation_unit
    from hwsim.results.plot.run import level_bandwidths, units_used

    levels = list(roofline.roofs)
    heads = (
        "workload",
        "speed",
        "error bar",
        *(f"per {level} byte" for level in levels),
        "attainable",
        "of it",
        "under",
    )
    table = make_table(*heads, left=(0, len(heads) - 1))
    table.columns[0].no_wrap = True
    for name, result in runs.items():
        own = {spot.level: spot.intensity for spot in roofline.spots if spot.name == name}
        roofs = level_bandwidths(machine, units_used(result))
        limits = {level: own[level] * roofs[level] for level in own if level in roofs}
        limits[str(result.resolved.workload["precision"])] = float(result.peak_flops_per_s)
        roof = min(limits, key=lambda limit: limits[limit])
        speed = float(result.work.flops_per_s)
        cells = [digits(own[level]) if level in own else "–" for level in levels]
        bar, unit = _speed_bar(result), operation_unit(result.resolved.workload["precision"])
        table.add_row(
            name, rate(speed, unit), bar, *cells, rate(limits[roof], unit), percent(speed, limits[roof]), roof
        )
    return table


def _speed_bar(result: RunResult) -> str:
    """The error bar of the time, as that of the speed."""
    from hwsim.record import interval_words
    from hwsim.results.plot.run import speed_ends

    ends = speed_ends(result)
    return NEVER_MARK if ends is None else interval_words(float(result.work.flops_per_s), ends)


def _data(roofline: Roofline) -> dict[str, object]:
    from dataclasses import asdict

    data = asdict(roofline)
    data["spots"] = [dict(spot) for spot in data["spots"]]
    return data
