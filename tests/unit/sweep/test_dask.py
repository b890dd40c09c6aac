"""A real Dask cluster on this computer: a scheduler and two workers, one of which is killed half way."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import hwsim
from hwsim.errors import InputError
from hwsim.sweep.api import run_request
from hwsim.sweep.request import make_request
from hwsim.sweep.store import Store

pytest.importorskip("distributed", reason="Dask is an extra: pip install 'hwsim[dask]'")
ROOT = Path(hwsim.__file__).resolve().parent.parent
REQUEST = make_request("course_cpu", "matmul_tiled", {"n": "16..172:4", "tile": 4}, {})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DASK_DISTRIBUTED__WORKER__DAEMON": "False"}
    address = f"tcp://127.0.0.1:{free_port()}"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment, "cwd": str(tmp_path)}
    program = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    scheduler = subprocess.Popen(
        [*program, "--host", "127.0.0.1", "--port", address.rpartition(":")[2], "--no-dashboard"], **quiet
    )
    worker = [
        sys.executable,
        "-m",
        "distributed.cli.dask_worker",
        address,
        "--nthreads",
        "1",
        "--no-nanny",
        "--no-dashboard",
    ]
    workers = [subprocess.Popen(worker, **quiet) for _ in range(2)]
    try:
        yield address, workers
    finally:
        for process in (*workers, scheduler):
            process.kill()
            process.wait()


@pytest.mark.slow
def test_a_killed_dask_worker_loses_nothing(cluster: tuple[str, list[subprocess.Popen[bytes]]], tmp_path: Path) -> None:
    address, workers = cluster
    for _ in range(40):
        try:
            socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), 1).close()
            break
        except OSError:
            time.sleep(0.5)
    with Store(tmp_path / "dask.db") as store:
        for number, _ in enumerate(run_request(REQUEST, store, "dask", scheduler=address)):
            if number == REQUEST.count // 2:
                workers[0].kill()
        killed = store.digest()
    with Store(tmp_path / "whole.db") as store:
        list(run_request(REQUEST, store, "inprocess"))
        assert killed == store.digest()


def test_a_scheduler_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hwsim.sweep.dask_backend._CONNECT_S", 1)
    with pytest.raises(InputError, match="there is no Dask scheduler at tcp://127"):
        hwsim.sweep(n=[16, 17], tile=4, executor="dask", scheduler=f"tcp://127.0.0.1:{free_port()}")
