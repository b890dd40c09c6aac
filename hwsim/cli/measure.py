"""`hwsim measure`: run a workload's loops on this computer, and print what they took beside what was simulated."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

from hwsim.cli.arguments import JsonFile, check_output, spinner, word_completion
from hwsim.cli.console import out
from hwsim.errors import InputError
from hwsim.text import digits, seconds

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
