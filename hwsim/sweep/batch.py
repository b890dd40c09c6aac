"""A list of named runs, each with its own machine, workload and parameters: for comparisons and stories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hwsim.api import resolve_machine, resolve_workload, run_all
from hwsim.errors import InputError
from hwsim.results.result import RunResult


@dataclass(frozen=True)
class Task:
    """One run, and what it is called."""

    label: str
    machine: str
    workload: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    settings: tuple[str, ...] = ()


def run_tasks(
    tasks: Sequence[Task], *, math: bool = True, refused: dict[str, str] | None = None
) -> dict[str, RunResult]:
    """Run one after the other; whatever is wrong with any of them is said before the first one starts.

    A machine may turn out not to have what a workload needs. With `refused`, that is noted there and the others go on.
    """
    wrong = []
    for task in tasks:
        try:
            resolve_machine(task.machine, task.settings)
            resolve_workload(task.workload, task.parameters)
        except InputError as error:
            wrong.append(f"{task.label}: {error}")
    if wrong:
        raise InputError("\n".join(wrong))
    results = {}
    for task in tasks:
        try:
            run = run_all(task.machine, task.workload, set=task.settings, math=math, parameters=task.parameters)
        except InputError as error:
            if refused is None:
                raise
            refused[task.label] = str(error)
        else:
            results[task.label] = run.result
    if not results and refused:
        raise InputError("\n".join(dict.fromkeys(refused.values())))
    return results
