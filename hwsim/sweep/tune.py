"""Tune: the best schedule, by the cost model of the machine's own target, without doing the math.

A small space is simulated whole. Where a target can estimate (caches: see `hwsim.memory.footprint`), what breaks a
capacity rule is left out, the rest is estimated, and only the promising third is simulated, the best estimate first;
a space that is too large even for that is sampled. Elsewhere a simulation is quick: a search goes from the default
schedule, one choice at a time, as long as it gets better. What is reported as the best runs once more with math, unless
that would take much longer than the search.

`hwsim.tune`: the best schedule that a search finds, for Python and notebooks.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from itertools import islice
from pathlib import Path
from time import monotonic, process_time
from typing import TYPE_CHECKING, Any

from hwsim.api import DEFAULT_MACHINE, DEFAULT_WORKLOAD, prepare, run_all
from hwsim.engine import play
from hwsim.errors import InputError
from hwsim.program.loop_kernel import build_kernel
from hwsim.result import RunResult
from hwsim.results.explanation import assemble, explain
from hwsim.results.metrics import Amount, about, full_name, metrics_of, write
from hwsim.spec.machine import MachineSpec
from hwsim.spec.workload import WorkloadSpec
from hwsim.sweep.executor import Backend, InProcess, make_backend, usable_cores
from hwsim.sweep.grid import MACHINE, WORKLOAD, Coordinates, SweepRequest, make_request, typed
from hwsim.sweep.point import Point, Resolver, RunInputs, check_request, specs_of
from hwsim.sweep.result_set import ResultSet, Row, load_results
from hwsim.sweep.runner import COMPILING_S, WORTH_STARTING_S, Finished, Runner
from hwsim.sweep.search import broken_rule, chosen_axes, usual_space
from hwsim.sweep.store import MEMORY, ResultStore
from hwsim.target import find_target
from hwsim.units import digits

if TYPE_CHECKING:
    from hwsim.results.plot.style import Figure

SMALL = 6
"""Up to so many combinations are all simulated."""

LARGE = 3000
"""More combinations than this are sampled."""

SHARE = 3
"""One in so many of the feasible combinations is simulated."""

FEW = 24
"""Up to so many are all simulated where nothing is estimated."""

PATIENCE_S = 5.0
"""A search from choice to choice ends after so many seconds of this process where no budget is given."""

MOST_MATH = 2e10
"""Operations whose answer is computed for the best point: more take longer than a search should."""

REFUSED = float("inf")
"""The cost of a schedule that turns out not to be possible."""

Watcher = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Budget:
    """When a search stops: after so many simulated points, or so many seconds."""

    points: int | None = None
    seconds: float | None = None


_USUAL = Budget()


@dataclass(repr=False)
class Tuned:
    """What a search did, and what it found."""

    request: SweepRequest
    metric: str
    results: ResultSet
    how: str
    candidates: int
    estimated: int = 0
    simulated: int = 0
    pruned: Counter[str] = field(default_factory=Counter)
    default: RunResult | None = None
    """The run of the default schedule, with all that was not searched as it was given; None where it cannot run."""
    fixed: dict[str, Any] = field(default_factory=dict)
    """Choices of the schedule that were given one value: the default has them too."""
    found: RunResult | None = None
    """The run of the best point, with math if the request has it and that is quick."""
    left_out: bool = False
    """Whether the math of the best point was left out because it would take long."""

    @property
    def best(self) -> Row:
        return self.results.best(self.metric)

    @property
    def front(self) -> ResultSet:
        """What no other simulated point beats in time and energy at once, and in what was asked for."""
        names = [name for name in ("time_s", "energy_j") if self.best.metrics.get(name) is not None]
        return self.results.pareto(*dict.fromkeys([*names, self.metric]))

    @property
    def choices(self) -> dict[str, Any]:
        """What was chosen, without what was left to the machine."""
        found = {axis.name: self.best[axis.name] for axis in self.request.swept}
        return {name: value for name, value in found.items() if value != "auto"}

    @property
    def result(self) -> RunResult:
        """The run of the best point."""
        assert self.found is not None
        return self.found

    @property
    def command(self) -> str:
        """The command that runs the best point again."""
        return run_command(self.request, self.best.coordinates)

    @cached_property
    def values(self) -> tuple[float, float] | None:
        """What was asked for with the default schedule, and with the best."""
        both = [None if run is None else metrics_of(run).get(self.metric) for run in (self.default, self.found)]
        before, after = both
        if not isinstance(before, int | float) or not isinstance(after, int | float):
            return None
        return float(before), float(after)

    @property
    def gain(self) -> float | None:
        """How many times better than the default; 1 where the default is the best, None without a default."""
        if self.values is None or 0.0 in self.values:
            return None
        before, after = self.values
        return after / before if about(self.metric).higher_is_better else before / after

    @property
    def baseline(self) -> str:
        """The schedule that the best one is compared with, in words."""
        kept = " ".join(f"{name}={typed(value)}" for name, value in self.fixed.items())
        return f"the default schedule with {kept}" if kept else "the default schedule"

    @property
    def bounds(self) -> tuple[str, str] | None:
        """What decided the time before and after."""
        if self.default is None or self.found is None:
            return None
        return explain(self.default).bound.short, explain(self.found).bound.short

    def plot(self, path: str | Path | None = None) -> Figure:
        """Time against energy of all that was simulated, with what nothing beats."""
        return self.results.plot("pareto", path)

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _repr_html_(self) -> str:
        return "<div>" + "".join(f"<p>{escape(line)}</p>" for line in self._lines()) + "</div>"

    def _lines(self) -> list[str]:
        word = "most" if about(self.metric).higher_is_better else "least"
        chosen = ", ".join(f"{name}={value}" for name, value in self.choices.items()) or "the default"
        lines = [f"{word} {about(self.metric).title}: {write(self.metric, self.best[self.metric])} with {chosen}"]
        if self.gain is not None:
            lines.append(f"{digits(self.gain)} times better than {self.baseline}")
        return [*lines, f"{self.candidates:,} combinations, {self.simulated:,} simulated", self.command]


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


def run_command(request: SweepRequest, coordinates: Coordinates) -> str:
    """`hwsim run …` for one point of a request; what is left to the machine is left out."""
    words = ["hwsim", "run", str(coordinates[MACHINE]), str(coordinates[WORKLOAD])]
    for axis in request.axes:
        value = coordinates[axis.name]
        text = f"{axis.name}={typed(value)}"
        if value != "auto":
            words += ["--set", text] if axis.where == "machine" else [text]
    return shlex.join([*words, *(["--seed", str(request.seed)] if request.seed is not None else [])])


def find_best(
    request: SweepRequest,
    metric: str,
    store: ResultStore,
    *,
    budget: Budget = _USUAL,
    jobs: int | None = None,
    watch: Watcher = lambda doing, done, total: None,
    default_first: bool = False,
) -> Tuned:
    """Search the grid of a request for the least of a metric (or the most, where more is better).

    With `default_first`, the first point of the grid is the default schedule, and is simulated in any case.
    """
    check_request(request)
    store.check_model()
    name = full_name(metric)
    searched = request if name.startswith("error") or name == "verified" else replace(request, math=False)
    search = Tuner(searched, name, store, budget, jobs, watch, default_first).search()
    search.request = request
    _report(search, request, store, watch)
    return search


def _report(search: Tuned, request: SweepRequest, store: ResultStore, watch: Watcher) -> None:
    """Run the best with math, where that is quick, and the default for comparison."""
    best = search.best.coordinates
    flops = search.best.metrics.get("flops")
    search.left_out = request.math and isinstance(flops, int | float) and flops > MOST_MATH
    watch("running the best", 0, 2)
    resolver = Resolver(replace(request, math=request.math and not search.left_out))
    search.found = _run(resolver, best, store)
    target = find_target(specs_of(resolver.inputs(best))[0])
    choices = chosen_axes(target, str(best[WORKLOAD]), [axis.name for axis in request.axes if axis.where == "workload"])
    searched = {axis.name for axis in request.swept}
    plain = {name: value for name, value in best.items() if name not in choices or name not in searched}
    search.fixed = {name: best[name] for name in choices if name not in searched}
    watch("running the default", 1, 2)
    try:
        math = request.math and search.metric.startswith("error")
        search.default = _run(Resolver(replace(request, math=math)), plain, store)
    except InputError:
        search.default = None  # some schedules are needed: a size alone may not fit


def _run(resolver: Resolver, coordinates: Coordinates, store: ResultStore) -> RunResult:
    """The result of a point: what the search kept, or a run."""
    inputs = resolver.inputs(coordinates)
    stored = store.get(inputs.key)
    if stored is not None and stored.data is not None:
        return RunResult.from_dict(stored.data)
    return run_all(*specs_of(inputs), math=inputs.math).result


class Tuner:
    """One search through a grid."""

    def __init__(
        self,
        request: SweepRequest,
        metric: str,
        store: ResultStore,
        budget: Budget,
        jobs: int | None,
        watch: Watcher,
        default_first: bool = False,
    ) -> None:
        self.request, self.metric, self.store, self.budget, self.watch = request, metric, store, budget, watch
        self.jobs, self.default_first = jobs, default_first
        self.started, self.spent = monotonic(), process_time()
        self.sweep = store.begin(request)
        self.runner = Runner(store, self.sweep)
        self.resolver = Resolver(request)
        self.pruned: Counter[str] = Counter()
        self.simulated: dict[str, float | None] = {}
        self.simulated_positions: set[int] = set()
        self.estimated = 0

    def search(self) -> Tuned:
        total = self.request.count
        how = self._search(total)
        results = load_results(self.store, self.sweep, self.request)
        results = results.only(row for row in results if row.position in self.simulated_positions)
        if not any(row.metrics.get(self.metric) is not None for row in results.done):
            self._explain_nothing(results)
        return Tuned(self.request, self.metric, results, how, total, self.estimated, len(self.simulated), self.pruned)

    def _search(self, total: int) -> str:
        """Simulate what is worth it; says how that was decided."""
        from hwsim.sweep import search

        if total > SMALL and not self._can_estimate():
            if total <= FEW and self.budget.points is None:
                self.simulate(self._all_points())
                return "all of them were simulated"
            return search.step_from_the_first(self)
        if total > LARGE:
            return search.sample(self)
        points = self._all_points()
        if len(points) <= SMALL:
            self.simulate(points)
            return "all of them were simulated"
        return self._ranked(self.feasible(points))

    def _all_points(self) -> list[Point]:
        return self._distinct(self._point(i, c) for i, c in enumerate(self.request.coordinates()))

    def _can_estimate(self) -> bool:
        """Whether the target has a quicker way to a cost than a simulation; asked with the first point that is one."""
        for position, coordinates in islice(enumerate(self.request.coordinates()), LARGE):
            point = self._point(position, coordinates)
            with suppress(InputError):
                if point.inputs is not None:
                    machine, work = specs_of(point.inputs)
                    return find_target(machine).estimate(build_kernel(work, math=False), work) is not None
        return False

    def feasible(self, points: Sequence[Point]) -> list[Point]:
        kept = []
        for number, point in enumerate(points):
            self.watch("checking", number, len(points))
            rule = point.error if point.inputs is None else broken_rule(*specs(point.inputs))
            if rule is None or (point.inputs is not None and self.default_first and point.position == 0):
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
        guesses.sort(key=lambda guess: (not (self.default_first and guess[2].position == 0), *guess[:2]))
        self.simulate([point for cost, _, point in guesses if cost < REFUSED], most)
        return "the best by estimate were simulated"

    def guess(self, point: Point) -> float:
        """The cost of a point by estimate; the same for all where there is none."""
        assert point.inputs is not None, "only feasible points are estimated"
        try:
            found = estimate(*specs(point.inputs))
        except InputError as error:
            self.pruned[str(error).splitlines()[0]] += 1
            return REFUSED
        if found is None:
            return 0.0
        self.estimated += 1
        return self.cost(found.get(self.metric))

    def cost(self, value: object) -> float:
        if not isinstance(value, int | float):
            return REFUSED
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

    def simulate_one(self, choice: Sequence[int]) -> float:
        """The cost of the point with the given index on every axis; what was simulated before is known."""
        point = self.point_at(choice)
        if point.key not in self.simulated:
            for news in self._run(iter([point])):
                self.note(news)
                if news.error:
                    self.pruned[news.error.splitlines()[0]] += 1
        return self.cost(self.simulated.get(point.key))

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
        if (news.seconds or 0.0) > COMPILING_S and (second := next(missing, None)) is not None:
            news = self.runner.first(second)
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
        if stored is not None and stored.data is not None:
            found = metrics_of(RunResult.from_dict(stored.data)).get(self.metric)
            value = float(found) if isinstance(found, int | float) else None
        self.simulated[news.point.key] = value
        self.simulated_positions.add(news.point.position)

    @property
    def out_of_time(self) -> bool:
        return self.budget.seconds is not None and monotonic() - self.started > self.budget.seconds

    @property
    def out_of_patience(self) -> bool:
        """Whether a search without a budget has gone on for long enough."""
        return self.budget == Budget() and process_time() - self.spent > PATIENCE_S

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
            return Point(position, coordinates, self.resolver.inputs(coordinates))
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


def specs(inputs: RunInputs) -> tuple[MachineSpec, WorkloadSpec]:
    """The machine and the workload of a run, with what the machine takes where nobody chose."""
    machine, work = specs_of(inputs)
    return machine, find_target(machine).defaults(work)


def estimate(machine: MachineSpec, workload: WorkloadSpec) -> dict[str, Amount] | None:
    """Metrics of a run that was not simulated; None where simulating is as quick."""
    kernel = prepare(machine, workload, math=False)
    crew = find_target(machine).estimate(kernel, workload)
    if crew is None:
        return None
    return metrics_of(assemble(machine, workload, kernel, play(crew), seed=workload.seed))


def tune(
    machine: str = DEFAULT_MACHINE,
    workload: str = DEFAULT_WORKLOAD,
    *,
    metric: str = "time",
    budget: str | None = None,
    set: Mapping[str, object] | None = None,  # noqa: A002 - the same word as --set on the command line
    math: bool = True,
    jobs: int | None = None,
    **parameters: object,
) -> Tuned:
    """Find the best schedule: ``hwsim.tune("course_cpu", "matmul_tiled", n=64, tile="4..64:x2", metric="energy")``.

    Without any list or range, the machine's own choices are searched. ``budget`` is a time or a number of points, as on
    the command line: ``"60s"``, ``"200"``.
    """
    request, usual = search_request(machine, workload, parameters, set or {}, math)
    return find_best(request, metric, ResultStore(MEMORY), budget=parse_budget(budget), jobs=jobs, default_first=usual)


def search_request(
    machine: str, workload: str, parameters: Mapping[str, object], fields: Mapping[str, object], math: bool
) -> tuple[SweepRequest, bool]:
    """What to search, and whether it is the machine's own space, which begins with the default."""
    request = make_request(machine, workload, parameters, fields, math=math)
    if request.swept:
        return request, False
    space = usual_space(machine, workload, parameters, [f"{name}={value}" for name, value in fields.items()])
    return make_request(machine, workload, space, fields, math=math), True
