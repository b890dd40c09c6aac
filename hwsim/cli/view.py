"""`hwsim view`: a tensor's storage under a chain of views; `hwsim trace`: the accesses of a small run, in order."""

from __future__ import annotations

from itertools import islice, product
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwsim.cli.arguments import JsonFile, Settings, check_output, parse_words, word_completion
from hwsim.cli.console import make_table, screen, styled, wrapped
from hwsim.errors import InputError
from hwsim.text import counted, percent

if TYPE_CHECKING:
    from rich.console import Console

    from hwsim.trace.layout import LabelledAccess, Layout

VIEW_EXAMPLE = "Example: [cyan]hwsim view 3x5 slice=0:3,1:3[/cyan], [cyan]hwsim view 1x2x3x4 permute=1,2,3,0[/cyan]"
_MOST_LINES = 24


def view_command(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="SHAPE [STEP]...",
            help="A shape such as 4x5, then steps in order: order=column, permute=1,0, slice=0:3,1:3, broadcast=4x3, "
            "reshape=2,2,4, strides=5,1, contiguous.",
            show_default=False,
        ),
    ],
    line: Annotated[int, typer.Option("--line", metavar="BYTES", help="Bytes of a cache line.")] = 64,
    bits: Annotated[int, typer.Option("--bits", metavar="N", help="Bits of an element.")] = 32,
    json_file: JsonFile = None,
) -> None:
    """Draw a tensor's storage under a chain of views: strides, offset, what is copied, and the lines it touches."""
    from hwsim.trace.layout import start

    output = check_output(json_file)
    if bits not in (8, 16, 32, 64):
        raise InputError(f"--bits {bits}: it is 8, 16, 32 or 64")
    if not bits // 8 <= line <= 4096:
        raise InputError(f"--line {line}: a line has between {bits // 8} and 4096 bytes here")
    layout = start(words[0], bits)
    for word in words[1:]:
        step, _, value = word.partition("=")
        layout = layout.then(step, value)
    output.show(lambda: _data(layout, line), lambda: _print(screen(), layout, line))


def _data(layout: Layout, line: int) -> dict[str, Any]:
    view = layout.view
    return {
        "shape": view.shape,
        "strides": view.strides,
        "offset": view.offset,
        "contiguous": view.is_contiguous(),
        "copied": layout.copied,
        "formula": layout.formula(),
        "values": [layout.value(index) for index in layout.indices()],
        "elements": [layout.element(index) for index in layout.indices()],
        "lines": sorted(layout.lines(line)),
    }


def _print(console: Console, layout: Layout, line: int) -> None:
    view = layout.view
    shape = " x ".join(map(str, view.shape)) or "a single element"
    strides = f"({', '.join(map(str, view.strides))})"
    console.print(styled((f"shape {shape}, strides {strides}, offset {view.offset}", "bold")))
    console.print(f"{layout.formula()}, {view.element_bytes} bytes an element")
    if layout.copied:
        console.print(f"contiguous copied {counted(layout.copied, 'element')}: each was read once and written once")
    elif any(not step.startswith("order=") for step in layout.steps):
        console.print("nothing was copied: the storage is the same, only shape, strides and offset are other ones")
    reason = layout.why_not_contiguous()
    console.print(f"not contiguous: {reason}" if reason else "contiguous: row by row without a gap")
    _print_tensor(console, layout)
    _print_storage(console, layout, line)


def _print_tensor(console: Console, layout: Layout) -> None:
    """Rows of the last axis, in blocks for each index before the last two."""
    shape = layout.view.shape
    width = len(str(max(layout.values)))
    console.print(styled("\n", ("as a tensor", "bold"), " (each number is its place in the first storage)"))
    outer = shape[:-2]
    for lead in product(*(range(extent) for extent in outer)):
        if outer:
            console.print(f"[{', '.join(map(str, lead))}, …]", style="dim")
        for row in range(shape[-2]) if len(shape) > 1 else [None]:
            index = lead if row is None else (*lead, row)
            cells = [layout.value((*index, column)) for column in range(shape[-1])] if shape else [layout.value(())]
            console.print("  " + " ".join(f"{cell:>{width}}" for cell in cells), soft_wrap=True)


def _print_storage(console: Console, layout: Layout, line: int) -> None:
    """The storage line by line, with what the view touches in brackets."""
    per_line = max(1, int(line // layout.view.element_bytes))
    touched, lines = layout.touched(), layout.lines(line)
    width = len(str(max(layout.values)))
    count = -(-len(layout.values) // per_line)
    title = f" (a row for each line of {line} bytes; what the view touches is in brackets)"
    console.print(styled("\n", ("storage", "bold"), title))
    for number in range(min(count, _MOST_LINES)):
        places = range(number * per_line, min((number + 1) * per_line, len(layout.values)))
        cells = [
            f"[{layout.values[place]:>{width}}]" if place in touched else f" {layout.values[place]:>{width}} "
            for place in places
        ]
        style = "" if number in lines else "dim"
        console.print(styled((f"  line {number:<3}", "cyan"), ("".join(cells), style)), soft_wrap=True)
    if count > _MOST_LINES:
        console.print(f"  … and {counted(count - _MOST_LINES, 'line')} more", style="dim")
    used = sum(lines.values()) * layout.view.element_bytes
    fetched = len(lines) * line
    accesses = counted(layout.view.size, "access", "accesses")
    wrapped(
        console,
        "",
        f"It touches {counted(len(lines), 'line')} of {count}: {used} of {fetched} bytes that come with them are used "
        f"({percent(float(used), fetched)}). In the order of the view, {accesses} go to another line "
        f"{counted(layout.changes_of_line(line), 'time')}.",
        style="",
    )


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
    output.show(lambda: _trace_data(shown, total), lambda: _print_trace(shown, total, machine.name, work.name))


def _trace_data(shown: list[LabelledAccess], total: int) -> dict[str, Any]:
    return {"accesses": total, "shown": [each.to_dict() for each in shown]}


def _print_trace(shown: list[LabelledAccess], total: int, machine: str, workload: str) -> None:
    console = screen()
    console.print(styled((f"{workload} on {machine}", "bold"), f": {counted(total, 'access', 'accesses')}"))
    table = make_table("", "", "element", "address", "bytes", "line", left=(1, 2))
    for number, each in enumerate(shown):
        table.add_row(str(number), each.kind, each.element, f"{each.address:#x}", str(each.nbytes), str(each.line))
    console.print(table)
    if total > len(shown):
        console.print(f"… and {total - len(shown):,} more (--limit)", style="dim")
