"""`hwsim rewrite`: which rewrites of a graph pay on a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwsim.cli.arguments import JsonFile, Settings, check_output, parse_words, spinner, word_completion
from hwsim.cli.console import make_table, screen, styled
from hwsim.result import bytes_moved
from hwsim.text import data, joules, ratio, seconds

if TYPE_CHECKING:
    from hwsim.result import RunResult
    from hwsim.sweep.rewrite import Rewritten

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
    output.show(lambda: _data(made), lambda: _print(made))


def _data(made: Rewritten) -> dict[str, Any]:
    return {
        "before_s": made.before.time_s,
        "after_s": made.after.time_s,
        "kept": list(made.rules),
        "trials": [{"rule": each.rule, "kept": each.kept, "reason": each.reason} for each in made.trials],
    }


def _print(made: Rewritten) -> None:
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
