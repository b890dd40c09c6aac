"""`hwsim calibrate`: this computer, measured and written down as a machine; `hwsim measure`: loops that run on it,
beside what was simulated."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from hwsim.cli.arguments import JsonFile, check_output, check_place, spinner, word_completion
from hwsim.cli.console import bars, out, styled
from hwsim.errors import InputError
from hwsim.files import write_text
from hwsim.text import digits, seconds

if TYPE_CHECKING:
    from hwsim.measure.calibrate import Calibrator, News

CALIBRATE_EXAMPLE = (
    "Example: [cyan]hwsim calibrate here.yaml[/cyan]   then   [cyan]hwsim run here.yaml matmul_tiled[/cyan]"
)


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
    told = _follow(calibrator)
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


def _follow(calibrator: Calibrator) -> list[News]:
    """All probes, with a line that says which one runs."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("measuring"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    told = []
    with Bar(*columns, console=bars(), transient=True) as bar:
        task = bar.add_task("probes", total=None)
        for message in calibrator.run():
            if isinstance(message, int):
                bar.update(task, total=message)
            else:
                told.append(message)
                bar.advance(task)
    return told


MEASURE_EXAMPLE = (
    "Example: [cyan]hwsim measure matmul_tiled n=512 tile=32[/cyan]   [cyan]hwsim measure here.yaml triad[/cyan]"
)


def measure_command(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[MACHINE] WORKLOAD [KEY=VALUE]...",
            help="A workload and its parameters; before it a machine file for this computer, such as calibrate writes; "
            "without one, the stock machine that is nearest to it.",
            autocompletion=word_completion,
            show_default=False,
        ),
    ],
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="How often the loops run; the fastest counts.")] = 15,
    warm: Annotated[
        bool, typer.Option("--warm", help="Leave in the caches what the repeat before left there.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Compile a workload's loops with Numba, run them on this computer, and compare with the simulation."""
    from hwsim.api import run
    from hwsim.cli.arguments import pairs
    from hwsim.measure.here import this_computer
    from hwsim.measure.loops import Bench

    names = [word for word in words if "=" not in word]
    if not 1 <= len(names) <= 2:
        raise InputError("name a workload, and before it a machine if this computer has a file of its own")
    parameters = pairs([word for word in words if "=" in word], "write a parameter as key=value, such as n=256", "")
    output = check_output(json_file, None, words)
    machine = names[0] if len(names) == 2 else this_computer().nearest
    with spinner("measuring"), Bench() as bench:
        measured = bench.measure(names[-1], parameters, machine, repeats=repeats, cold=not warm)
    with spinner("simulating"):
        simulated = run(machine, names[-1], math=False, **cast(dict[str, Any], parameters))
    factor = simulated.time_s / measured.seconds

    def screen() -> None:
        console = out()
        console.print(f"{names[-1]} {' '.join(word for word in words if '=' in word)}".rstrip())
        text = f"fastest of {measured.repeats}, the median {measured.spread:.0%} slower"
        console.print(f"  measured   {seconds(measured.seconds)}   {text}")
        console.print(f"  simulated  {seconds(simulated.time_s)}   on {simulated.machine}")
        console.print(f"  simulated over measured: {digits(factor)}")

    output.show(
        lambda: {
            "workload": names[-1], "parameters": parameters, "machine": simulated.machine,
            "measured_s": measured.seconds, "measured_median_s": measured.median, "repeats": measured.repeats,
            "simulated_s": simulated.time_s, "ratio": factor,
        },
        screen,
    )  # fmt: skip
