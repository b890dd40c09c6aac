"""`hwsim measure` and `hwsim calibrate`: loops on this computer, beside simulated ones, and as a machine file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwsim.cli.arguments import TELL_EVERY_S, JsonFile, PlotFile, check_output, check_place, split_words, word_argument
from hwsim.cli.console import bars, err, make_table, out, styled
from hwsim.errors import InputError
from hwsim.files import write_text
from hwsim.units import digits, seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from hwsim.measure.here import Computer
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
WITHIN = 1.5
KNOWN = "54 of 56 loops measured on a Zen 4"
"""How far simulated and measured times lie apart, and which were compared: docs/how-to/measure-your-computer.md."""


@dataclass(frozen=True)
class Compared:
    """One point: what it took here, and what it takes in simulations."""

    measured: LoopTiming
    simulated: RunResult
    """As the compiler left the loops."""
    fused: RunResult
    """As `hwsim run` simulates them; the same, but for scalar loops whose products and sums a core fuses."""

    @property
    def ratio(self) -> float:
        return self.simulated.time_s / self.measured.seconds

    @property
    def factor(self) -> float:
        """How far the two are apart, whichever is longer."""
        return max(self.ratio, 1 / self.ratio)

    @property
    def differs(self) -> bool:
        """Whether `hwsim run` prints another time."""
        return seconds(self.fused.time_s) != seconds(self.simulated.time_s)


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
    own = this_computer() if len(names) == 1 else None
    machine = own.nearest if own is not None else names[0]
    points = [dict(zip(given, values, strict=True)) for values in product(*(axis.values for axis in axes))]
    found = _measure(names[-1], machine, points, repeats, warm)

    def screen() -> None:
        if sweep:
            _print_sweep(swept, points, found)
        else:
            _print_one(_title(names[-1], points[0], found[0].simulated), found[0])
        out().print(_standing(machine, own), style="dim", soft_wrap=True)

    rows = [_data(names[-1], point, each) for point, each in zip(points, found, strict=True)]
    output.show(lambda: rows if sweep else rows[0], screen)
    if plot is not None:
        _plot(names[-1], machine, swept, points, found, plot)


def _measure(workload: str, machine: str, points: list[Point], repeats: int, warm: bool) -> list[Compared]:
    from hwsim.measure.loops import Bench, simulate, simulate_fused

    found = []
    with Bench() as bench, _telling(workload, points) as (doing, advance):
        for point in points:
            doing("measuring")
            measured = bench.measure(workload, point, machine, repeats=repeats, cold=not warm)
            doing("simulating")
            simulated = simulate(workload, point, machine)
            found.append(Compared(measured, simulated, simulate_fused(workload, point, machine, simulated)))
            advance()
    return found


def _data(workload: str, parameters: Point, each: Compared) -> dict[str, Any]:
    measured, simulated = each.measured, each.simulated
    return {
        "workload": workload, "parameters": parameters, "machine": simulated.machine,
        "measured_s": measured.seconds, "measured_median_s": measured.median, "repeats": measured.repeats,
        "simulated_s": simulated.time_s, "ratio": each.ratio, "run_s": each.fused.time_s,
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


def _title(workload: str, given: Point, result: RunResult) -> str:
    """The workload with what was given, and with the sizes that were not."""
    from hwsim.sweep.grid import typed

    sizes = result.resolved.workload.get("sizes", {})
    rest = {name: value for name, value in sizes.items() if value is not None}
    return " ".join([workload, *(f"{name}={typed(value)}" for name, value in (rest | given).items())])


def _standing(machine: str, own: Computer | None) -> str:
    """Which machine file was simulated, and how to get one of this computer where it is none."""
    from hwsim.catalog import machine_names

    if machine not in machine_names():
        return f"simulated on {machine}"
    which = f"the stock machine nearest to this computer ({own.model})" if own is not None else "a stock machine"
    return (
        f"{machine} is {which}; hwsim calibrate here.yaml makes a file of this computer, for: hwsim measure here.yaml …"
    )


def _verdict(each: Compared) -> str:
    if each.factor <= WITHIN:
        return f"within a factor of {WITHIN:g}, as {KNOWN}"
    return f"a factor of {digits(each.factor)} apart; {KNOWN} lie within {WITHIN:g}"


def _print_one(title: str, each: Compared) -> None:
    console = out()
    measured, simulated = each.measured, each.simulated
    console.print(title)
    text = f"fastest of {measured.repeats}, the median {measured.spread:.0%} slower"
    console.print(f"  measured   {seconds(measured.seconds)}   {text}")
    console.print(f"  simulated  {seconds(simulated.time_s)}   on {simulated.machine}")
    if each.differs:
        why = f"{_APART}, which it simulates fused"
        console.print(f"  hwsim run  {seconds(each.fused.time_s)}   {why}", soft_wrap=True)
    console.print(f"  simulated over measured: {digits(each.ratio)}, {_verdict(each)}")
    if not measured.counts:
        console.print(f"  counters of the processor cannot be read here ({measured.uncounted})")
        return
    alike = _simulated_counts(simulated)
    table = make_table("count", "measured", "simulated")
    for name, count in measured.counts.items():
        table.add_row(name, f"{count:,}", f"{alike[name]:,}" if name in alike else "–")
    console.print(table)


_APART = "the compiler leaves multiplications and additions of scalar loops apart"


def _print_sweep(swept: list[Axis], points: list[Point], found: list[Compared]) -> None:
    table = make_table(*(axis.name for axis in swept), "measured", "spread", "simulated", "simulated / measured")
    for point, each in zip(points, found, strict=True):
        table.add_row(
            *(str(point[axis.name]) for axis in swept), seconds(each.measured.seconds), f"{each.measured.spread:.0%}",
            seconds(each.simulated.time_s), digits(each.ratio),
        )  # fmt: skip
    out().print(table)
    best = [min(range(len(points)), key=lambda n: times[n]) for times in _times(found)]
    where = [" ".join(f"{axis.name}={points[number][axis.name]}" for axis in swept) for number in best]
    text = f"{where[0]} in both" if best[0] == best[1] else f"{where[0]} measured, {where[1]} simulated"
    out().print(f"fastest: {text}; on {found[0].simulated.machine}")
    near, furthest = sum(each.factor <= WITHIN for each in found), max(each.factor for each in found)
    apart = f"{near} of {len(found)} within a factor of {WITHIN:g}, the furthest {digits(furthest)} apart"
    out().print(f"simulated over measured: {apart}; {KNOWN} lie within {WITHIN:g}", soft_wrap=True)
    if other := [each for each in found if each.differs]:
        low, *_, high = sorted([each.fused.time_s / each.simulated.time_s for each in other] * 2)
        times = digits(low) if digits(low) == digits(high) else f"{digits(low)} to {digits(high)}"
        out().print(f"{_APART}; hwsim run simulates them fused: {times} times as long", soft_wrap=True)


def _times(found: list[Compared]) -> tuple[list[float], list[float]]:
    return [each.measured.seconds for each in found], [each.simulated.time_s for each in found]


def _plot(
    workload: str, machine: str, swept: list[Axis], points: list[Point], found: list[Compared], path: Path
) -> None:
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
def _telling(workload: str, points: list[Point]) -> Iterator[tuple[Callable[[str], None], Callable[..., None]]]:
    """What is being done, in a bar on a terminal; elsewhere in a line at once, and then every few seconds."""
    from time import monotonic

    done, last = 0, -TELL_EVERY_S
    with _progress("measuring", len(points)) as advance:

        def doing(what: str) -> None:
            nonlocal last
            advance(doing=what)
            if not err().is_terminal and monotonic() - last > TELL_EVERY_S:
                last = monotonic()
                err().print(f"{what} {workload}: {done + 1} of {len(points)}", style="dim", soft_wrap=True)

        def finished() -> None:
            nonlocal done
            done += 1
            advance()

        yield doing, finished


@contextmanager
def _progress(doing: str, total: int | None) -> Iterator[Callable[..., None]]:
    """A bar on a terminal; what it gives is called when something is done, or with the total when that is known."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=bars(), transient=True) as bar:
        task = bar.add_task(doing, total=total)

        def advance(total: int | None = None, doing: str | None = None) -> None:
            if doing is not None:
                bar.update(task, description=doing)
            elif total is not None:
                bar.update(task, total=total)
            else:
                bar.advance(task)

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
