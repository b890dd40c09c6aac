"""A Dask cluster: one that runs already, or one on this computer that lives as long as the sweep.

Whoever may speak to a Dask scheduler may run code on its workers. So a cluster that hwsim starts listens on this
computer alone and, where the package `cryptography` is there, only to those who have the certificates made for
it. A running cluster is as safe as it was set up; `tls://` with certificates is the way.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from hwsim.errors import InputError, PassingError
from hwsim.sweep.executor import Backend, Tls
from hwsim.sweep.point import model_version

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
