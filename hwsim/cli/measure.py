"""`hwsim measure` and `hwsim calibrate`: loops on this computer, beside simulated ones, and as a machine file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwsim.cli.arguments import JsonFile, PlotFile, check_output, check_place, split_words, word_argument
from hwsim.cli.console import bars, make_table, out, styled
from hwsim.errors import InputError
from hwsim.files import write_text
from hwsim.units import digits, seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from hwsim.measure.loops import LoopTiming
    from hwsim.result import RunResult
    from hwsim.sweep.grid import Axis

MEASURE_EXAMPLE = (
    "Example: [cyan]hwsim measure matmul_tiled n=512 tile=32[/cyan]   [cyan]hwsim measure here.yaml triad[/cyan]   "
    "[cyan]hwsim measure sweep matmul_tiled n=512 tile=8..128:x2 --plot tiles.png[/cyan]"
)
CALIBRATE_EXAMPLE = (
    "Example: [cyan]hwsim calibrate here.yaml[/cyan]   then   [cyan]hwsim run here.yaml matmul_tiled[/cyan]"
)
SWEEP = "sweep"
Point = dict[str, Any]
Pair = tuple["LoopTiming", "RunResult"]


def measure_command(
    words: Annotated[
        list[str],
        word_argument(
            "[sweep] [MACHINE] WORKLOAD [KEY=VALUES]...",
            "A workload and its parameters; before it a machine file for this computer, such as calibrate writes; "
            "without one, the stock machine that is nearest to it. With sweep, a parameter may have several values "
            "(8,16,32 or 8..128:x2), and each combination is measured.",
        ),
    ],
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="How often the loops run; the fastest counts.")] = 15,
    warm: Annotated[
        bool, typer.Option("--warm", help="Leave in the caches what the repeat before left there.")
    ] = False,
    plot: PlotFile = None,
    json_file: JsonFile = None,
) -> None:
    """Compile a workload's loops with Numba, run them on this computer, and compare with the simulation."""
    from hwsim.measure.here import this_computer
    from hwsim.sweep.grid import make_axis

    sweep = words[0] == SWEEP
    names, given = split_words(words[sweep:], "write a parameter as key=value, such as n=256", "")
    if not 1 <= len(names) <= 2:
        raise InputError("name a workload, and before it a machine if this computer has a file of its own")
    axes = [make_axis(name, text) for name, text in given.items()]
    swept = [axis for axis in axes if axis.swept]
    if bool(swept) != sweep:
        if swept:
            raise InputError(f"{swept[0].name} has several values; write: hwsim measure sweep {' '.join(words)}")
        raise InputError("sweep: give a parameter several values, such as tile=8..128:x2")
    if plot is not None and not sweep:
        raise InputError("--plot: one point makes no curve; write: hwsim measure sweep WORKLOAD tile=8..128:x2 --plot")
    output = check_output(json_file, plot, words)
    machine = names[0] if len(names) == 2 else this_computer().nearest
    points = [dict(zip(given, values, strict=True)) for values in product(*(axis.values for axis in axes))]
    found = _measure(names[-1], machine, points, repeats, warm)

    def screen() -> None:
        if sweep:
            _print_sweep(swept, points, found)
        else:
            _print_one(f"{names[-1]} {' '.join(word for word in words if '=' in word)}".rstrip(), *found[0])

    rows = [_data(names[-1], point, *pair) for point, pair in zip(points, found, strict=True)]
    output.show(lambda: rows if sweep else rows[0], screen)
    if plot is not None:
        _plot(names[-1], machine, swept, points, found, plot)


def _measure(workload: str, machine: str, points: list[Point], repeats: int, warm: bool) -> list[Pair]:
    from hwsim.measure.loops import Bench, simulate

    found = []
    with Bench() as bench, _progress("measuring", len(points)) as advance:
        for point in points:
            measured = bench.measure(workload, point, machine, repeats=repeats, cold=not warm)
            found.append((measured, simulate(workload, point, machine)))
            advance()
    return found


def _data(workload: str, parameters: Point, measured: LoopTiming, simulated: RunResult) -> dict[str, Any]:
    return {
        "workload": workload, "parameters": parameters, "machine": simulated.machine,
        "measured_s": measured.seconds, "measured_median_s": measured.median, "repeats": measured.repeats,
        "simulated_s": simulated.time_s, "ratio": simulated.time_s / measured.seconds,
        "counted": dict(measured.counts), "simulated_counts": _simulated_counts(simulated),
        "uncounted": measured.uncounted,
    }  # fmt: skip


def _simulated_counts(result: RunResult) -> dict[str, int]:
    """What the simulation counted of the events that processors count, by the names of those."""
    caches = list(result.caches.values())
    return {
        "instructions": sum(result.work.instructions.values()),
        "loads": result.work.loads,
        "l1 misses": caches[0].read_misses,
        "last cache misses": caches[-1].read_misses,
    }


