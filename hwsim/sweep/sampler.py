"""Samplers for spaces that are too large to look at whole: Optuna's, or steps from the best point so far."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from hwsim.sweep.feasible import broken_rule
from hwsim.sweep.point import Point

if TYPE_CHECKING:
    from hwsim.sweep.tune import _Tuner

TRIALS = 120
"""Simulated points, where no budget is given."""

FIRST, FIRST_S = 200, 15.0
"""Random combinations that are estimated to start from, as many as so many seconds allow."""

Choice = tuple[int, ...]


def sample(tuner: _Tuner) -> str:
    """Simulate what a sampler proposes until the budget is used up; says which sampler it was."""
    starts = _starts(tuner)
    try:
        import optuna
    except ImportError:
        _step(tuner, starts)
        return "sampled by steps from the best found (Optuna is not installed)"
    _ask_optuna(tuner, starts, optuna)
    return "sampled by Optuna"


def _starts(tuner: _Tuner) -> list[Choice]:
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


def _guess(tuner: _Tuner, point: Point) -> float:
    from hwsim.sweep.tune import specs

    rule = point.error if point.job is None else broken_rule(*specs(point.job))
    if rule is not None:
        tuner.pruned[rule] += 1
        return float("inf")
    return tuner.guess(point)


def _trials(tuner: _Tuner) -> int:
    return tuner.budget.points or (10**9 if tuner.budget.seconds else TRIALS)


def _cost(tuner: _Tuner, choice: Choice) -> float:
    """Simulate one combination, unless it does not fit."""
    from hwsim.sweep.tune import specs

    point = tuner.point_at(choice)
    if point.job is None or broken_rule(*specs(point.job)) is not None:
        return float("inf")
    if point.key not in tuner.simulated:
        if len(tuner.simulated) >= _trials(tuner):
            return float("inf")
        tuner.simulate([point])
    return tuner.cost(tuner.simulated.get(point.key))


def _ask_optuna(tuner: _Tuner, starts: list[Choice], optuna: Any) -> None:
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


def _step(tuner: _Tuner, starts: list[Choice]) -> None:
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
