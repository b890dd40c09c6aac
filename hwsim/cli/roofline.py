"""`hwsim roofline`: what a machine can attain, and where workloads lie below it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hwsim.cli.arguments import JsonFile, PlotFile, Settings, check_output, pairs, spinner
from hwsim.cli.console import make_table, screen, styled
from hwsim.errors import HwsimError, InputError
from hwsim.record import NEVER_MARK
from hwsim.text import counted, digits, percent, rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from hwsim.result import RunResult
    from hwsim.results.plot.roofline import Roofline
    from hwsim.spec.machine import MachineSpec

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
    from hwsim.results.plot.roofline import make_roofline, plot_roofline
    from hwsim.sweep.ladder import NamedRun, run_named

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


def _print(machine: MachineSpec, roofline: Roofline, runs: dict[str, RunResult]) -> None:

    console = screen()
    console.print(styled((roofline.machine, "bold"), f", roofs for {counted(roofline.units, 'compute unit')}"))
    together: dict[float, list[str]] = {}
    for form, peak in roofline.ceilings.items():
        together.setdefault(peak, []).append(form)
    table = make_table("level", "bandwidth", *(f"ridge {', '.join(forms)}" for forms in together.values()))
    table.columns[0].no_wrap = True
    for level, bandwidth in roofline.roofs.items():
        table.add_row(level, rate(bandwidth, "B"), *(digits(peak / bandwidth) for peak in together))
    table.add_section()
    table.add_row("peak", "", *(rate(peak, "FLOP") for peak in together))
    console.width = max(console.width, 120)
    console.print(table)
    console.print("ridge: arithmetic intensity (flop/byte) from which on the level no longer limits", style="dim")
    if runs:
        console.print()
        console.print(_spot_table(machine, roofline, runs))
        for result in runs.values():
            console.print(styled((f"{result.workload}: {result.time.source}", "dim")), soft_wrap=True)


def _spot_table(machine: MachineSpec, roofline: Roofline, runs: dict[str, RunResult]) -> Table:
    """Each run against the roofs of the units that it uses."""
    from hwsim.results.plot.roofline import level_bandwidths, units_used

    levels = list(roofline.roofs)
    heads = ("workload", "speed", *(f"per {level} byte" for level in levels), "attainable", "of it", "under")
    table = make_table(*heads, left=(0, len(heads) - 1))
    table.columns[0].no_wrap = True
    for name, result in runs.items():
        own = {spot.level: spot.intensity for spot in roofline.spots if spot.name == name}
        roofs = level_bandwidths(machine, units_used(result))
        limits = {level: own[level] * roofs[level] for level in own if level in roofs}
        limits[str(result.resolved.workload["precision"])] = float(result.work.peak_flops_per_s)
        roof = min(limits, key=lambda limit: limits[limit])
        speed = float(result.work.flops_per_s)
        cells = [digits(own[level]) if level in own else "–" for level in levels]
        bar = _speed_bar(result)
        table.add_row(
            name, rate(speed, "FLOP") + bar, *cells, rate(limits[roof], "FLOP"), percent(speed, limits[roof]), roof
        )
    return table


def _speed_bar(result: RunResult) -> str:
    """The error bar of the time, as that of the speed."""
    from hwsim.record import interval_words
    from hwsim.results.plot.roofline import speed_ends

    ends = speed_ends(result)
    return f" {NEVER_MARK}" if ends is None else f" {interval_words(float(result.work.flops_per_s), ends)}"


def _data(roofline: Roofline) -> dict[str, object]:
    from dataclasses import asdict

    data = asdict(roofline)
    data["spots"] = [dict(spot) for spot in data["spots"]]
    return data
