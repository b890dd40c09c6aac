"""How long hwsim takes to simulate a library GEMM on a GPU, without math: `python benchmarks/gpu.py`.

All matrix products of the shipped measured table, one by one, and square products of 128 to 8192: tiles are replayed
through the L2, and blocks played on SMs in SimPy. For comparison, LLMCompass takes 16 to 861 s for such shapes (our
measurement on two Zen 3 cores).
"""

from __future__ import annotations

from statistics import median
from time import perf_counter

from hwsim.catalog import load_machine
from hwsim.engine import Floor
from hwsim.program.contraction import GemmShape
from hwsim.targets.gpu.agent import GridPlay
from hwsim.targets.gpu.model import GpuModel
from hwsim.targets.gpu.target import GpuTarget
from hwsim.validation.gpu import modelled_seconds
from hwsim.validation.gpu_workload import COLUMNS, MeasuredKernel
from hwsim.validation.table import read_table, shipped

SIZES = (128, 256, 512, 1024, 2048, 4096, 8192)


def main() -> None:
    path = shipped("gpu.csv")
    rows = [MeasuredKernel(path, record) for record in read_table(path, COLUMNS) if record["op"] in ("gemm", "bmm")]
    targets = {name: GpuTarget(load_machine(name).spec) for name in sorted({row.machine for row in rows})}
    times = [_timed(lambda row=row: modelled_seconds(targets[row.machine], row)) for row in rows]
    print(
        f"{len(times)} measured products: median {median(times) * 1e3:.2f} ms, longest {max(times) * 1e3:.2f} ms each"
    )
    gpu = GpuModel(targets["a100_80"].device)
    taken = [_timed(lambda n=n: gpu.gemm(GemmShape(n, n, n), "fp16")) for n in SIZES]
    for n, seconds in zip(SIZES, taken, strict=True):
        cost = gpu.gemm(GemmShape(n, n, n), "fp16")
        floor = Floor()
        for grid in cost.grids:
            floor.start(GridPlay(floor, gpu.device, grid).play())
            floor.run()
        print(
            f"{n}^3 fp16 on a100_80: {seconds * 1e3:.2f} ms, {floor.events} events for {cost.blocks} blocks in "
            f"{cost.waves:.1f} waves, {cost.walked:.0%} replayed"
        )
    print(f"median {median(taken) * 1e3:.2f} ms")


def _timed(work: object) -> float:
    start = perf_counter()
    work()  # type: ignore[operator]
    return perf_counter() - start


if __name__ == "__main__":
    main()
