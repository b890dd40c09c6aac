"""How cost grows: CPU time and memory over the size of a problem on each class of machines, and over many runs.

    python benchmarks/growth.py                               # some minutes
    python benchmarks/growth.py --plot docs/images/growth.png # and draw it
    python benchmarks/growth.py --runs 0                      # the sizes alone

Sizes: matrix products of n x n without math, each in a process of its own, which has run a small one before: CPU
seconds of the run, and by how much the memory that the process ever held grew. The slope is that of a straight line
through the logarithms of the larger half of the sizes: 2 means that twice the size costs four times as much. The work
of the product grows with n³, its tensors with n².

Runs: five hundred in one process; the memory that it holds at the end is what it held after the first fifty.

Exit 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import hwsim

HERE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Curve:
    """A product on a machine, over its size."""

    machine: str
    workload: str
    sizes: tuple[int, ...]
    bar: float = 2.1
    """The largest slope of the time: 2, and what a busy computer adds."""

    @property
    def name(self) -> str:
        return f"{self.machine} {self.workload}"


CURVES = (
    Curve("course_cpu", "matmul_naive", (128, 256, 512, 1024, 2048)),
    Curve("course_cpu", "matmul_tiled", (128, 256, 512, 1024, 2048)),
    Curve("zen3", "matmul_simd", (128, 256, 512, 1024, 2048)),
    Curve("a100_40", "matmul", (256, 1024, 4096, 16384)),
    Curve("tpu_v4", "matmul", (256, 1024, 4096, 16384)),
    Curve("eyeriss", "matmul", (32, 64, 128, 256, 512)),
    Curve("gddr6_aim", "matmul", (64, 128, 256, 512)),
)

MOST_MB = 500
"""That a run may hold beside its tensors, of which there are none without math."""

WORKER = """
import json, resource, sys, time, warnings
warnings.simplefilter("ignore")
import hwsim
machine, workload, small, n = *sys.argv[1:3], *map(int, sys.argv[3:])
hwsim.run(machine, workload, n=small, math=False)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.process_time()
hwsim.run(machine, workload, n=n, math=False)
print(json.dumps([time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before]))
"""

CASES = (
    ("course_cpu", "matmul_tiled", {"n": 32, "tile": 8}),
    ("a100_40", "matmul", {"n": 256, "precision": "fp16"}),
    ("tpu_v1", "matmul", {"n": 64}),
    ("zen3", "softmax", {}),
    ("course_cpu", "attention_fused", {"n": 32}),
)
MOST_BYTES = 20 << 20


def measure(curve: Curve) -> tuple[list[float], list[float]]:
    """CPU seconds, and megabytes, of each size."""
    seconds, megabytes = [], []
    for n in curve.sizes:
        words = [sys.executable, "-c", WORKER, curve.machine, curve.workload, str(curve.sizes[0] // 2), str(n)]
        done = subprocess.run(
            words, env={**os.environ, "PYTHONPATH": str(HERE)}, stdout=subprocess.PIPE, text=True, check=True
        )
        took, grown = json.loads(done.stdout)
        seconds.append(took)
        megabytes.append(grown / 1024)
    return seconds, megabytes


def slope(sizes: tuple[int, ...], values: list[float]) -> float:
    """Of the line through the logarithms of the larger half."""
    half = len(sizes) // 2
    return float(np.polyfit(np.log(sizes[half:]), np.log(np.maximum(values[half:], 1e-3)), 1)[0])


def sizes(plot: Path | None) -> list[str]:
    """Print the table, and draw it; returns the bars that were missed."""
    missed, drawn = [], []
    for curve in CURVES:
        seconds, megabytes = measure(curve)
        grows, memory = slope(curve.sizes, seconds), slope(curve.sizes, megabytes)
        told = "  ".join(f"{n}: {s:.3f} s {m:.0f} MB" for n, s, m in zip(curve.sizes, seconds, megabytes, strict=True))
        print(f"{curve.name:<24} time n^{grows:.2f}  memory n^{memory:.2f}   {told}", flush=True)
        drawn.append((curve, seconds, megabytes, grows))
        if grows > curve.bar:
            missed.append(f"{curve.name}: time grows with n^{grows:.2f}, the bar is n^{curve.bar}")
        if max(megabytes) > MOST_MB:
            missed.append(f"{curve.name}: {max(megabytes):.0f} MB, the bar is {MOST_MB}")
    if plot is not None:
        draw(drawn, plot)
    return missed


def draw(curves: list[tuple[Curve, list[float], list[float], float]], file: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.7), layout="constrained")
    marks = "os^vDPX"
    for (curve, seconds, megabytes, grows), mark in zip(curves, marks, strict=True):
        left.loglog(curve.sizes, seconds, marker=mark, markersize=4, label=f"{curve.name}: n^{grows:.1f}")
        right.loglog(curve.sizes, np.maximum(megabytes, 0.1), marker=mark, markersize=4)
    ends = np.array([128, 2048])
    left.loglog(ends, 1.5 * (ends / 2048) ** 2, "--", color="grey", linewidth=1, label="n²")
    left.set(xlabel="n", ylabel="CPU time of a run without math (s)")
    right.set(xlabel="n", ylabel="memory that a run adds (MB)")
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(file, dpi=110, metadata={"Software": None})


def held_bytes() -> int:
    """Resident memory of this process (Linux)."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def many(runs: int) -> list[str]:
    """Print what a process holds after so many runs; returns the bars that were missed."""
    settled = 0
    for number in range(runs):
        machine, workload, given = CASES[number % len(CASES)]
        hwsim.run(machine, workload, **given)
        if number == 49:
            settled = held_bytes()
        if number % 50 == 49:
            print(f"after {number + 1:4} runs: {held_bytes() / 1e6:.1f} MB", flush=True)
    more = held_bytes() - settled
    print(f"growth after the first 50: {more / 1e6:.1f} MB")
    return [f"{more / 1e6:.1f} MB more than after 50 runs"] if runs >= 50 and more > MOST_BYTES else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500, help="how many in one process (500)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw time and memory over the size")
    options = parser.parse_args()
    missed = sizes(options.plot)
    missed += many(options.runs) if options.runs else []
    for bar in missed:
        print(f"missed: {bar}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
