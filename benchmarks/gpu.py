"""How long hwsim takes to simulate a library GEMM on a GPU, without math: `python benchmarks/gpu.py`.

All matrix products of the shipped measured table, one by one, and an 8192 x 8192 x 8192 product. For comparison,
LLMCompass takes 16 to 861 s for such shapes (our measurement on two Zen 3 cores).
"""

from __future__ import annotations

from statistics import median
from time import perf_counter

from hwsim.catalog import load_machine
from hwsim.hardware.gpu.gemm import GemmShape
from hwsim.hardware.gpu.model import GpuModel
from hwsim.validation.gpu_row import COLUMNS, MeasuredKernel, modelled_seconds
from hwsim.validation.table import read_table, shipped


def main() -> None:
    path = shipped("gpu.csv")
    rows = [MeasuredKernel(path, record) for record in read_table(path, COLUMNS) if record["op"] in ("gemm", "bmm")]
    models = {name: GpuModel(load_machine(name).spec) for name in sorted({row.machine for row in rows})}
    times = []
    for row in rows:
        start = perf_counter()
        modelled_seconds(models[row.machine], row)
        times.append(perf_counter() - start)
    start = perf_counter()
    cost = models["a100_80"].gemm(GemmShape(8192, 8192, 8192), "fp16")
    large = perf_counter() - start
    print(
        f"{len(times)} measured products: median {median(times) * 1e3:.2f} ms, longest {max(times) * 1e3:.2f} ms each"
    )
    print(f"8192^3 fp16 on a100_80: {large * 1e3:.2f} ms for {cost.blocks} blocks in {cost.waves:.1f} waves")


if __name__ == "__main__":
    main()
