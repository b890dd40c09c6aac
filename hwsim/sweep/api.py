"""`hwsim.sweep`: a grid of runs in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from hwsim.api import DEFAULT_MACHINE, DEFAULT_WORKLOAD, resolve_workload
from hwsim.errors import InputError
from hwsim.sweep.executor import Backend, InProcess, make_backend, usable_cores
from hwsim.sweep.point import check_request, resolve_points
from hwsim.sweep.request import Request, make_request
from hwsim.sweep.result_set import ResultSet, load_results
from hwsim.sweep.runner import Finished, Runner
from hwsim.sweep.store import MEMORY, Store

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
    **parameters: object,
) -> ResultSet:
    """Simulate every combination: ``hwsim.sweep("course_cpu", "matmul_tiled", tile="8..64:x2", n=[64, 128])``.

    Values are one value, a list, or a text as on the command line. ``set`` does the same for fields of the machine.
    ``out`` is a store that keeps every finished point: the same call goes on where it was interrupted, and equal points
    are not run twice. Without it, nothing is left behind. ``yes`` allows grids of 100,000 points and more.
    """
    request = make_request(machine, workload, parameters, set or {}, seed, math)
    request.check_size(yes)
    store = Store(out if out is not None else MEMORY)
    for _ in run_request(request, store, executor, jobs, scheduler):
        pass
    return load_results(store, store.begin(request), request)


def run_request(
    request: Request,
    store: Store,
    executor: str = "auto",
    jobs: int | None = None,
    scheduler: str | None = None,
    told: Callable[[str], None] = lambda words: None,
) -> Iterator[Finished]:
    """Compute what the store does not have; yields news of every point. `told` gets the estimate, in one line."""
    backend = make_backend("processes" if executor == "auto" else executor, jobs, scheduler)
    check_request(request)
    store.check_model()
    backend = _own_kernels(request, store, executor, backend)
    runner = Runner(store, store.begin(request))
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


def _estimate(request: Request, estimate: float, backend: Backend, first: Finished) -> str:
    where = {"inprocess": "in this process", "processes": f"in {backend.workers} processes", "dask": "on Dask"}
    length = _duration(estimate / max(1, backend.workers))
    first_s = _duration(first.seconds or 0.0)
    return (
        f"{request.count:,} points ({request.size_words()}): about {length} {where[backend.name]}, "
        f"if all take as long as this one: {first_s}"
    )


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _own_kernels(request: Request, store: Store, executor: str, backend: Backend) -> Backend:
    """A kernel that was registered in this process exists nowhere else, and may change without changing its name."""
    if all(resolve_workload(name, {}).op != "python" for name in request.workloads):
        return backend
    if executor not in ("auto", "inprocess"):
        raise InputError("a kernel of your own exists only in this process; sweep it with executor='inprocess'")
    if store.name != MEMORY:
        raise InputError("a kernel of your own may change and keep its name, so its points are not kept: leave out=")
    return InProcess()


def _taken(found: list[Finished]) -> Iterator[Finished]:
    while found:
        yield found.pop(0)
