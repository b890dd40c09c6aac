"""The sweep itself: which points are there, which are to be computed, by whom, and what is kept of each."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from hwsim.api import DEFAULT_MACHINE, DEFAULT_WORKLOAD, resolve_workload
from hwsim.errors import HwsimError, InputError
from hwsim.program.operation import is_own
from hwsim.sweep.executor import Backend, InProcess, Tls, make_backend, usable_cores
from hwsim.sweep.grid import SweepRequest, make_request
from hwsim.sweep.point import Answer, Point, answer, check_request, model_version, resolve_points, run_inputs
from hwsim.sweep.result_set import ResultSet, load_results
from hwsim.sweep.store import MEMORY, ResultStore, Status

TRIES = 3
"""A point whose worker dies so often while nothing else runs is given up."""

_REUSED_AT_ONCE = 500

_LOOK_S = 5.0
"""How often one looks whether there is still somebody who computes."""


@dataclass(frozen=True)
class Finished:
    """News for whoever watches: one point has its answer."""

    point: Point
    status: Status
    reused: bool = False
    error: str | None = None
    seconds: float | None = None
    """How long it took here, for an estimate; never stored."""


@dataclass
class SweepTally:
    """How a sweep went."""

    computed: int = 0
    reused: int = 0
    failed: int = 0
    lost: int = 0
    """Those of the failed that are tried again next time."""
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, news: Finished) -> None:
        if news.reused:
            self.reused += 1
        elif news.status == "done":
            self.computed += 1
        if news.status != "done":
            self.failed += 1
            self.lost += news.status == "lost"
            self.errors[(news.error or "").splitlines()[0] if news.error else ""] += 1


class Runner:
    """Computes the points that a store does not have yet, and keeps each as it is finished."""

    def __init__(self, store: ResultStore, sweep: int, *, retry: bool = False) -> None:
        self.store = store
        self.sweep = sweep
        self.kept: tuple[Status, ...] = ("done",) if retry else ("done", "failed")
        """What is not computed again: results, and refusals of the model, which it would only repeat."""

    def missing(self, points: Iterator[Point], found: list[Finished]) -> Iterator[Point]:
        """Points that have to be computed; news of all others goes to `found`."""
        together: list[Point] = []
        for point in points:
            status = self.store.status(point.key)
            if status in self.kept:
                stored = None if status == "done" else self.store.get(point.key)
                found.append(Finished(point, status, reused=True, error=stored.error if stored else None))
                together.append(point)
                if len(together) >= _REUSED_AT_ONCE:
                    self.store.reuse(self.sweep, together)
                    together = []
            elif point.inputs is None:
                found.append(self._keep(point, "lost" if point.passing else "failed", None, point.error))
            else:
                yield point
        self.store.reuse(self.sweep, together)

    def first(self, point: Point) -> Finished:
        """Compute one point here: it warms what is compiled, and tells how long the others may take."""
        assert point.inputs is not None, "points without inputs are kept as failed"
        started = perf_counter()
        future = InProcess().open().submit(answer, run_inputs, point.inputs)
        news = self._settle(point, future)
        return Finished(point, news.status, error=news.error, seconds=perf_counter() - started)

    def run(self, points: Iterator[Point], backend: Backend) -> Iterator[Finished]:
        """Compute points side by side. A worker that dies takes nothing with it: its points are tried again."""
        flight = _Flight(backend)
        try:
            yield from self._fly(points, flight, backend)
        finally:
            flight.close()

    def _fly(self, points: Iterator[Point], flight: _Flight, backend: Backend) -> Iterator[Finished]:
        suspects: deque[tuple[Point, int]] = deque()
        waiting = True
        while waiting or flight.pending or suspects:
            while waiting and not suspects and flight.has_room:
                point = next(points, None)
                waiting = point is not None
                if point is not None:
                    flight.start(point, 0)
            if suspects and not flight.pending:
                flight.start(*suspects.popleft())
            landed = flight.landed()
            if any(_died(future, backend) for _, _, future in landed):
                backend.check()
            for point, tries, future in landed:
                if _died(future, backend):
                    guilty = not backend.dies_as_a_whole or (flight.alone and len(landed) == 1)
                    tries += guilty
                    if tries >= TRIES:
                        yield self._keep(point, "lost", None, _LOST)
                    else:
                        suspects.append((point, tries))
                    flight.broken = backend.dies_as_a_whole
                else:
                    yield self._settle(point, future)
            flight.mend()

    def _settle(self, point: Point, future: Future[Any]) -> Finished:
        """What a future brought. A result and a refusal of the model are final; anything else may go another way next
        time: a file that was not there, a full disk, too little memory, a mistake of ours."""
        error = future.exception()
        if error is None:
            return self._accept(point, future.result())
        if isinstance(error, HwsimError):
            return self._keep(point, "lost", None, str(error))
        if isinstance(error, MemoryError):
            return self._keep(point, "lost", None, "there was not enough memory")
        if isinstance(error, OSError):
            return self._keep(point, "lost", None, f"the computer refused: {error}")
        return self._keep(point, "lost", None, f"internal error: {type(error).__name__}: {error}")

    def _accept(self, point: Point, found: Answer) -> Finished:
        """Numbers of another model are not ours, whoever computed them."""
        if found.model != model_version():
            raise InputError(
                f"a worker computes with model {found.model}, and this is model {model_version()}: its numbers were "
                "not kept; install the same hwsim there, and give the same command again"
            )
        if found.refusal is not None:
            return self._keep(point, "failed", None, found.refusal)
        return self._keep(point, "done", found.result, None)

    def _keep(self, point: Point, status: Status, result: str | None, error: str | None) -> Finished:
        self.store.finish(self.sweep, point, status, result, error)
        return Finished(point, status, error=error)


_LOST = f"the process that computed it died {TRIES} times (killed, or out of memory)"


def _died(future: Future[Any], backend: Backend) -> bool:
    if future.cancelled():
        return True
    return isinstance(future.exception(), (*backend.died, CancelledError))


class _Flight:
    """The points that workers have now."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.executor: Executor = backend.open()
        self.pending: dict[Future[Any], tuple[Point, int]] = {}
        self.broken = False
        self.alone = False

    @property
    def has_room(self) -> bool:
        """Two for each worker: one that it has, one that it takes next."""
        return len(self.pending) < 2 * self.backend.workers

    def start(self, point: Point, tries: int) -> None:
        self.alone = not self.pending
        try:
            future = self.backend.submit(self.executor, answer, run_inputs, point.inputs)
        except self.backend.died as error:
            future = Future()
            future.set_exception(error)
            self.alone = False
        self.pending[future] = (point, tries)

    def landed(self) -> list[tuple[Point, int, Future[Any]]]:
        """Wait for the next that are done, and take them out."""
        done: set[Future[Any]] = set()
        while self.pending and not done:
            done, _ = wait(self.pending, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
            if not done:
                self.backend.check()
        return [(*self.pending.pop(future), future) for future in list(self.pending) if future in done]

    def mend(self) -> None:
        """A new executor in place of a broken one, once nothing is in flight in the old one."""
        if self.broken and not self.pending:
            self.backend.close(self.executor)
            self.executor = self.backend.open()
            self.broken = False

    def close(self) -> None:
        self.backend.close(self.executor)


Names = str | Path | Sequence[str | Path]
Watcher = Callable[[Finished], None]

COMPILING_S = 1.0
"""A first point that takes longer may have waited for the compiler: a second one tells."""

WORTH_STARTING_S = 4.0
"""Starting worker processes takes some seconds: below this, one process is done sooner."""


def sweep(
    machine: Names = DEFAULT_MACHINE,
    workload: Names = DEFAULT_WORKLOAD,
    *,
    set: Mapping[str, object] | None = None,  # noqa: A002 - the same word as --set on the command line
    out: str | Path | None = None,
    jobs: int | None = None,
    executor: str = "auto",
    scheduler: str | None = None,
    seed: int | None = None,
    math: bool = True,
    yes: bool = False,
    retry: bool = False,
    tls: Tls | None = None,
    **parameters: object,
) -> ResultSet:
    """Simulate every combination: ``hwsim.sweep("course_cpu", "matmul_tiled", tile="8..64:x2", n=[64, 128])``.

    Values are one value, a list, or a text as on the command line. ``set`` does the same for fields of the machine.
    ``out`` is a store that keeps every finished point: the same call goes on where it was interrupted, and equal points
    are not run twice. Without it, nothing is left behind. ``yes`` allows grids of 100,000 points and more. ``retry``
    tries points again that the model has refused; those lost to passing faults are tried again in any case. ``tls`` has
    the certificates for a scheduler at ``tls://``.
    """
    request = make_request(machine, workload, parameters, set or {}, seed, math)
    request.check_size(yes)
    store = ResultStore(out if out is not None else MEMORY)
    for _ in run_request(request, store, executor, jobs, scheduler, retry=retry, tls=tls):
        pass
    return load_results(store, store.begin(request), request)


def run_request(
    request: SweepRequest,
    store: ResultStore,
    executor: str = "auto",
    jobs: int | None = None,
    scheduler: str | None = None,
    told: Callable[[str], None] = lambda words: None,
    *,
    retry: bool = False,
    tls: Tls | None = None,
) -> Iterator[Finished]:
    """Compute what the store does not have; yields news of every point. `told` gets the estimate, in one line."""
    backend = make_backend("processes" if executor == "auto" else executor, jobs, scheduler, tls)
    if backend.warning:
        told(backend.warning)
    check_request(request)
    store.check_model()
    backend = _own_operations(request, store, executor, backend)
    runner = Runner(store, store.begin(request), retry=retry)
    found: list[Finished] = []
    points = runner.missing(resolve_points(request), found)
    first = next(points, None)
    yield from _taken(found)
    if first is None:
        told(f"{request.count:,} points: all of them are here already")
        return
    news = runner.first(first)
    yield news
    if (news.seconds or 0.0) > COMPILING_S and (second := next(points, None)) is not None:
        news = runner.first(second)
        yield news
    estimate = (news.seconds or 0.0) * (request.count - 1)
    if executor == "auto" and backend.name != "inprocess":
        backend = _choose(estimate, jobs, backend)
    told(_estimate(request, estimate, backend, news))
    for news in runner.run(points, backend):
        yield from _taken(found)
        yield news
    yield from _taken(found)


def _choose(estimate: float, jobs: int | None, processes: Backend) -> Backend:
    """Worker processes where they save more than starting them costs."""
    if (jobs or usable_cores()) == 1 or estimate < WORTH_STARTING_S:
        return InProcess()
    return processes


def _estimate(request: SweepRequest, estimate: float, backend: Backend, first: Finished) -> str:
    where = {"inprocess": "in this process", "processes": f"in {backend.workers} processes", "dask": "on Dask"}
    length = duration(estimate / max(1, backend.workers))
    first_s = duration(first.seconds or 0.0)
    return (
        f"{request.count:,} points ({request.size_words()}): about {length} {where[backend.name]}, "
        f"if no other takes longer than the first: {first_s}"
    )


def duration(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _own_operations(request: SweepRequest, store: ResultStore, executor: str, backend: Backend) -> Backend:
    """What was declared in this process exists nowhere else, and may change without changing its name."""
    if not any(is_own(resolve_workload(name, {}).operation) for name in request.workloads):
        return backend
    if executor not in ("auto", "inprocess"):
        raise InputError("an operation of your own exists only in this process; sweep it with executor='inprocess'")
    if store.name != MEMORY:
        raise InputError(
            "an operation of your own may change and keep its name, so its points are not kept: leave out="
        )
    return InProcess()


def _taken(found: list[Finished]) -> Iterator[Finished]:
    while found:
        yield found.pop(0)