def _print_one(title: str, measured: LoopTiming, simulated: RunResult) -> None:
    console = out()
    console.print(title)
    text = f"fastest of {measured.repeats}, the median {measured.spread:.0%} slower"
    console.print(f"  measured   {seconds(measured.seconds)}   {text}")
    console.print(f"  simulated  {seconds(simulated.time_s)}   on {simulated.machine}")
    console.print(f"  simulated over measured: {digits(simulated.time_s / measured.seconds)}")
    if not measured.counts:
        console.print(f"  counters of the processor cannot be read here ({measured.uncounted})")
        return
    alike = _simulated_counts(simulated)
    table = make_table("count", "measured", "simulated")
    for name, count in measured.counts.items():
        table.add_row(name, f"{count:,}", f"{alike[name]:,}" if name in alike else "–")
    console.print(table)


def _print_sweep(swept: list[Axis], points: list[Point], found: list[Pair]) -> None:
    table = make_table(*(axis.name for axis in swept), "measured", "spread", "simulated", "simulated / measured")
    for point, (measured, simulated) in zip(points, found, strict=True):
        table.add_row(
            *(str(point[axis.name]) for axis in swept), seconds(measured.seconds), f"{measured.spread:.0%}",
            seconds(simulated.time_s), digits(simulated.time_s / measured.seconds),
        )  # fmt: skip
    out().print(table)
    best = [min(range(len(points)), key=lambda n: times[n]) for times in _times(found)]
    where = [" ".join(f"{axis.name}={points[number][axis.name]}" for axis in swept) for number in best]
    text = f"{where[0]} in both" if best[0] == best[1] else f"{where[0]} measured, {where[1]} simulated"
    out().print(f"fastest: {text}; on {found[0][1].machine}")


def _times(found: list[Pair]) -> tuple[list[float], list[float]]:
    return [measured.seconds for measured, _ in found], [simulated.time_s for _, simulated in found]


def _plot(workload: str, machine: str, swept: list[Axis], points: list[Point], found: list[Pair], path: Path) -> None:
    """Both curves over the first parameter that varies; a pair of them for each value of the others."""
    from hwsim.results.plot.sweep import Curve, plot_lines
    from hwsim.sweep.grid import as_number

    first, *others = swept
    numbers = [as_number(value) for value in first.values]
    places = range(len(numbers)) if None in numbers else numbers
    lines = []
    for values in product(*(axis.values for axis in others)):
        these = dict(zip((axis.name for axis in others), values, strict=True))
        chosen = [n for n, point in enumerate(points) if all(point[name] == value for name, value in these.items())]
        ending = "".join(f", {name}={value}" for name, value in these.items())
        for name, times in zip(("measured", "simulated"), _times(found), strict=True):
            time = tuple(times[n] for n in chosen)
            lines.append(Curve(name + ending, first.values, tuple(float(x or 0) for x in places), {"time_s": time}))
    plot_lines(lines, ["time_s"], first.name, path, title=f"{workload}, on this computer and on {Path(machine).stem}")
    out().print(f"drawn: {path}")


@contextmanager
def _progress(doing: str, total: int | None) -> Iterator[Callable[..., None]]:
    """A bar on a terminal; what it gives is called when something is done, or with the total when that is known."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=bars(), transient=True) as bar:
        task = bar.add_task(doing, total=total)

        def advance(total: int | None = None) -> None:
            bar.update(task, total=total) if total is not None else bar.advance(task)

        yield advance


def calibrate_command(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.yaml", help="Where to write the machine; its name is the file's.")
    ] = Path("here.yaml"),
    json_file: JsonFile = None,
) -> None:
    """Measure this computer with small loops, in less than a minute, and write it down as a machine file."""
    from hwsim.catalog import load_machine
    from hwsim.measure.calibrate import Calibrator, machine_file
    from hwsim.measure.here import this_computer

    if file.suffix not in (".yaml", ".yml") or not re.fullmatch(r"[a-z][a-z0-9_]*", file.stem):
        raise InputError(f"{file}: a machine file ends in .yaml, and its name is lower-case letters, digits and _")
    output = check_output(json_file, None, ())
    check_place("FILE", file)
    computer = this_computer()
    calibrator = Calibrator(computer, load_machine(computer.nearest).spec)
    told = []
    with _progress("measuring", None) as advance:
        for message in calibrator.run():
            if isinstance(message, int):
                advance(message)
            elif message is None:
                advance()
            else:
                told.append(message)
    found = calibrator.result
    write_text(file, machine_file(found, file.stem))

    def screen() -> None:
        for news in told:
            out().print(styled("  ", (f"{news.name:22}", "cyan"), news.text))
        for text in found.left_out:
            out().print(styled("  ", ("left out", "yellow"), f": {text}"))
        out().print(f"{file}: as {computer.nearest}, with what was measured; next: hwsim measure {file} matmul_tiled")

    output.show(
        lambda: {
            "file": str(file), "nearest": computer.nearest, "clock_hz": found.clock_hz, "core": found.core,
            "levels": found.levels, "left_out": found.left_out,
        },
        screen,
    )  # fmt: skip
