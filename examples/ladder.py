"""The ladder of a matrix product: naive, vectorised, tiled, parallel. Prints a table and draws it.

python examples/ladder.py [FILE.png] [n]
"""

from __future__ import annotations

import sys
from pathlib import Path

import hwsim
from hwsim.results.plot.compare import plot_ladder
from hwsim.units import joules, percent, ratio, seconds

MACHINE = "course_cpu"
RUNGS = {
    "naive": ("matmul_naive", {}),
    "vectorised": ("matmul_simd", {}),
    "tiled": ("matmul_tiled", {"vector": True, "v1": 4}),
    "parallel": ("matmul_parallel", {}),
}
"""Each rung keeps what the one before has: `tiled` has tiles for registers and cache, and vectors in them."""


def climb(n: int) -> dict[str, hwsim.RunResult]:
    return {name: hwsim.run(MACHINE, workload, n=n, **more) for name, (workload, more) in RUNGS.items()}


def print_table(results: dict[str, hwsim.RunResult]) -> None:
    baseline = next(iter(results.values()))
    print(f"{'':12}{'time':>10}{'speed-up':>10}{'of peak':>10}{'energy':>10}{'DRAM bytes':>14}{'max error':>12}")
    for name, result in results.items():
        error = f"{result.error.max_rel:.1e}" if result.error else ""
        dram = result.memory["dram"]
        print(
            f"{name:12}{seconds(result.time_s):>10}{ratio(baseline.time_s / result.time_s):>10}"
            f"{percent(result.utilisation, 1):>10}{joules(result.energy_j or 0.0):>10}"
            f"{dram.bytes_read + dram.bytes_written:>14,}{error:>12}"
        )


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs/images/ladder.png")
    n = int(sys.argv[2]) if len(sys.argv) > 2 else 256
    target.parent.mkdir(parents=True, exist_ok=True)
    results = climb(n)
    print(f"{n} x {n} matrix product in fp32 on {MACHINE}, the same answer each time:\n")
    print_table(results)
    plot_ladder(results, target, f"Matrix product, n = {n}, fp32, on {MACHINE}")
    print(f"\ndrawn: {target}")


if __name__ == "__main__":
    main()
