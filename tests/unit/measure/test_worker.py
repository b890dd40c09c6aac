"""The process that times loops, looked at from inside: nothing is compiled, and the clock is made up."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hwsim.measure import worker
from hwsim.measure.loops import Bench, Worker
from hwsim.measure.worker import HUGE_PAGE, ProcessorCounters, run_job


def test_tensors_lie_to_pages_as_simulated_ones_and_hold_what_products_leave_as_it_is() -> None:
    """From the place in a huge page to the distance between two tensors; numbers that become neither tiny nor inf."""
    about = {"b": (3 * HUGE_PAGE + 4096, 64, "fp32"), "a": (2 * HUGE_PAGE - 128, 256, "fp64"),
             "c": (3 * HUGE_PAGE + 4160, 3 * HUGE_PAGE, "int32")}  # fmt: skip
    found = worker._tensors({"tensors": about})
    assert list(found) == ["b", "a", "c"]
    for name, (start, size, kind) in about.items():
        view = found[name]
        assert (view.nbytes, view.dtype) == (size, worker.TYPES[kind])
        assert view.ctypes.data % HUGE_PAGE == start % HUGE_PAGE
        assert view.ctypes.data - found["a"].ctypes.data == start - about["a"][0]
        assert view.any() and (view * view == view).all()
    whole = found["c"]
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    assert whole.nbytes < 4 * HUGE_PAGE + 3 * HUGE_PAGE, "no more than what lies between the first and the last byte"


def test_loops_of_a_share_are_rows_of_a_table() -> None:
    """Of the same length, with their bounds first."""
    numbers, bounds = worker._table([[2, [0, 5]], [0, [1, 2, 3, 4]], [1, []]])
    assert numbers.tolist() == [2, 0, 1]
    assert bounds.tolist() == [[0, 5, 0, 0], [1, 2, 3, 4], [0, 0, 0, 0]]
    numbers, bounds = worker._table([])
    assert (numbers.size, bounds.shape, bounds.dtype) == (0, (0, 0), np.uint64)


class MadeUpClock:
    """Time passes where a loop says so: for its thread, and for the whole process."""

    def __init__(self) -> None:
        self.own, self.whole, self.calls = threading.local(), 0.0, list[tuple[Any, ...]]()

    def thread_time(self) -> float:
        return getattr(self.own, "now", 0.0)

    def process_time(self) -> float:
        return self.whole

    def njit(self, **options: Any) -> Callable[..., Any]:
        """Loops run as they are written, and take as many seconds as lie between their bounds."""

        def as_written(function: Callable[..., Any]) -> Callable[..., Any]:
            def noted(*given: Any) -> Any:
                tensors, bounds = [x.dtype.name for x in given if np.ndim(x)], [int(x) for x in given if not np.ndim(x)]
                self.calls.append((function.__name__, options["fastmath"], *tensors, *bounds))
                self.own.now = self.thread_time() + sum(bounds[1::2]) - sum(bounds[::2])
                self.whole += sum(bounds[1::2]) - sum(bounds[::2])
                return function(*given)

            return function if function.__name__ == "drive" else noted

        return as_written


class Counted:
    """Stands in for what the processor counts."""

    def __init__(self, counts: dict[str, int], reason: str) -> None:
        self.counts, self.reason = counts, reason

    def __enter__(self) -> Counted:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> MadeUpClock:
    made = MadeUpClock()
    monkeypatch.setattr(worker.numba, "njit", made.njit)
    monkeypatch.setattr(worker, "time", made)
    monkeypatch.setattr(worker, "ProcessorCounters", lambda: Counted({"instructions": 7}, "some are not told"))
    return made


def job_of(*stages: list[list[Any]], **limits: Any) -> dict[str, Any]:
    """A loop that stores into one tensor, a vector loop that sums another over two indices."""
    store = "def loop0(t0, first0, last0):\n    t0[0] = 1\n"
    total = "def loop1(t0, t1, first0, last0, first1, last1):\n    return t0[0] + t1[0]\n"
    return {
        "tensors": {"x": (0, 64, "fp32"), "y": (64, 64, "fp64")},
        "functions": [
            {"name": "loop0", "text": store, "tensors": ["y"], "vector": False},
            {"name": "loop1", "text": total, "tensors": ["y", "x"], "vector": True},
        ],
        "stages": stages, "repeats": 3, "most_seconds": 1e9, "flush_bytes": 64, **limits,
    }  # fmt: skip


def test_a_repeat_takes_its_loops_one_after_the_other(clock: MadeUpClock) -> None:
    """Once to compile, three times to be timed, once to be counted; one share needs no second thread."""
    stages = [[[0, [0, 2]], [1, [1, 4, 3, 8]]]], [[[0, [5, 6]]]]
    answer = run_job(job_of(*stages))
    assert answer == {"seconds": [2 + 3 + 5 + 1] * 3, "counts": {"instructions": 7}, "uncounted": ""}
    each = [
        ("loop0", False, "float64", 0, 2), ("loop1", True, "float64", "float32", 1, 4, 3, 8),
        ("loop0", False, "float64", 5, 6),
    ]  # fmt: skip
    assert clock.calls == 5 * each


def test_as_many_bytes_as_asked_are_read_before_a_cold_repeat(
    clock: MadeUpClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    ones = np.ones
    monkeypatch.setattr(worker.np, "ones", lambda *given: made.append(ones(*given).nbytes) or ones(*given))
    for flush_bytes in (0, 64, 4096):
        run_job(job_of([[[0, [0, 1]]]], flush_bytes=flush_bytes))
    assert made == [0, 64, 4096]


def test_of_several_threads_the_one_counts_that_needs_most_stage_after_stage(clock: MadeUpClock) -> None:
    stages = [[[0, [0, 2]]], [[0, [2, 9]]], [[0, [9, 10]], [0, [10, 13]]]], [[[0, [0, 1]]]], [[[0, [0, 3]]], []]
    assert run_job(job_of(*stages, repeats=2))["seconds"] == [7 + 1 + 3] * 2


@pytest.mark.parametrize(("most", "repeats"), [(3.9, 1), (4.0, 2), (9.0, 3), (1e9, 9)])
def test_repeats_end_when_they_have_taken_too_long(clock: MadeUpClock, most: float, repeats: int) -> None:
    """Four seconds each; as much as is allowed may still be gone on from."""
    assert run_job(job_of([[[0, [0, 4]]]], repeats=9, most_seconds=most))["seconds"] == [4] * repeats


def test_why_nothing_was_counted_is_said(clock: MadeUpClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "ProcessorCounters", lambda: Counted({}, "not permitted"))
    answer = run_job(job_of([[[0, [0, 4]]]]))
    assert (answer["counts"], answer["uncounted"]) == ({}, "not permitted")


class Attribute(ctypes.LittleEndianStructure):
    """struct perf_event_attr of linux/perf_event.h, as far as it is used here."""

    _fields_ = (
        ("type", ctypes.c_uint32), ("size", ctypes.c_uint32), ("config", ctypes.c_uint64),
        ("sample_period", ctypes.c_uint64), ("sample_type", ctypes.c_uint64), ("read_format", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
    )  # fmt: skip


PERF_TYPE_HARDWARE, PERF_TYPE_HW_CACHE = 0, 3
L1D, LL, DTLB, OP_READ, ACCESS, MISS = 0, 2, 3, 0, 0, 1
"""PERF_COUNT_HW_CACHE_…: cache, then what is done << 8, then what comes of it << 16."""
PERF_EVENT_IOC_ENABLE, PERF_EVENT_IOC_DISABLE = 0x2400, 0x2401


@pytest.mark.parametrize(("machine", "number"), [("x86_64", 298), ("aarch64", 241)])
def test_counters_are_asked_for_as_linux_defines_them(
    monkeypatch: pytest.MonkeyPatch, machine: str, number: int
) -> None:
    """perf_event_open, of this thread and those that it starts, on any processor, counting where they start and end;
    neither the kernel nor what is below it. What they count is a whole number of eight bytes."""
    asked: list[Attribute] = []
    orders: list[tuple[int, int]] = []
    files: list[int] = []

    def syscall(called: int, given: Any, process: int, processor: int, group: int, flags: int) -> int:
        assert (called, process, processor, group, flags) == (number, 0, -1, -1, 0)
        asked.append(Attribute.from_buffer_copy(given))
        assert asked[-1].size == len(given) >= 64
        if asked[-1].config == LL | OP_READ << 8 | MISS << 16:
            ctypes.set_errno(errno.ENOENT)  # a processor that does not know of one
            return -1
        reads, writes = os.pipe()
        os.write(writes, (1000 + len(asked)).to_bytes(8, sys.byteorder) + bytes(8))
        os.close(writes)
        files.append(reads)
        return reads

    monkeypatch.setattr(worker.ctypes, "CDLL", lambda *_, **__: SimpleNamespace(syscall=syscall))
    monkeypatch.setattr(worker.platform, "system", lambda: "Linux")
    monkeypatch.setattr(worker.platform, "machine", lambda: machine)
    monkeypatch.setattr("fcntl.ioctl", lambda file, order, _: orders.append((file, order)))
    with ProcessorCounters() as counters:
        assert orders == [(file, PERF_EVENT_IOC_ENABLE) for file in files]
    assert orders[len(files) :] == [(file, PERF_EVENT_IOC_DISABLE) for file in files]
    assert [(each.type, each.config) for each in asked] == [
        (PERF_TYPE_HARDWARE, 1),
        *((PERF_TYPE_HW_CACHE, cache | OP_READ << 8 | result << 16)
          for cache, result in ((L1D, ACCESS), (L1D, MISS), (LL, MISS), (DTLB, MISS))),
    ]  # fmt: skip
    disabled, inherit, exclude_kernel, exclude_hv = 1 << 0, 1 << 1, 1 << 5, 1 << 6
    assert {each.flags for each in asked} == {disabled | inherit | exclude_kernel | exclude_hv}
    assert counters.counts == {"instructions": 1001, "loads": 1002, "l1 misses": 1003, "page misses": 1005}
    assert counters.reason == os.strerror(errno.ENOENT)
    for file in files:
        with pytest.raises(OSError):
            os.fstat(file)


def test_a_system_that_counts_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for system, machine in (("Darwin", "aarch64"), ("Linux", "riscv64")):
        monkeypatch.setattr(worker.platform, "system", lambda system=system: system)
        monkeypatch.setattr(worker.platform, "machine", lambda machine=machine: machine)
        with ProcessorCounters() as counters:
            pass
        assert counters.counts == {} and counters.reason == "only Linux on x86 and Arm tells what a processor counts"


def test_the_fastest_repeat_counts_beside_the_median(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bench asks the process of scalar or of vector loops, for cold caches or warm ones."""
    asked: list[tuple[bool, dict[str, Any]]] = []

    def ask(self: Worker, job: dict[str, Any]) -> dict[str, Any]:
        asked.append((self._vector, job))
        return {"seconds": [4.0, 2.0, 3.0, 9.0], "counts": {"loads": 5}, "uncounted": ""}

    monkeypatch.setattr(Worker, "ask", ask)
    with Bench() as bench:
        found = bench.measure("copy", {"n": 64, "vector": True}, repeats=4, most_seconds=7)
        bench.measure("copy", {"n": 64, "vector": False}, cold=False)
    assert (found.seconds, found.median, found.repeats, found.counts) == (2.0, 3.5, 4, {"loads": 5})
    assert found.spread == pytest.approx(0.75)
    (vector, cold), (scalar, warm) = asked
    assert (vector, scalar) == (True, False)
    assert (cold["repeats"], cold["most_seconds"]) == (4, 7)
    assert cold["flush_bytes"] >= 32 << 20 and warm["flush_bytes"] == 0
