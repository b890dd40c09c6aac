"""`hwsim gradient`: an expression and its derivatives as a graph; `hwsim rewrite`: a chain that becomes faster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwsim.cli.arguments import JsonFile, Settings, check_output, pairs, parse_words, spinner, word_completion
from hwsim.cli.console import make_table, screen, styled
from hwsim.errors import InputError
from hwsim.result import bytes_moved
from hwsim.text import counted, data, joules, ratio, seconds

if TYPE_CHECKING:
    from hwsim.program.gradient import ExpressionGraph
    from hwsim.result import RunResult
    from hwsim.sweep.rewrite import Rewritten

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
    output.show(lambda: _data(graph, given), lambda: _print(graph, given))


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{name}={text}: a number is expected") from None


def _data(graph: ExpressionGraph, given: dict[str, float]) -> dict[str, Any]:
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


def _print(graph: ExpressionGraph, given: dict[str, float]) -> None:
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
        typer.Argument(
            metavar="[MACHINE] [WORKLOAD] [KEY=VALUE]...",
            help="A chain of operations, such as resnet_block_plain, transformer_block or mlp.",
            autocompletion=word_completion,
            show_default=False,
        ),
    ] = None,
    settings: Settings = None,
    json_file: JsonFile = None,
) -> None:
    """Try rewrites of a chain of operations; each is kept only if the answer is the same and the time falls."""
    from hwsim.sweep.rewrite import try_rewrites

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
