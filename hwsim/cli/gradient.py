"""`hwsim gradient`: the graph of an expression, its derivatives in reverse mode, and what both modes cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwsim.cli.arguments import JsonFile, check_output, pairs
from hwsim.cli.console import make_table, screen, styled
from hwsim.errors import InputError
from hwsim.text import counted

if TYPE_CHECKING:
    from hwsim.program.gradient import ExpressionGraph

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
