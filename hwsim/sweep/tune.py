"""Tune: the best schedule, without simulating them all.

A small space is simulated whole. In a larger one, what breaks a capacity rule is left out, the rest is estimated
(see `hwsim.hardware.footprint`), and only the promising third is simulated, the best estimate first. A space that is
too large even to estimate is sampled: by Optuna where it is installed, else by steps from the best point found so far.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import monotonic

from hwsim.api import in_own_format
from hwsim.errors import InputError
from hwsim.results.metrics import about, full_name
from hwsim.spec.machine import MachineSpec
from hwsim.spec.workload import WorkloadSpec, workload_model
from hwsim.sweep.api import WORTH_STARTING_S
from hwsim.sweep.axis import typed
from hwsim.sweep.estimate import estimate
from hwsim.sweep.executor import Backend, InProcess, make_backend, usable_cores
from hwsim.sweep.feasible import broken_rule
from hwsim.sweep.point import Job, Point, Resolver, check_request
from hwsim.sweep.request import MACHINE, WORKLOAD, Coordinates, Request
from hwsim.sweep.result_set import ResultSet, Row, load_results
from hwsim.sweep.runner import Finished, Runner
from hwsim.sweep.store import Store

SMALL = 6
"""Up to so many combinations are all simulated."""

LARGE = 3000
"""More combinations than this are sampled."""

SHARE = 3
"""One in so many of the feasible combinations is simulated."""

REFUSED = float("inf")
"""The cost of a schedule that turns out not to be possible."""

Watcher = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Budget:
    """When a search stops: after so many simulated points, or so many seconds."""

    points: int | None = None
    seconds: float | None = None


@dataclass
class Search:
    """What a search did, and what it found."""

    request: Request
    metric: str
    results: ResultSet
    how: str
    candidates: int
    estimated: int = 0
    simulated: int = 0
    pruned: Counter[str] = field(default_factory=Counter)

    @property
    def best(self) -> Row:
        return self.results.best(self.metric)

    @property
    def front(self) -> ResultSet:
        """What no other simulated point beats in time and energy at once, and in what was asked for."""
        names = [name for name in ("time_s", "energy_j") if self.best.metrics.get(name) is not None]
        return self.results.pareto(*dict.fromkeys([*names, self.metric]))

    @property
    def command(self) -> str:
        """The command that runs the best point again."""
        return run_command(self.request, self.best.coordinates)


def parse_budget(text: str | None) -> Budget:
    """``60s``, ``5min`` or ``200``."""
    if text is None:
        return Budget()
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h)?\s*", text)
    amount = float(match[1]) if match else 0.0
    if match is None or amount <= 0 or (not match[2] and not amount.is_integer()):
        raise InputError(f"--budget {text}: give seconds (60s), minutes (5min), or a number of points (200)")
    if match[2]:
        return Budget(seconds=amount * {"s": 1, "min": 60, "h": 3600}[match[2]])
    return Budget(points=int(amount))


def run_command(request: Request, coordinates: Coordinates) -> str:
    """`hwsim run …` for one point of a request."""
    words = ["hwsim", "run", str(coordinates[MACHINE]), str(coordinates[WORKLOAD])]
    for axis in request.axes:
        value = coordinates[axis.name]
        text = f"{axis.name}={typed(value)}"
        words += ["--set", text] if axis.where == "machine" else [text]
    return shlex.join([*words, *(["--seed", str(request.seed)] if request.seed is not None else [])])


def tune(
    request: Request,
    metric: str,
    store: Store,
    *,
    budget: Budget = Budget(),  # noqa: B008 - it is frozen
    jobs: int | None = None,
    watch: Watcher = lambda doing, done, total: None,
) -> Search:
    """Search the grid of a request for the least of a metric (or the most, where more is better)."""
    check_request(request)
    store.check_model()
    return _Tuner(request, full_name(metric), store, budget, jobs, watch).search()


class _Tuner:
    def __init__(
        self, request: Request, metric: str, store: Store, budget: Budget, jobs: int | None, watch: Watcher
    ) -> None:
        self.request, self.metric, self.store, self.budget, self.watch = request, metric, store, budget, watch
        self.jobs = jobs
        self.started = monotonic()
        self.sweep = store.begin(request)
        self.runner = Runner(store, self.sweep)
        self.resolver = Resolver(request)
        self.pruned: Counter[str] = Counter()
        self.simulated: dict[str, float | None] = {}
        self.simulated_positions: set[int] = set()
        self.estimated = 0

    def search(self) -> Search:
        total = self.request.count
        if total > LARGE:
            from hwsim.sweep.sampler import sample

            how = sample(self)
        else:
            points = self._distinct(self._point(i, c) for i, c in enumerate(self.request.coordinates()))
            if len(points) <= SMALL:
                how = "all of them were simulated"
                self.simulate(points)
            else:
                how = self._ranked(self.feasible(points))
        results = load_results(self.store, self.sweep, self.request)
        results = results.only(row for row in results if row.position in self.simulated_positions)
        if not any(row.metrics.get(self.metric) is not None for row in results.done):
            self._explain_nothing(results)
        return Search(self.request, self.metric, results, how, total, self.estimated, len(self.simulated), self.pruned)

    def feasible(self, points: Sequence[Point]) -> list[Point]:
        kept = []
        for number, point in enumerate(points):
            self.watch("checking", number, len(points))
            rule = point.error if point.job is None else broken_rule(*specs(point.job))
            if rule is None:
                kept.append(point)
            else:
                self.pruned[rule] += 1
        if not kept:
            reasons = "; ".join(f"{rule} ({count})" for rule, count in self.pruned.most_common(3))
            raise InputError(f"none of the {len(points)} combinations fits: {reasons}")
        return kept

    def _ranked(self, points: list[Point]) -> str:
        """Simulate the best third by estimate."""
        most = self.budget.points or max(1, self.request.count // SHARE)
        if len(points) <= most and self.budget.seconds is None:
            self.simulate(points)
            return "all that fit were simulated"
        guesses: list[tuple[float, int, Point]] = []
        for number, point in enumerate(points):
            self.watch("estimating", number, len(points))
            guesses.append((self.guess(point), number, point))
        guesses.sort(key=lambda guess: guess[:2])
        self.simulate([point for cost, _, point in guesses if cost < REFUSED], most)
        if not self.estimated:
            return "no estimate for this machine: in the order of the grid"
        return "the best by estimate were simulated"

    def guess(self, point: Point) -> float:
        """The cost of a point by estimate; the same for all where there is none."""
        assert point.job is not None, "only feasible points are estimated"
        try:
            found = estimate(*specs(point.job))
        except InputError as error:
            self.pruned[str(error).splitlines()[0]] += 1
            return REFUSED
        if found is None:
            return 0.0
        self.estimated += 1
        return self.cost(found.get(self.metric))

    def cost(self, value: object) -> float:
        if not isinstance(value, int | float):
            return float("inf")
        return -float(value) if about(self.metric).higher_is_better else float(value)

    def simulate(self, points: Sequence[Point], most: int | None = None) -> None:
        """Run points in order, until the budget is used up; what the store has costs nothing."""
        limit = min(x for x in (most, self.budget.points, len(points)) if x is not None)
        chosen = list(islice(points, limit))
        for done, news in enumerate(self._run(iter(chosen)), start=1):
            self.note(news)
            self.watch("simulating", done, len(chosen))
            if self.out_of_time:
                return

    def _run(self, points: Iterator[Point]) -> Iterator[Finished]:
        found: list[Finished] = []
        missing = self.runner.missing(points, found)
        first = next(missing, None)
        while found:
            yield found.pop(0)
        if first is None:
            return
        news = self.runner.first(first)
        yield news
        rest = list(missing)
        yield from found
        backend: Backend = InProcess()
        cores = self.jobs or usable_cores()
        if cores > 1 and (news.seconds or 0.0) * len(rest) > WORTH_STARTING_S:
            backend = make_backend("processes", self.jobs)
        yield from self.runner.run(iter(rest), backend)

    def note(self, news: Finished) -> None:
        stored = self.store.get(news.point.key)
        value = None
        if stored is not None and stored.result is not None:
            from hwsim.results.metrics import metrics_of
            from hwsim.results.result import RunResult

            found = metrics_of(RunResult.from_json(stored.result)).get(self.metric)
            value = float(found) if isinstance(found, int | float) else None
        self.simulated[news.point.key] = value
        self.simulated_positions.add(news.point.position)

    @property
    def out_of_time(self) -> bool:
        return self.budget.seconds is not None and monotonic() - self.started > self.budget.seconds

    def point_at(self, choice: Sequence[int]) -> Point:
        """The point with the given index on every axis."""
        axes = self.request.all_axes
        position = 0
        for axis, index in zip(axes, choice, strict=True):
            position = position * len(axis.values) + index
        coordinates = {axis.name: axis.values[index] for axis, index in zip(axes, choice, strict=True)}
        return self._point(position, coordinates)

    def _point(self, position: int, coordinates: Coordinates) -> Point:
        try:
            return Point(position, coordinates, self.resolver.job(coordinates))
        except InputError as error:
            return Point(position, coordinates, None, str(error).splitlines()[0])

    def _distinct(self, points: Iterator[Point]) -> list[Point]:
        """One of those that mean the same."""
        return list({point.key: point for point in reversed(list(points))}.values())[::-1]

    def _explain_nothing(self, results: ResultSet) -> None:
        if results.done:
            results.check_metric(self.metric)
            raise InputError(f"no simulated point has {self.metric}; does this machine have energy prices?")
        reasons = Counter(row.error or "" for row in results.failed)
        raise InputError("no point could be simulated: " + "; ".join(reasons))


def specs(job: Job) -> tuple[MachineSpec, WorkloadSpec]:
    """The machine and the workload of a job."""
    from hwsim.sweep.worker import machine_of_job

    data = json.loads(job.workload)
    machine = machine_of_job(job)
    return machine, in_own_format(machine, workload_model(data.get("op")).model_validate(data, strict=False))
