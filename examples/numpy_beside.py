"""The real NumPy product beside the simulated ladder: measured on this computer, so never part of a result.

python examples/numpy_beside.py [n]
"""

from __future__ import annotations

import sys
from time import perf_counter

import numpy as np

from hwsim.sweep.compare import LADDERS, ladder_runs, run_named
from hwsim.units import ratio, seconds


def measured_s(n: int, repeats: int = 5) -> float:
    """The best of some products in fp32; NumPy hands them to its BLAS."""
    a, b = np.random.default_rng(0).random((2, n, n), np.float32)
    times = []
    for _ in range(repeats):
        started = perf_counter()
        a @ b
        times.append(perf_counter() - started)
    return min(times)


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    ((machine, tasks),) = ladder_runs(LADDERS["matmul"], (), {"n": n}).items()
    runs = run_named(tasks)
    naive = next(iter(runs.values())).time_s
    print(f"simulated on {machine}, n = {n}:")
    for name, result in runs.items():
        print(f"  {name:12}{seconds(result.time_s):>10}{ratio(naive / result.time_s):>8}")
    print(f"measured on this computer, which is another machine: NumPy's @ takes {seconds(measured_s(n))}")


if __name__ == "__main__":
    main()
