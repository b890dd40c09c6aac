"""What `tune` tries: the space that a target finds worth trying, what in it cannot fit, and samplers for large ones.

Samplers are Optuna's, or steps from the best point so far.

Rewrites of a chain are tried one rule after the other: each is kept only if the answer is the same and the time falls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from hwsim.api import prepare, resolve_machine, resolve_workload, run_all
from hwsim.errors import InputError
from hwsim.ops.chain import RULES
from hwsim.program.chain_workload import ChainWorkload
from hwsim.result import RunResult
from hwsim.spec.machine import MachineSpec
from hwsim.spec.workload import AUTO, WorkloadSpec
from hwsim.sweep.grid import Value, make_axis, typed
from hwsim.sweep.point import Point
from hwsim.target import Knob, Target, find_target
from hwsim.units import ratio

if TYPE_CHECKING:
    from hwsim.sweep.tune import Tuner


def usual_space(
    machine: str, workload: str, given: Mapping[str, object], settings: Sequence[str] = ()
) -> dict[str, object]:
    """The axes of a search: what is given, and each choice with its default and what is worth trying.

    The first value of each is the default, so that the first point is the schedule that nobody chose.
    """
    target = find_target(resolve_machine(machine, settings))
    work = resolve_workload(workload, given)
    knobs = target.reads(work)
    space = {name: values for name, values in target.space(work).items() if not _is_given(knobs[name], given)}
    if not space:
        listed = ", ".join(knobs)
        raise InputError(
            f"{work.name}: say what to search, such as {next(iter(knobs), 'n')}=…; "
            f"{target.machine.name} reads of its schedule: {listed or 'nothing'}"
        )
    return {**given, **{name: [_default(knobs[name]), *_others(knobs[name], values)] for name, values in space.items()}}


def chosen_axes(target: Target, workload: str, names: Sequence[str]) -> list[str]:
    """Those of the names that are choices of the schedule; the rest says what is computed."""
    knobs = target.reads(resolve_workload(workload, {}))
    read = {name for knob in knobs.values() for name in (knob.name, *knob.also)}
    return [name for name in names if name in read]


def _is_given(knob: Knob, given: Mapping[str, object]) -> bool:
    return any(name in given for name in (knob.name, *knob.also))


def _default(knob: Knob) -> Value:
    """As it is typed: a choice that is open is left to the machine, a field without a value is null."""
    if knob.group == "choices":
        return AUTO
    return "null" if knob.default == "–" else make_axis(knob.name, knob.default).values[0]


def _others(knob: Knob, values: str) -> list[Value]:
    return [value for value in make_axis(knob.name, values).values if typed(value) != knob.default]


def broken_rule(machine: MachineSpec, workload: WorkloadSpec) -> str | None:
    """The first capacity rule that a schedule breaks, in words; None where everything fits."""
    try:
        kernel = prepare(machine, workload, math=False)
    except InputError as error:
        return str(error).splitlines()[0]
    return find_target(machine).misfit(kernel, workload)


TRIALS = 120
"""Simulated points, where no budget is given."""

FIRST, FIRST_S = 200, 15.0
"""Random combinations that are estimated to start from, as many as so many seconds allow."""

Choice = tuple[int, ...]


def step_from_the_first(tuner: Tuner) -> str:
    """From the first point, which is the default schedule: one choice at a time, as long as any gets better."""
    sizes = [len(axis.values) for axis in tuner.request.all_axes]
    here: Choice = (0,) * len(sizes)
    cost = tuner.simulate_one(here)
    spent = tuner.budget.points or 10**9
    better = True
    while better:
        better = False
        for axis, size in enumerate(sizes):
            for index in reversed(range(size)):
                near = (*here[:axis], index, *here[axis + 1 :])
                if near == here:
                    continue
                if len(tuner.simulated) >= spent or tuner.out_of_time:
                    return "from the default, one choice at a time, until the budget was used up"
                if tuner.out_of_patience:
                    return "from the default, one choice at a time, for some seconds; --budget 5min looks further"
                tuner.watch("simulating", len(tuner.simulated), 2 * sum(sizes))
                found = tuner.simulate_one(near)
                if found < cost:
                    here, cost, better = near, found, True
    return "from the default, one choice at a time, until none made it better"


def sample(tuner: Tuner) -> str:
    """Simulate what a sampler proposes until the budget is used up; says which sampler it was."""
    if tuner.default_first:
        tuner.simulate_one((0,) * len(tuner.request.all_axes))
    starts = _starts(tuner)
    try:
        import optuna
    except ImportError:
        _step(tuner, starts)
        return "sampled by steps from the best found (Optuna is not installed)"
    _ask_optuna(tuner, starts, optuna)
    return "sampled by Optuna"


def _starts(tuner: Tuner) -> list[Choice]:
    """The best by estimate among random combinations that fit."""
    random = np.random.default_rng(0)
    sizes = [len(axis.values) for axis in tuner.request.all_axes]
    tried: dict[Choice, float] = {}
    started = monotonic()
    for number in range(FIRST):
        if monotonic() - started > FIRST_S and tried:
            break
        tuner.watch("estimating", number, FIRST)
        choice = tuple(int(random.integers(size)) for size in sizes)
        if choice not in tried:
            tried[choice] = _guess(tuner, tuner.point_at(choice))
    fit = [choice for choice in tried if tried[choice] < float("inf")]
    return sorted(fit or tried, key=lambda choice: tried[choice])[: max(4, _trials(tuner) // 4)]


def _guess(tuner: Tuner, point: Point) -> float:
    from hwsim.sweep.tune import specs

    rule = point.error if point.inputs is None else broken_rule(*specs(point.inputs))
    if rule is not None:
        tuner.pruned[rule] += 1
        return float("inf")
    return tuner.guess(point)


def _trials(tuner: Tuner) -> int:
    return tuner.budget.points or (10**9 if tuner.budget.seconds else TRIALS)


def _cost(tuner: Tuner, choice: Choice) -> float:
    """Simulate one combination, unless it does not fit."""
    from hwsim.sweep.tune import specs

    point = tuner.point_at(choice)
    if point.inputs is None or broken_rule(*specs(point.inputs)) is not None:
        return float("inf")
    if point.key not in tuner.simulated:
        if len(tuner.simulated) >= _trials(tuner):
            return float("inf")
        tuner.simulate([point])
    return tuner.cost(tuner.simulated.get(point.key))


def _ask_optuna(tuner: Tuner, starts: list[Choice], optuna: Any) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0, multivariate=True))
    names = [axis.name for axis in tuner.request.all_axes]
    for start in starts:
        study.enqueue_trial(dict(zip(names, start, strict=True)))

    def objective(trial: Any) -> float:
        sizes = [len(axis.values) for axis in tuner.request.all_axes]
        choice = tuple(trial.suggest_int(name, 0, size - 1) for name, size in zip(names, sizes, strict=True))
        cost = _cost(tuner, choice)
        if cost == float("inf"):
            raise optuna.TrialPruned
        return cost

    idle = 0
    while len(tuner.simulated) < _trials(tuner) and not tuner.out_of_time and idle < FIRST:
        before = len(tuner.simulated)
        study.optimize(objective, n_trials=1)
        idle = idle + 1 if len(tuner.simulated) == before else 0
        tuner.watch("simulating", len(tuner.simulated), min(_trials(tuner), 10**6))


def _step(tuner: Tuner, starts: list[Choice]) -> None:
    """From each start, one axis at a time, as long as it gets better."""
    sizes = [len(axis.values) for axis in tuner.request.all_axes]
    for start in starts:
        here, cost = start, _cost(tuner, start)
        better = True
        while better:
            better = False
            for near in _neighbours(here, sizes):
                if len(tuner.simulated) >= _trials(tuner) or tuner.out_of_time:
                    return
                found = _cost(tuner, near)
                tuner.watch("simulating", len(tuner.simulated), min(_trials(tuner), 10**6))
                if found < cost:
                    here, cost, better = near, found, True
                    break


def _neighbours(choice: Choice, sizes: list[int]) -> Iterator[Choice]:
    for axis, size in enumerate(sizes):
        for step in (1, -1):
            index = choice[axis] + step
            if 0 <= index < size:
                yield (*choice[:axis], index, *choice[axis + 1 :])


# Rewrites -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """One rule that was tried on top of those that were kept before it."""

    rule: str
    kept: bool
    reason: str
    result: RunResult | None
    """The run with it; None where it changed nothing."""


@dataclass(frozen=True)
class Rewritten:
    """What a search for rewrites did."""

    before: RunResult
    after: RunResult
    trials: tuple[Trial, ...]

    @property
    def rules(self) -> tuple[str, ...]:
        """Rules that were kept."""
        return tuple(trial.rule for trial in self.trials if trial.kept)


def try_rewrites(
    machine: str | Path, workload: str | Path, parameters: Mapping[str, object], settings: Sequence[str] = ()
) -> Rewritten:
    """Every rule once, in order; the workload's own rewrites are put aside first."""
    computer = resolve_machine(machine, settings)
    work = resolve_workload(workload, parameters)
    if not isinstance(work, ChainWorkload):
        raise InputError(f"{work.name} is one operation; rewrites are for chains, such as resnet_block_plain")

    def run(rules: Sequence[str]) -> RunResult:
        schedule = work.schedule.model_copy(update={"rewrite": tuple(rules)})
        return run_all(computer, work.model_copy(update={"schedule": schedule})).result

    before = best = run(())
    kept: list[str] = []
    trials: list[Trial] = []
    for rule in RULES:
        made = run((*kept, rule))
        refused = next((note for note in made.warnings if note.startswith(f"{rule} ") and "left" not in note), "")
        if refused:
            trials.append(Trial(rule, False, refused.removeprefix(f"{rule} "), None))
        elif made.verified is False:
            trials.append(Trial(rule, False, "the answer is another one", made))
        elif made.time_s < best.time_s:
            trials.append(Trial(rule, True, f"{ratio(best.time_s / made.time_s)} as fast as before", made))
            kept.append(rule)
            best = made
        else:
            trials.append(Trial(rule, False, f"the time does not fall ({ratio(best.time_s / made.time_s)})", made))
    return Rewritten(before, best, tuple(trials))
