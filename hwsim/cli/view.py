"""`hwsim view`: a tensor's storage under a chain of views; `hwsim trace`: the accesses of a small run, in order.

`hwsim gradient`: an expression and its derivatives as a graph; `hwsim rewrite`: a chain that becomes faster.
"""

from __future__ import annotations

from itertools import islice, product
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwsim.cli.arguments import JsonFile, Settings, check_output, pairs, parse_words, spinner, word_argument
from hwsim.cli.console import make_table, screen, styled, wrapped
from hwsim.errors import InputError
from hwsim.result import bytes_moved
from hwsim.units import counted, data, joules, percent, ratio, seconds

if TYPE_CHECKING:
    from rich.console import Console

    from hwsim.program.gradient import ExpressionGraph
    from hwsim.result import RunResult
    from hwsim.sweep.search import Rewritten
    from hwsim.trace.view import LabelledAccess, Layout

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
    from hwsim.trace.view import start

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
        word_argument("[MACHINE] [WORKLOAD] [KEY=VALUE]...", "As for run; small sizes, since every access is a line."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="Accesses to show.")] = 64,
    settings: Settings = None,
    json_file: JsonFile = None,
) -> None:
    """Print the accesses of a small run in order: flat addresses, with the tensor and element that each means."""
    from hwsim.api import prepare, resolve_machine, resolve_workload
    from hwsim.target import find_target
    from hwsim.trace.view import label_accesses

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


GRADIENT_EXAMPLE = 'Example: [cyan]hwsim gradient "ln(x1) + x1*x2 - sin(x2)" x1=2 x2=5[/cyan]'


def gradient_command(
    expression: Annotated[
        str, typer.Argument(metavar="EXPRESSION", help='In quotes: "(exp(v1) + 1) * exp(v1)".', show_default=False)
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=VALUE]...", help="Where to evaluate it; 1 if not given.", show_default=False),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Differentiate an expression: its graph, the adjoint of each node, and what forward and reverse mode cost."""
    from hwsim.program.gradient import build_graph

    output = check_output(json_file)
    graph = build_graph(expression)
    given = dict.fromkeys(graph.inputs, 1.0) | {
        name: _number(name, value) for name, value in pairs(words or [], "write a value as x1=2", "").items()
    }
    graph.values(given)  # a name that is not in the expression is said before anything is printed
    output.show(lambda: _gradient_data(graph, given), lambda: _print_gradient(graph, given))


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{name}={text}: a number is expected") from None


def _gradient_data(graph: ExpressionGraph, given: dict[str, float]) -> dict[str, Any]:
    from hwsim.program.gradient import written

    derivatives = graph.derivatives(given)
    return {
        "value": graph.values(given)[graph.result],
        "gradient": {name: derivatives[name] for name in graph.inputs},
        "differences": graph.differences(given),
        "nodes": {node.name: written(node.value) for node in graph.nodes},
        "adjoints": {each.name: written(each.value) for each in graph.gradient()},
        "operations": {
            "value": graph.operations(),
            "reverse": graph.reverse_operations(),
            "forward": graph.forward_operations(),
        },
    }


def _print_gradient(graph: ExpressionGraph, given: dict[str, float]) -> None:
    from hwsim.program.gradient import written

    console = screen()
    values, derivatives, checked = graph.values(given), graph.derivatives(given), graph.differences(given)
    console.print(styled((f"y = {graph.text}", "bold"), f" = {values[graph.result]:.6g}"))
    forward = make_table("node", "computes", "value", left=(0, 1))
    for name in graph.inputs:
        forward.add_row(name, "given", f"{values[name]:.6g}")
    for node in graph.nodes:
        forward.add_row(node.name, written(node.value), f"{values[node.name]:.6g}")
    console.print(styled("\n", ("The graph", "bold underline"), f" (y is {graph.result})"))
    console.print(forward)
    console.print(styled("\n", ("gradient(y): the adjoint of each node", "bold underline")))
    backward = make_table("adjoint", "is the sum over readers", "value", left=(0, 1))
    for each in graph.gradient():
        parts = [f"{written(part)} from {reader}" for reader, part in each.sent.items() if reader != "result"]
        backward.add_row(each.name, " + ".join(parts) or "1", f"{derivatives[each.node]:.6g}")
    console.print(backward)
    console.print()
    for name in graph.inputs:
        console.print(
            styled((f"dy/d{name} = {derivatives[name]:.6g}", "bold"), f" (central difference {checked[name]:.6g})")
        )
    inputs = len(graph.inputs)
    costs = make_table("way", "passes", "operations", left=(0,))
    costs.add_row("reverse mode", "1", str(graph.reverse_operations()))
    costs.add_row("forward mode", str(inputs), str(graph.forward_operations()))
    costs.add_row("central differences, not exact", str(2 * inputs), str(2 * inputs * graph.operations()))
    title = f" (its value takes {counted(graph.operations(), 'operation')})"
    console.print(styled("\n", ("What all derivatives cost", "bold underline"), title))
    console.print(costs)


REWRITE_EXAMPLE = "Example: [cyan]hwsim rewrite course_cpu resnet_block_plain[/cyan]"


def rewrite_command(
    words: Annotated[
        list[str] | None,
        word_argument(
            "[MACHINE] [WORKLOAD] [KEY=VALUE]...",
            "A chain of operations, such as resnet_block_plain, transformer_block or mlp.",
        ),
    ] = None,
    settings: Settings = None,
    json_file: JsonFile = None,
) -> None:
    """Try rewrites of a chain of operations; each is kept only if the answer is the same and the time falls."""
    from hwsim.sweep.search import try_rewrites

    output = check_output(json_file, inputs=words or ())
    given = parse_words(words or ("course_cpu", "resnet_block_plain"))
    with spinner("simulating"):
        made = try_rewrites(given.machine, given.workload, given.parameters, tuple(settings or ()))
    output.show(lambda: _rewrite_data(made), lambda: _print_rewrites(made))


def _rewrite_data(made: Rewritten) -> dict[str, Any]:
    return {
        "before_s": made.before.time_s,
        "after_s": made.after.time_s,
        "kept": list(made.rules),
        "trials": [{"rule": each.rule, "kept": each.kept, "reason": each.reason} for each in made.trials],
    }


def _print_rewrites(made: Rewritten) -> None:
    console = screen()
    before, after = made.before, made.after
    console.print(styled((before.workload, "bold"), " on ", (before.machine, "bold")))
    table = make_table("rule", "", "time", "energy", "traffic", "why", left=(0, 1, 5))
    table.add_row("as written", "", *_costs(before), "")
    for each in made.trials:
        costs = _costs(each.result) if each.result is not None else ("", "", "")
        table.add_row(each.rule, "kept" if each.kept else "not kept", *costs, each.reason)
    console.print(table)
    gain = ratio(before.time_s / after.time_s)
    console.print(styled((f"{gain} as fast as written", "bold"), f", with {', '.join(made.rules) or 'no rewrite'}"))


def _costs(result: RunResult) -> tuple[str, str, str]:
    energy = "–" if result.energy_j is None else joules(result.energy_j)
    return seconds(result.time_s), energy, data(bytes_moved(list(result.memory.values())[-1]))
