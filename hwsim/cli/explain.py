"""`hwsim explain`: the longer version of what `hwsim run` showed last."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
) -> None:
    """Explain a run: conflicts by set, reuse, stalls, miss penalties, formulas, energy."""
    from hwsim.cli.explain_screen import print_explanation
    from hwsim.cli.last_run import recall
    from hwsim.cli.run import spinner

    result = recall(result_file)
    with spinner("looking at the sets"):
        pressure, loaded = _look(result)
    print_explanation(result, pressure, loaded)


def _look(result: RunResult) -> tuple[Pressure | None, dict[str, float]]:
    """The accesses once more; a kernel that lives in somebody's Python program cannot be built here."""
    from hwsim.api import prepare
    from hwsim.results.pressure import look_at_sets
    from hwsim.results.resolved import machine_of, workload_of
    from hwsim.results.reuse import elements_loaded

    machine, workload = machine_of(result), workload_of(result)
    if workload.op == "python":
        return None, {}
    kernel = prepare(machine, workload, math=False)
    first = machine.caches[0].name if machine.caches else ""
    misses = {name: facts["misses"].get(first, 0) for name, facts in result.tensors.items()}
    return look_at_sets(machine, kernel, misses), elements_loaded(kernel)
