"""`hwsim fit`: the constants of a machine that no data sheet has, from measurements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwsim.cli.arguments import check_output
from hwsim.cli.console import err, out

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hwsim.validation.fit import Fit

FIT_EXAMPLE = "Example: [cyan]hwsim fit h100 measured.csv -o my_h100.yaml[/cyan]"


def fit_command(
    machine: Annotated[str, typer.Argument(help="A GPU: the name or the file of a machine.")],
    measured: Annotated[Path, typer.Argument(help="Measured kernels, in the columns of `hwsim validate gpu`.")],
    output_file: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write a machine file with what was found.")
    ] = None,
    rows: Annotated[int, typer.Option(min=5, help="Rows of each family to search on, and to report.")] = 40,
    seed: Annotated[int, typer.Option(help="Which rows are drawn.")] = 0,
    json_file: Annotated[str | None, typer.Option("--json", metavar="FILE|-", help="Write JSON; - is stdout.")] = None,
) -> None:
    """Fit a GPU's few constants to one half of a table of measured kernels, and report the other half."""
    from hwsim.catalog import find, load_machine, machine_names
    from hwsim.files import check_output_file, note_input, write_text
    from hwsim.validation.fit import as_variant, fit

    spec = load_machine(machine).spec
    source = find("machine", machine)
    output = check_output(json_file, None, (measured,))
    if output_file is not None:
        note_input(source)
        check_output_file(output_file, (measured, source), "-o")
    found = _follow(fit(spec, measured, rows, seed))
    if output_file is not None:
        base = machine if machine in machine_names() else str(source.resolve())
        write_text(output_file, as_variant(found, base, output_file.stem))
    output.show(found.to_dict, lambda: _print(found, output_file))


def _follow(progress: Iterator[str | Fit]) -> Fit:
    """Run the search with a line that tells how far it is."""
    from rich.status import Status

    console = err()
    status = Status("reading the table", console=console)
    if console.is_terminal:
        status.start()
    try:
        for message in progress:
            if not isinstance(message, str):
                return message
            status.update(message)
    finally:
        status.stop()
    raise AssertionError("a fit ends with what it found")


def _print(found: Fit, output_file: Path | None) -> None:
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"fit of {found.machine} to {found.table}: mean error on rows that were held out",
        title_justify="left",
        title_style="bold",
    )
    for name in ("family", "rows fitted on", "rows held out", "before", "after"):
        table.add_column(name, justify="left" if name == "family" else "right")
    for family, error in found.after.items():
        counts = str(found.fitted_rows.get(family, 0)), str(found.held_out_rows[family])
        table.add_row(family, *counts, f"{found.before[family]:.1%}", f"{error:.1%}")
    console = out()
    console.print(table)
    for path, text in found.constants.items():
        console.print(f"  {found.unit}.{path}: {text}")
    if output_file is not None:
        console.print(f"wrote {output_file}")
