"""Where points are computed: in this process, in others on this computer, or on a Dask cluster.

The one interface is `concurrent.futures.Executor`; a Backend opens one, and tells which errors mean that a worker died.

A Dask cluster: one that runs already, or one on this computer that lives as long as the sweep.

Whoever may speak to a Dask scheduler may run code on its workers. So a cluster that hwsim starts listens on this
computer alone and, where the package `cryptography` is there, only to those who have the certificates made for
it. A running cluster is as safe as it was set up; `tls://` with certificates is the way.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures import CancelledError as FutureCancelled
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext
from time import monotonic
from types import ModuleType
from typing import Any, TypeVar
from urllib.parse import urlsplit

from hwsim.errors import InputError, PassingError
from hwsim.sweep.point import model_version

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
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - it becomes the future's, as in every executor; Ctrl-C goes on
            future.set_exception(error)
        return future


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


_CONNECT_S = 15
_WORKERS_S = 30
"""So long a scheduler may be without workers."""
_CLOSE_S = 5
_LOUD = ("distributed", "tornado", "asyncio")
_HERE = "127.0.0.1"


class DaskBackend(Backend):
    """A Dask client behind the executor interface. Dask itself moves the points of a dead worker to another."""

    name = "dask"

    def __init__(self, workers: int, scheduler: str | None = None, tls: Tls | None = None) -> None:
        try:
            import distributed
        except ImportError:
            raise InputError("--executor dask needs Dask: pip install 'hwsim[dask]'") from None
        self.died = (distributed.scheduler.KilledWorker,)
        self.scheduler = scheduler
        self.workers = workers
        self.tls = tls
        self.warning = self._warning()
        self._client: Any = None
        self._cluster: Any = None
        self._idle_since: float | None = None
        self._loud: dict[str, int] = {}

    def open(self) -> Executor:
        if self._client is None:
            self._hush()
            self._start() if self.scheduler is None else self._join(self.scheduler)
            try:
                self._check_workers()
            except (OSError, FutureCancelled, asyncio.CancelledError) as error:
                self._leave()
                raise PassingError(f"the Dask scheduler at {self._place} has gone; {_KEPT}") from error
        executor: Executor = self._client.get_executor(pure=False)
        return executor

    def check(self) -> None:
        """Raises PassingError where the scheduler has gone, or has had no workers for a while."""
        if self._client is None or self._client.status != "running":
            raise PassingError(f"the Dask scheduler at {self._place} has gone; {_KEPT}")
        if self._client.scheduler_info()["workers"]:
            self._idle_since = None
            return
        self._idle_since = self._idle_since or monotonic()
        if monotonic() - self._idle_since > _WORKERS_S:
            raise PassingError(f"the Dask scheduler at {self._place} has had no workers for {_WORKERS_S} s; {_KEPT}")

    def close(self, executor: Executor) -> None:
        executor.shutdown(wait=False)
        for each in (self._client, self._cluster):
            if each is not None:
                with suppress(TimeoutError, OSError):
                    each.close(timeout=_CLOSE_S)
        self._client = self._cluster = None
        for name, level in self._loud.items():
            logging.getLogger(name).setLevel(level)

    def _hush(self) -> None:
        """What goes wrong is said in our words; Dask would say it as well, with tracebacks."""
        names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] in _LOUD]
        names += ["asyncio", "tornado.application", "tornado.general"]
        self._loud = self._loud or {name: logging.getLogger(name).level for name in names}
        for name in names:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)

    def _start(self) -> None:
        """A cluster on this computer, which listens to nobody else."""
        import distributed

        make: Any = distributed.LocalCluster
        try:
            self._cluster = make(
                n_workers=self.workers,
                threads_per_worker=1,
                host=_HERE,
                dashboard_address=None,
                worker_dashboard_address=None,
                security=distributed.Security.temporary() if _can_make_certificates() else None,
                silence_logs=True,
            )
            client: Any = distributed.Client
            self._client = client(self._cluster, timeout=_CONNECT_S, set_as_default=False)
        except OSError as error:
            raise PassingError(f"no Dask cluster can be started on this computer: {error}") from error

    def _join(self, scheduler: str) -> None:
        import distributed

        make: Any = distributed.Client
        try:
            found = _who_is(scheduler, self._security() or distributed.Security())
            if found != "Scheduler":
                raise InputError(f"{scheduler} is a Dask {found.lower()}, not a scheduler")
            self._client = make(scheduler, timeout=_CONNECT_S, security=self._security(), set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            raise PassingError(f"there is no Dask scheduler at {scheduler}: {error}") from error

    def _security(self) -> Any:
        """The certificates that were given, or those of Dask's own configuration."""
        import distributed

        if self.tls is None:
            return None
        make: Any = distributed.Security
        return make(
            tls_ca_file=self.tls.ca, tls_client_cert=self.tls.cert, tls_client_key=self.tls.key, require_encryption=True
        )

    def _check_workers(self) -> None:
        """Raises InputError where there are no workers, or some that would compute other numbers."""
        try:
            self._client.wait_for_workers(1, timeout=_WORKERS_S)
        except TimeoutError:
            self._leave()
            raise PassingError(
                f"the Dask scheduler at {self._place} has no workers; start some: dask worker {self._place}"
            ) from None
        own = model_version()
        for worker, found in self._client.run(model_version, on_error="return").items():
            if isinstance(found, OSError):
                continue  # it went while it was asked; what comes back from others says its model itself
            if found != own:
                self._leave()
                what = f"computes with model {found}" if isinstance(found, str) else f"cannot run hwsim ({found})"
                raise InputError(
                    f"the Dask worker at {worker} {what}, and this is model {own}: install the same hwsim there"
                )
        self.workers = max(1, sum(self._client.nthreads().values()))

    def _leave(self) -> None:
        with suppress(TimeoutError, OSError):
            self._client.close(timeout=_CLOSE_S)
        if self._cluster is not None:
            self._cluster.close(timeout=_CLOSE_S)
        self._client = self._cluster = None

    @property
    def _place(self) -> str:
        return self.scheduler or "this computer"

    def _warning(self) -> str:
        if self.scheduler is None:
            if _can_make_certificates():
                return ""
            return (
                "every user of this computer may send work to the Dask cluster that starts now; "
                "with the package cryptography it listens to you alone"
            )
        address = urlsplit(self.scheduler)
        if address.scheme in ("tls", "inproc") or address.hostname in (_HERE, "localhost", "::1"):
            return ""
        return (
            f"{self.scheduler} is neither encrypted nor protected: whoever reaches it may run code on its workers; "
            "use tls:// with --tls-ca, --tls-cert and --tls-key"
        )


_KEPT = "what was finished is kept, and the same command goes on from there"


def _who_is(address: str, security: Any) -> str:
    """What answers at an address: a client would wait for ever for a worker to do a scheduler's work."""
    import distributed

    async def ask() -> str:
        connect: Any = distributed.rpc
        async with connect(
            address, timeout=_CONNECT_S, connection_args=security.get_connection_args("client")
        ) as there:
            return str((await there.identity())["type"])

    async def ask_in_time() -> str:
        return await asyncio.wait_for(ask(), _CONNECT_S)

    with ThreadPoolExecutor(1) as aside:  # there may be a loop in this thread already, as in a notebook
        return aside.submit(lambda: asyncio.run(ask_in_time())).result()


def _can_make_certificates() -> bool:
    from importlib.util import find_spec

    return find_spec("cryptography") is not None
