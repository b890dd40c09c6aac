"""Where points are computed: in this process, in others on this computer, or on a Dask cluster.

The one interface is `concurrent.futures.Executor`; a Backend opens one, and tells which errors mean that a worker died.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext
from types import ModuleType, TracebackType
from typing import Any, TypeVar

from hwsim.errors import InputError

NAMES = ("auto", "inprocess", "processes", "dask")


class Backend(ABC):
    """Opens executors; a new one after a worker has died, where the old one is of no more use."""

    name: str
    workers: int
    died: tuple[type[BaseException], ...] = ()
    """What a future raises when its worker died."""
    dies_as_a_whole = False
    """Whether one dead worker takes all points in flight with it."""

    warning = ""
    """What whoever starts it should know."""

    @abstractmethod
    def open(self) -> Executor: ...

    def check(self) -> None:
        """Raises PassingError where nobody is left who could compute."""
        return

    def submit(self, executor: Executor, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        return executor.submit(function, *arguments)

    def close(self, executor: Executor) -> None:
        """Stop without waiting for what is in flight."""
        executor.shutdown(wait=False, cancel_futures=True)


class InProcess(Backend):
    """One point after the other, here: nothing to start, and a debugger sees everything."""

    name, workers = "inprocess", 1

    def open(self) -> Executor:
        return _Immediately()


class Processes(Backend):
    """Worker processes on this computer. They know hwsim and nothing of the user's program.

    On Linux they are copies of one process that has imported what this one has, and so begin at once.
    """

    name = "processes"
    died = (BrokenExecutor,)
    dies_as_a_whole = True

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def open(self) -> Executor:
        context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
        if isinstance(context, ForkServerContext):
            context.set_forkserver_preload([name for name in sys.modules if _is_model(name)])
            _start_tracker()
        return ProcessPoolExecutor(self.workers, context, initializer=_start_worker, initargs=(dict(os.environ),))

    def submit(self, executor: Executor, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        try:
            with _no_main():
                return executor.submit(function, *arguments)
        except KeyboardInterrupt:  # a worker that is still to be made would find nobody to work for
            _end(getattr(forkserver._forkserver, "_forkserver_pid", None))
            raise

    def close(self, executor: Executor) -> None:
        """Workers at work would keep this process waiting: they are ended, and lose nothing that counts."""
        processes = list(getattr(executor, "_processes", None) or {})
        executor.shutdown(wait=False, cancel_futures=True)
        for pid in processes:
            _end(pid)


Item = TypeVar("Item")
Result = TypeVar("Result")


def in_parallel(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
    """Each item and what the function makes of it, as it is done, by one process for each core; what was not begun is
    dropped when the caller stops."""
    backend = Processes(usable_cores())
    pool = backend.open()
    try:
        begun = {backend.submit(pool, function, item): item for item in items}
        for done in as_completed(begun):
            yield begun[done], done.result()
    finally:
        backend.close(pool)


@dataclass(frozen=True)
class Tls:
    """Certificates by which a scheduler, its workers and this process know each other: paths of PEM files."""

    ca: str
    """Who signs the others."""
    cert: str
    key: str


def make_backend(name: str, jobs: int | None, scheduler: str | None = None, tls: Tls | None = None) -> Backend:
    """The backend of a name; `auto` is the caller's to decide."""
    if name not in NAMES:
        from hwsim.spec.fields import did_you_mean

        raise InputError(f"--executor {name}: not one of {', '.join(NAMES)}{did_you_mean(name, NAMES)}")
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs {jobs}: at least 1 is needed")
    if scheduler is not None and name != "dask":
        raise InputError("--scheduler is for --executor dask")
    if tls is not None and (scheduler is None or not scheduler.startswith("tls://")):
        raise InputError("certificates are for a scheduler that uses them: --scheduler tls://HOST:8786")
    if name == "dask":
        from hwsim.sweep.dask_backend import DaskBackend

        return DaskBackend(jobs or usable_cores(), scheduler, tls)
    if name == "inprocess":
        return InProcess()
    return Processes(jobs or usable_cores())


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Immediately(Executor):
    """Computes at once, in the thread that asks."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with _Settled(future):
            future.set_result(fn(*args, **kwargs))
        return future


class _Settled(AbstractContextManager[None]):
    """An error inside becomes the future's, as in every executor; Ctrl-C goes on to the user."""

    def __init__(self, future: Future[Any]) -> None:
        self.future = future

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self.future.set_exception(error)
        return True


def _is_model(module: str) -> bool:
    return module.startswith(("hwsim.", "llvmlite.")) and not module.startswith("hwsim.cli")


def _start_tracker() -> None:
    """Python's process that clears up behind others; that it had to, because they were ended, is no news."""
    before = sys.warnoptions[:]
    sys.warnoptions.append("ignore::UserWarning:multiprocessing.resource_tracker")
    try:
        resource_tracker.ensure_running()
    finally:
        sys.warnoptions[:] = before


@contextmanager
def _no_main() -> Iterator[None]:
    """Workers import hwsim, never the user's program: a script needs no `if __name__ == "__main__"`."""
    own = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = own


def _start_worker(environment: dict[str, str]) -> None:
    """Ctrl-C is the parent's to handle; when the parent is gone, so is the worker. What it is a copy of may have begun
    in another environment."""
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _end(pid: int | None) -> None:
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
