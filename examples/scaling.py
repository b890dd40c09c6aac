"""How far more cores help: a table of speed-ups over one core, which bends where cores have to share.

python examples/scaling.py
"""

from __future__ import annotations

from collections.abc import Mapping

import hwsim
from hwsim.results.explanation import explain

CORES = (1, 2, 3, 4)
CASES: Mapping[str, tuple[str, str, dict[str, object]]] = {
    "matmul, n = 192": ("course_cpu", "matmul_parallel", {"n": 192, "tile": 16}),
    "matmul, n = 24": ("course_cpu", "matmul_parallel", {"n": 24, "tile": 2, "v1": 2}),
    "reading 3 MiB in L3": ("tinytorch_cpu", "stream_read", {"bytes": "3 MiB", "passes": 200, "parallel": "rows"}),
    "reading 12 MiB in DRAM": ("course_cpu", "stream_read", {"bytes": "12 MiB", "passes": 2, "parallel": "rows"}),
    "add, n = 2^20": ("course_cpu", "add", {"n": 2**20, "parallel": "rows"}),
}
"""What is limited by the cores themselves, by starting them, by a shared cache, and by DRAM."""


def scale(machine: str, workload: str, parameters: Mapping[str, object]) -> list[hwsim.RunResult]:
    return [hwsim.run(machine, workload, cores=cores, math=False, **parameters) for cores in CORES]


def speed_ups(results: list[hwsim.RunResult]) -> list[float]:
    return [results[0].time_s / result.time_s for result in results]


def main() -> None:
    print(f"{'cores':24}" + "".join(f"{cores:>7}" for cores in CORES) + f"   {f'{CORES[-1]} cores are bound by'}")
    for name, case in CASES.items():
        results = scale(*case)
        ratios = "".join(f"{ratio:>7.2f}" for ratio in speed_ups(results))
        print(f"{name:24}{ratios}   {explain(results[-1]).bound.short}")


if __name__ == "__main__":
    main()
