"""`hwsim trace`: every access of a small run, with the tensor and the element that it means."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwsim.cli.arguments import JsonFile, Settings, check_output, parse_words, word_completion
from hwsim.cli.console import make_table, screen, styled
from hwsim.errors import InputError
from hwsim.text import counted

if TYPE_CHECKING:
    from hwsim.trace.layout import LabelledAccess

TRACE_EXAMPLE = "Example: [cyan]hwsim trace course_cpu matmul_tiled n=4 tile=2[/cyan]"


def trace_command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MACHINE] [WORKLOAD] [KEY=VALUE]...",
            help="As for run; small sizes, since every access is a line.",
            autocompletion=word_completion,
            show_default=False,
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="Accesses to show.")] = 64,
    settings: Settings = None,
    json_file: JsonFile = None,
) -> None:
    """Print the accesses of a small run in order: flat addresses, with the tensor and element that each means."""
    from hwsim.api import prepare, resolve_machine, resolve_workload
    from hwsim.target import find_target
    from hwsim.trace.layout import label_accesses

    output = check_output(json_file, inputs=words or ())
    if limit < 1:
        raise InputError(f"--limit {limit}: at least 1")
    given = parse_words(words or ())
    machine = resolve_machine(given.machine, tuple(settings or ()))
    target = find_target(machine)
    if target.groups or not machine.caches:  # threads or cells: no one order of single accesses
        raise InputError(f"{machine.name} moves tiles and has no list of single accesses; try course_cpu")
    work = target.defaults(resolve_workload(given.workload, given.parameters))
    kernel = prepare(machine, work, math=False)
    nests = [nest for block in kernel.blocks() for step in block.steps() for nest in step.nests]
    line = machine.caches[0].line
    total = sum(nest.length for nest in nests)
    shown = list(islice(label_accesses(nests, kernel.tensors, line), limit))
    output.show(lambda: _data(shown, total), lambda: _print(shown, total, machine.name, work.name))


def _data(shown: list[LabelledAccess], total: int) -> dict[str, Any]:
    return {"accesses": total, "shown": [each.to_dict() for each in shown]}


def _print(shown: list[LabelledAccess], total: int, machine: str, workload: str) -> None:
    console = screen()
    console.print(styled((f"{workload} on {machine}", "bold"), f": {counted(total, 'access', 'accesses')}"))
    table = make_table("", "", "element", "address", "bytes", "line", left=(1, 2))
    for number, each in enumerate(shown):
        table.add_row(str(number), each.kind, each.element, f"{each.address:#x}", str(each.nbytes), str(each.line))
    console.print(table)
    if total > len(shown):
        console.print(f"… and {total - len(shown):,} more (--limit)", style="dim")
