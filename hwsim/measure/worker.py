"""A process that compiles loops with Numba and times them. Scalar loops need one of their own: whether loops are
vectorised is a setting of the whole process (NUMBA_LOOP_VECTORIZE).

Reads one job a line as JSON, answers with one line of JSON each: the seconds of every repeat.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

HUGE_PAGE = 1 << 21
OUTPUT = 1
"""Standard output: a pipe to the process that asked."""
TYPES = {"fp32": np.float32, "fp64": np.float64, "int32": np.int32}


def _tensors(job: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """One buffer that lies to pages as the simulated addresses do, and a view of it for each tensor."""
    low = min(start for start, _, _ in job["tensors"].values())
    high = max(start + size for start, size, _ in job["tensors"].values())
    low -= low % HUGE_PAGE
    raw = np.zeros(high - low + HUGE_PAGE, np.uint8)
    shift = -raw.ctypes.data % HUGE_PAGE
    found = {}
    for name, (start, size, kind) in job["tensors"].items():
        view = raw[shift + start - low : shift + start - low + size].view(TYPES[kind])
        view[:] = 1 if kind == "int32" else 0.5
        found[name] = view
    return found


def _compiled(source: str, name: str, *, fast: bool) -> Callable[..., None]:
    """The function of a source; sums may be reordered where the loop is a vector loop."""
    room: dict[str, Any] = {"U": np.uint64, "exp": math.exp}
    exec(compile(source, f"<{name}>", "exec"), room)
    function: Callable[..., None] = numba.njit(nogil=True, fastmath=fast, error_model="numpy")(room[name])
    return function


def run_job(job: dict[str, Any]) -> list[float]:
    """Seconds of each repeat: stage after stage, the CPU time of the thread that needs most."""
    arrays = _tensors(job)
    functions = [_compiled(f["text"], f["name"], fast=f["vector"]) for f in job["functions"]]
    flush = np.zeros(job["flush_bytes"] // 8, np.int64)

    def bound(call: Sequence[Any]) -> Callable[[], None]:
        number, bounds = call
        taken = [arrays[name] for name in job["functions"][number]["tensors"]]
        limits = [np.uint64(value) for value in bounds]
        return lambda: functions[number](*taken, *limits)

    stages = [[[bound(call) for call in share] for share in stage] for stage in job["stages"]]
    threads = max(len(stage) for stage in stages)
    pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def work(share: list[Callable[[], None]]) -> float:
        began = time.thread_time()
        for call in share:
            call()
        return time.thread_time() - began

    def once() -> float:
        total = 0.0
        for stage in stages:
            total += work(stage[0]) if pool is None or len(stage) == 1 else max(pool.map(work, stage))
        return total

    once()
    found = []
    began = time.perf_counter()
    for _ in range(job["repeats"]):
        if len(flush):
            flush += 1
        found.append(once())
        if time.perf_counter() - began > job["most_seconds"]:
            break
    if pool is not None:
        pool.shutdown()
    return found


def main() -> None:
    """Answer jobs until there are none."""
    for line in sys.stdin:
        try:
            answer: dict[str, Any] = {"seconds": run_job(json.loads(line))}
        except Exception as error:  # noqa: BLE001 - whatever a compiler raises is the answer
            answer = {"error": f"{type(error).__name__}: {error}"}
        os.write(OUTPUT, (json.dumps(answer) + "\n").encode())


if __name__ == "__main__":
    main()
