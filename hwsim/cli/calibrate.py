"""`hwsim calibrate`: measure the computer at hand, and write it down as a machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwsim.cli.arguments import JsonFile, check_output, check_place
from hwsim.cli.console import bars, out, styled
from hwsim.errors import InputError
from hwsim.files import write_text

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
