"""Points on a Dask cluster: one that runs already, or one of local processes that is started for the sweep.

Workers need hwsim installed, nothing else: a point carries its machine and workload with it.
"""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any

from hwsim.errors import InputError
from hwsim.sweep.executor import Backend

_CONNECT_S = 15


class DaskBackend(Backend):
    """A Dask client behind the executor interface. Dask itself moves the points of a dead worker to another."""

    name = "dask"

    def __init__(self, workers: int, scheduler: str | None = None) -> None:
        try:
            import distributed
        except ImportError:
            raise InputError("--executor dask needs Dask: pip install 'hwsim[dask]'") from None
        self.died = (distributed.scheduler.KilledWorker,)
        self.scheduler = scheduler
        self.workers = workers
        self._client: Any = None

    def open(self) -> Executor:
        import distributed

        if self._client is None:
            make: Any = distributed.Client
            try:
                if self.scheduler is None:
                    self._client = make(n_workers=self.workers, threads_per_worker=1, dashboard_address=None)
                else:
                    self._client = make(self.scheduler, timeout=_CONNECT_S)
            except (OSError, ValueError) as error:
                raise InputError(f"there is no Dask scheduler at {self.scheduler}: {error}") from error
            threads = sum(self._client.nthreads().values())
            self.workers = max(1, threads)
        executor: Executor = self._client.get_executor(pure=False)
        return executor

    def close(self, executor: Executor) -> None:
        executor.shutdown(wait=False)
        if self._client is not None:
            self._client.close()
            self._client = None
