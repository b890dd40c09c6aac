"""Memory and time are estimated before they are spent."""

from __future__ import annotations

import pytest

from hwsim import api as host
from hwsim.api import prepare, resolve_machine, resolve_workload, run, run_all
from hwsim.errors import HostMemoryError

MACHINE = "course_cpu"


def test_the_estimate_grows_with_the_tensors_and_not_with_their_format() -> None:
    machine = resolve_machine("a100_40")

    def needed(n: int, precision: str) -> int:
        work = resolve_workload("matmul", {"n": n, "precision": precision})
        return host.needed_bytes(prepare(machine, work, math=False))

    assert needed(2048, "fp32") == 4 * needed(1024, "fp32")
    assert needed(1024, "fp16") == pytest.approx(needed(1024, "fp32"), rel=0.4)


def test_a_run_that_does_not_fit_is_refused_and_no_math_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "free_bytes", lambda: 500_000_000)
    with pytest.raises(HostMemoryError, match=r"need about .* of memory .* --no-math"):
        run(MACHINE, "copy", n=10_000_000)
    assert run(MACHINE, "copy", n=10_000, math=True).verified


def test_what_fits_just_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    work = resolve_workload("copy", {"n": 10_000_000})
    kernel = prepare(resolve_machine(MACHINE), work, math=False)
    room = host.needed_bytes(kernel) + host.FIXED_BYTES
    monkeypatch.setattr(host, "free_bytes", lambda: room)
    host.check_memory(kernel, "copy")
    monkeypatch.setattr(host, "free_bytes", lambda: room - 1)
    with pytest.raises(HostMemoryError):
        host.check_memory(kernel, "copy")


def test_free_memory_is_less_than_all_and_more_than_nothing() -> None:
    free = host.free_bytes()
    assert free is not None and 10_000_000 < free < 1 << 50


def test_a_long_run_says_so_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    run_all(MACHINE, "matmul_tiled", parameters={"n": 16, "tile": 4}, warn=told.append)
    assert told == []
    monkeypatch.setattr(host, "OPERATIONS_PER_S", 100.0)
    run_all(MACHINE, "matmul_tiled", parameters={"n": 16, "tile": 4}, warn=told.append)
    assert told == [2 * 16**3 / 100.0]
