"""A process that compiles loops with Numba and times them. Scalar loops need one of their own: whether loops are
vectorised is a setting of the whole process (NUMBA_LOOP_VECTORIZE).

Reads one job a line as JSON, answers with one line of JSON each: the seconds of every repeat, and what the processor
counted in one more, where Linux lets a program ask (perf_event_open).
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import platform
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import llvmlite.binding
import numba
import numpy as np
from numpy.typing import NDArray

HUGE_PAGE = 1 << 21
OUTPUT = 1
"""Standard output: a pipe to the process that asked."""
TYPES = {"fp32": np.float32, "fp64": np.float64, "int32": np.int32}


# Counters -------------------------------------------------------------------------------------------------------------

HARDWARE, CACHE = 0, 3
"""Kinds of events, as in linux/perf_event.h; one of a cache is its number, 0 for reading, and 1 << 16 for misses."""
EVENTS = {
    "instructions": (HARDWARE, 1),
    "loads": (CACHE, 0),
    "l1 misses": (CACHE, 1 << 16),
    "last cache misses": (CACHE, 2 | 1 << 16),
    "page misses": (CACHE, 3 | 1 << 16),
}
SYSCALL = {"x86_64": 298, "aarch64": 241}
ATTRIBUTE_BYTES, FLAGS_AT = 128, 40
DISABLED, INHERIT, NO_KERNEL, NO_HYPERVISOR = 1, 2, 1 << 5, 1 << 6
ENABLE, DISABLE = 0x2400, 0x2401


class ProcessorCounters:
    """Counts events of this thread, and of threads that it starts later, between entering and leaving."""

    def __init__(self, events: Mapping[str, tuple[int, int]] = EVENTS) -> None:
        self.counts: dict[str, int] = {}
        self.reason = ""
        self._files: dict[str, int] = {}
        number = SYSCALL.get(platform.machine()) if platform.system() == "Linux" else None
        if number is None:
            self.reason = "only Linux on x86 and Arm tells what a processor counts"
            return
        library = ctypes.CDLL(None, use_errno=True)
        for name, (kind, config) in events.items():
            attribute = bytearray(ATTRIBUTE_BYTES)
            struct.pack_into("IIQ", attribute, 0, kind, ATTRIBUTE_BYTES, config)
            struct.pack_into("Q", attribute, FLAGS_AT, DISABLED | INHERIT | NO_KERNEL | NO_HYPERVISOR)
            given = (ctypes.c_char * ATTRIBUTE_BYTES).from_buffer(attribute)
            file = library.syscall(number, given, 0, -1, -1, 0)
            if file >= 0:
                self._files[name] = file
            else:
                self.reason = self.reason or os.strerror(ctypes.get_errno())

    def __enter__(self) -> ProcessorCounters:
        self._order(ENABLE)
        return self

    def __exit__(self, *_: object) -> None:
        self._order(DISABLE)
        self.counts = {name: int.from_bytes(os.read(file, 8), sys.byteorder) for name, file in self._files.items()}
        for file in self._files.values():
            os.close(file)
        self._files = {}

    def _order(self, what: int) -> None:
        if self._files:
            import fcntl

            for file in self._files.values():
                fcntl.ioctl(file, what, 0)


# Loops ----------------------------------------------------------------------------------------------------------------


def _tensors(job: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """One buffer that lies to pages as the simulated addresses do, and a view of it for each tensor. All is 1, which
    products of any number of repeats leave as it is."""
    low = min(start for start, _, _ in job["tensors"].values())
    high = max(start + size for start, size, _ in job["tensors"].values())
    low -= low % HUGE_PAGE
    raw = np.zeros(high - low + HUGE_PAGE, np.uint8)
    shift = -raw.ctypes.data % HUGE_PAGE
    found = {}
    for name, (start, size, kind) in job["tensors"].items():
        view = raw[shift + start - low : shift + start - low + size].view(TYPES[kind])
        view[:] = 1
        found[name] = view
    return found


def _compiled(job: dict[str, Any]) -> Callable[..., float]:
    """A function that runs loops one after the other, as a table says: calling each from Python would take longer than
    short ones do. Sums may be reordered where a loop is a vector loop."""
    room: dict[str, Any] = {"U": np.uint64, "exp": math.exp}
    tensors = list(job["tensors"])
    lines = [f"def drive({', '.join([f't{n}' for n in range(len(tensors))])}, numbers, bounds):", "    total = 0.0"]
    lines.append("    for c in range(len(numbers)):")
    for number, function in enumerate(job["functions"]):
        name, text = function["name"], function["text"]
        exec(compile(text, f"<{name}>", "exec"), room)
        room[name] = numba.njit(nogil=True, fastmath=function["vector"], error_model="numpy")(room[name])
        taken = [f"t{tensors.index(tensor)}" for tensor in function["tensors"]]
        taken += [f"bounds[c, {place}]" for place in range(text.split(":", 1)[0].count("first") * 2)]
        total = "total += " if "return " in text else ""
        lines += [f"        if numbers[c] == {number}:", f"            {total}{name}({', '.join(taken)})"]
    exec(compile("\n".join([*lines, "    return total"]), "<drive>", "exec"), room)
    drive: Callable[..., float] = numba.njit(nogil=True)(room["drive"])
    return drive


def _table(share: Sequence[Any]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """The loops of a share, by number, and their bounds in rows of the same length."""
    most = max((len(bounds) for _, bounds in share), default=0)
    rows = [[*bounds, *([0] * (most - len(bounds)))] for _, bounds in share]
    return np.array([number for number, _ in share], np.int64), np.array(rows, np.uint64).reshape(len(share), most)


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    """Seconds of each repeat: stage after stage, the CPU time of the thread that needs most; and counts."""
    arrays = list(_tensors(job).values())
    drive = _compiled(job)
    flush = np.ones(job["flush_bytes"] // 8, np.int64)  # pages that were never written would all be one
    stages = [[_table(share) for share in stage] for stage in job["stages"]]
    threads = max(len(stage) for stage in stages)
    counters = ProcessorCounters()
    pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def work(share: tuple[NDArray[np.int64], NDArray[np.uint64]]) -> float:
        began = time.thread_time()
        drive(*arrays, *share)
        return time.thread_time() - began

    def once() -> float:
        total = 0.0
        for stage in stages:
            total += work(stage[0]) if pool is None or len(stage) == 1 else max(pool.map(work, stage))
        return total

    once()
    found = []
    began = time.process_time()
    for _ in range(job["repeats"]):
        flush.sum()
        found.append(once())
        if time.process_time() - began > job["most_seconds"]:
            break
    flush.sum()
    with counters:
        once()
    if pool is not None:
        pool.shutdown()
    return {"seconds": found, "counts": counters.counts, "uncounted": "" if counters.counts else counters.reason}


def main() -> None:
    """Answer jobs until whoever asks has gone; Ctrl-C is theirs to heed.

    A vector loop takes one vector at a time, as a simulated one does: several would leave short loops scalar.
    """
    llvmlite.binding.set_option("", "--force-vector-interleave=1")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asked: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()
    while True:
        try:
            answer = run_job(json.loads(asked.get()))
        except Exception as error:  # noqa: BLE001 - whatever a compiler raises is the answer
            answer = {"error": f"{type(error).__name__}: {error}"}
        os.write(OUTPUT, (json.dumps(answer) + "\n").encode())


def _listen(asked: SimpleQueue[str]) -> None:
    for line in sys.stdin:
        asked.put(line)
    os._exit(0)  # also in the middle of a loop


if __name__ == "__main__":
    main()
