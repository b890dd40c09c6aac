"""`hwsim explain`: the longer version of what `hwsim run` showed last."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwsim.cli.console import print_json
from hwsim.errors import InputError

if TYPE_CHECKING:
    from hwsim.results.pressure import Pressure
    from hwsim.results.result import RunResult

EXAMPLE = "Example: [cyan]hwsim run course_cpu matmul_naive n=256[/cyan], then [cyan]hwsim explain[/cyan]"


def explain_command(
    result_file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RESULT.json]",
            help="A result that hwsim run wrote; the last run if not given.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the run and what was found as JSON.")] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw the sets of the first cache: png, svg or pdf.")
    ] = None,
) -> None:
    """Explain a run: conflicts by set, reuse, stalls, miss penalties, formulas, energy."""
    from hwsim.cli.explain_screen import print_explanation
    from hwsim.cli.last_run import recall
    from hwsim.cli.run import check_place, spinner
    from hwsim.results.plot.file import check_plot_file

    check_place("--plot", plot)
    check_plot_file(plot)
    result = recall(result_file)
    with spinner("looking at the sets"):
        pressure, loaded = _look(result)
    if plot is not None:
        if pressure is None:
            raise InputError(f"{result.machine} has no cache whose sets could be drawn")
        result.plot.sets(pressure, plot)
    if as_json:
        print_json({**result.to_dict(), "explanation": _findings(result, pressure, loaded)})
        return
    print_explanation(result, pressure, loaded)


def _findings(result: RunResult, pressure: Pressure | None, loaded: dict[str, float]) -> dict[str, Any]:
    """What the explanation adds to the result."""
    from hwsim.results.words import explain_bound, explain_bounds

    bound = explain_bound(result)
    return {
        "bound": {"part": bound.part, "kind": bound.kind, "share": bound.share, "words": bound.words},
        "bounds": explain_bounds(result),
        "elements_loaded": loaded,
        "sets": None if pressure is None else _sets(pressure),
    }


def _sets(pressure: Pressure) -> dict[str, Any]:
    """Misses of the first cache, by kind and by set."""
    from dataclasses import asdict

    measured = pressure.measured
    return {
        "level": measured.level,
        "cold": measured.cold,
        "capacity": measured.capacity,
        "conflict": measured.conflict,
        "complete": measured.complete,
        "assumed_lru": pressure.assumed_lru,
        "misses": measured.misses.tolist(),
        "conflicts": measured.conflicts.tolist(),
        "lines": measured.lines.tolist(),
        "crowding": None if pressure.crowding is None else asdict(pressure.crowding),
    }


def _look(result: RunResult) -> tuple[Pressure | None, dict[str, float]]:
    """The accesses once more; a kernel that lives in somebody's Python program cannot be built here."""
    from hwsim.api import prepare, set_pressure
    from hwsim.results.resolved import machine_of, workload_of
    from hwsim.results.reuse import elements_loaded

    machine, workload = machine_of(result), workload_of(result)
    if workload.op == "python" or "array" in result.work:
        return None, {}
    return set_pressure(result), elements_loaded(prepare(machine, workload, math=False))
