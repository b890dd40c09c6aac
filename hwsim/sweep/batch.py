"""A list of named runs, each with its own machine, workload and parameters: for comparisons and stories."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    tasks: Sequence[Task], *, math: bool = True, told: Callable[[Task], None] = lambda task: None
) -> dict[str, RunResult]:
    """Run one after the other; whatever is wrong with any of them is said before the first one starts."""
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
        told(task)
        run = run_all(task.machine, task.workload, set=task.settings, math=math, parameters=task.parameters)
        results[task.label] = run.result
    return results
