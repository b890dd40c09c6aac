"""The sweep itself: which points are there, which are to be computed, by whom, and what is kept of each."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from hwsim.errors import HwsimError
from hwsim.sweep.executor import Backend, InProcess
from hwsim.sweep.point import Point
from hwsim.sweep.store import Status, Store
from hwsim.sweep.worker import run_job

TRIES = 3
"""A point whose worker dies so often while nothing else runs is given up."""

_REUSED_AT_ONCE = 500


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
class Tally:
    """How a sweep went."""

    computed: int = 0
    reused: int = 0
    failed: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, news: Finished) -> None:
        if news.reused:
            self.reused += 1
        elif news.status == "done":
            self.computed += 1
        if news.status != "done":
            self.failed += 1
            self.errors[(news.error or "").splitlines()[0] if news.error else ""] += 1


class Runner:
    """Computes the points that a store does not have yet, and keeps each as it is finished."""

    def __init__(self, store: Store, sweep: int) -> None:
        self.store = store
        self.sweep = sweep

    def missing(self, points: Iterator[Point], found: list[Finished]) -> Iterator[Point]:
        """Points that have to be computed; news of all others goes to `found`."""
        together: list[Point] = []
        for point in points:
            status = self.store.status(point.key)
            if status in ("done", "failed"):
                stored = None if status == "done" else self.store.get(point.key)
                found.append(Finished(point, status, reused=True, error=stored.error if stored else None))
                together.append(point)
                if len(together) >= _REUSED_AT_ONCE:
                    self.store.reuse(self.sweep, together)
                    together = []
            elif point.job is None:
                found.append(self._keep(point, "failed", None, point.error))
            else:
                yield point
        self.store.reuse(self.sweep, together)

    def first(self, point: Point) -> Finished:
        """Compute one point here: it warms what is compiled, and tells how long the others may take."""
        assert point.job is not None, "points without a job are kept as failed"
        started = perf_counter()
        future = InProcess().open().submit(run_job, point.job)
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
        """What a future brought: a result, a refusal of the model, or a mistake of ours, which is kept as well."""
        error = future.exception()
        if error is None:
            return self._keep(point, "done", future.result(), None)
        if isinstance(error, HwsimError):
            return self._keep(point, "failed", None, str(error))
        if isinstance(error, MemoryError):
            return self._keep(point, "lost", None, "there was not enough memory")
        return self._keep(point, "failed", None, f"internal error: {type(error).__name__}: {error}")

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
            future = self.backend.submit(self.executor, run_job, point.job)
        except self.backend.died as error:
            future = Future()
            future.set_exception(error)
            self.alone = False
        self.pending[future] = (point, tries)

    def landed(self) -> list[tuple[Point, int, Future[Any]]]:
        """Wait for the next that are done, and take them out."""
        done, _ = wait(self.pending, return_when=FIRST_COMPLETED)
        return [(*self.pending.pop(future), future) for future in list(self.pending) if future in done]

    def mend(self) -> None:
        """A new executor in place of a broken one, once nothing is in flight in the old one."""
        if self.broken and not self.pending:
            self.backend.close(self.executor)
            self.executor = self.backend.open()
            self.broken = False

    def close(self) -> None:
        self.backend.close(self.executor)
