"""How fast a layer is on an array beside SCALE-Sim, with equal cycles; and a whole ResNet-18 with its real math.

    python -m venv scalesim-env
    scalesim-env/bin/pip install 'numpy<2.4' scalesim==3.0.0     # an environment of its own: it needs an older NumPy
    python benchmarks/systolic.py --scalesim scalesim-env/bin/python
    python benchmarks/systolic.py                                # hwsim alone, and no comparison of speed

Both simulators get the same layers one after the other in one run of this script, on a 32 x 32 array with 1 MiB of
buffer for each operand and no limit on bandwidth. hwsim is the whole model without math: kernel, mapping, tiles.
SCALE-Sim runs each layer once, timed inside its own process after its imports; hwsim takes the median of several
repeats after a first one. Both are processor time, which a busy machine disturbs less. Cycles have to be equal. Exits
with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")  # threads that wait for each other count as processor time

from hwsim.api import prepare, resolve_machine, resolve_workload, simulate  # noqa: E402
from hwsim.program.loop_kernel import build_kernel  # noqa: E402
from hwsim.results.explanation import verify  # noqa: E402
from hwsim.spec.workload import WorkloadSpec  # noqa: E402

LAYERS = (
    ("bert PV_head", (128, 64, 128)),
    ("resnet20 stage3_3x3", (64, 64, 576)),
    ("resnet50 CB3a_1", (841, 128, 256)),
    ("bert QKV_proj", (128, 768, 768)),
)
"""M, N, K of rows of `hwsim validate systolic`, from the smallest of them to a middling one."""
DATAFLOWS = ("ws", "os", "is")
SPEED_BAR, RESNET_BAR_S = 100.0, 0.5
REPEATS = 5

DRIVER = """
import json, sys, time
from scalesim.scale_sim import scalesim
config, topology, layout, out = sys.argv[1:5]
files = dict(config=config, topology=topology, layout=layout)
sim = scalesim(save_disk_space=True, verbose=False, input_type_gemm=True, **files)
started = time.process_time()
sim.run_scale(top_path=out)
print(json.dumps(time.process_time() - started), file=sys.stderr)
"""

CONFIG = """[general]
run_name = layer
[architecture_presets]
ArrayHeight: 32
ArrayWidth: 32
IfmapSramSzkB: 1024
FilterSramSzkB: 1024
OfmapSramSzkB: 1024
IfmapOffset: 0
FilterOffset: 10000000
OfmapOffset: 20000000
Dataflow: {dataflow}
Bandwidth: 10
ReadRequestBuffer: 32
WriteRequestBuffer: 32
[layout]
IfmapCustomLayout: False
IfmapSRAMBankBandwidth: 10
IfmapSRAMBankNum: 10
IfmapSRAMBankPort: 2
FilterCustomLayout: False
FilterSRAMBankBandwidth: 10
FilterSRAMBankNum: 10
FilterSRAMBankPort: 2
[sparsity]
SparsitySupport: false
SparseRep: ellpack_block
OptimizedMapping: false
BlockSize: 8
RandomNumberGeneratorSeed: 40
[run_presets]
InterfaceBandwidth: CALC
UseRamulatorTrace: False
"""

RESNET18 = (
    (1, 224, 3, 64, 7, 2, 3),
    (4, 56, 64, 64, 3, 1, 1),
    (1, 56, 64, 128, 3, 2, 1), (1, 56, 64, 128, 1, 2, 0), (3, 28, 128, 128, 3, 1, 1),
    (1, 28, 128, 256, 3, 2, 1), (1, 28, 128, 256, 1, 2, 0), (3, 14, 256, 256, 3, 1, 1),
    (1, 14, 256, 512, 3, 2, 1), (1, 14, 256, 512, 1, 2, 0), (3, 7, 512, 512, 3, 1, 1),
)  # fmt: skip
"""Convolutions: how many, height, channels in and out, kernel, stride, padding; the last layer is 512 x 1000."""


def run_hwsim(shape: tuple[int, int, int], dataflow: str) -> tuple[float, int]:
    """Median seconds of the whole model without math, and cycles. Each time is that of another depth, because a layer
    that was seen before is mapped no more."""
    machine = resolve_machine("scalesim_32", [f"array.dataflow={dataflow}", "dram.bandwidth=inf"])
    fields = {
        "format": 1,
        "name": "layer",
        "description": "A layer.",
        "op": "matmul",
        "precision": "int8",
        "scale": "none",
    }
    m, n, k = shape
    times, cycles = [], []
    for more in range(REPEATS + 1):
        spec = WorkloadSpec.model_validate({**fields, "sizes": {"m": m, "n": n, "k": k + more}})
        started = time.process_time()
        cycles.append(simulate(machine, build_kernel(spec, math=False)).cycles)
        times.append(time.process_time() - started)
    return median(times[1:]), cycles[0]


def run_scalesim(python: str, shape: tuple[int, int, int], dataflow: str) -> tuple[float, int]:
    """Seconds of one run, and compute cycles: it reports the index of the last one, stalls counted in."""
    m, n, k = shape
    with tempfile.TemporaryDirectory() as folder:
        config, topology, layout = (Path(folder) / name for name in ("a.cfg", "t.csv", "l.csv"))
        config.write_text(CONFIG.format(dataflow=dataflow), encoding="utf-8")
        topology.write_text(f"Layer,M,N,K,\nlayer,{m},{n},{k},\n", encoding="utf-8")
        layout.write_text("Layer,\n", encoding="utf-8")
        done = subprocess.run(
            [python, "-c", DRIVER, str(config), str(topology), str(layout), folder],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        reports = list(Path(folder).rglob("COMPUTE_REPORT.csv"))
        if done.returncode or not reports:
            raise SystemExit(f"SCALE-Sim did not run:\n{done.stderr[-2000:]}")
        (row,) = csv.DictReader(reports[0].read_text(encoding="utf-8").splitlines(), skipinitialspace=True)
        cycles, stalls = (int(float(row[name])) for name in ("Total Cycles", "Stall Cycles"))
        return float(json.loads(done.stderr.strip().splitlines()[-1])), cycles - stalls + 1


def compare(python: str | None) -> bool:
    """Layer by layer; whether every bar holds."""
    print(f"{'layer':<20} {'':<3} {'cycles':>9} {'hwsim':>9} {'SCALE-Sim':>10} {'ratio':>7}")
    good, ratios = True, []
    for name, shape in LAYERS:
        for dataflow in DATAFLOWS:
            seconds, cycles = run_hwsim(shape, dataflow)
            line = f"{name:<20} {dataflow:<3} {cycles:>9,} {1e3 * seconds:>6.2f} ms"
            if python is not None:
                theirs, their_cycles = run_scalesim(python, shape, dataflow)
                ratios.append(theirs / seconds)
                good &= cycles == their_cycles
                line += f" {theirs:>8.2f} s {ratios[-1]:>6.0f}x" + (
                    "" if cycles == their_cycles else f" NOT {their_cycles:,}"
                )
            print(line, flush=True)
    if not ratios:
        print("no SCALE-Sim given (--scalesim): its speed and cycles were not compared")
        return good
    slowest = min(ratios)
    good &= slowest >= SPEED_BAR
    verdict = "holds" if slowest >= SPEED_BAR else "missed"
    print(f"{verdict}: every layer at least {SPEED_BAR:.0f}x: least {slowest:.0f}x, median {median(ratios):.0f}x")
    return good


def resnet(name: str) -> bool:
    """All layers of a ResNet-18 with math, one image; the checks against float64 are timed apart."""
    machine = resolve_machine(name)
    spent = checked = 0.0
    macs = cycles = 0
    right = True
    for count, height, ci, co, kernel, stride, padding in RESNET18:
        sizes = {"height": height, "ci": ci, "co": co, "kernel": kernel, "stride": stride, "padding": padding}
        for _ in range(count):
            task = resolve_workload("conv2d", {**sizes, "precision": "int8"})
            started = time.process_time()
            made = prepare(machine, task)
            outcome = simulate(machine, made)
            spent += time.process_time() - started
            macs, cycles = macs + outcome.macs, cycles + outcome.cycles
            started = time.process_time()
            right &= verify(made).verified
            checked += time.process_time() - started
    task = resolve_workload("matmul", {"m": 1, "n": 1000, "k": 512, "precision": "int8"})
    started = time.process_time()
    made = prepare(machine, task)
    outcome = simulate(machine, made)
    spent += time.process_time() - started
    right &= verify(made).verified
    macs, cycles = macs + outcome.macs, cycles + outcome.cycles
    met = spent < RESNET_BAR_S and right
    print(
        f"{'holds' if met else 'missed'}: ResNet-18 on {name} with math in under {RESNET_BAR_S} s: {spent:.2f} s "
        f"({macs / 1e9:.2f} G multiply-accumulates, {cycles:,} cycles), answers {'right' if right else 'WRONG'}; "
        f"checking them took {checked:.2f} s more"
    )
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scalesim", metavar="PYTHON", help="the Python of an environment that has SCALE-Sim 3.0.0")
    parser.add_argument("--machine", default="tpu_v1", help="where ResNet-18 runs")
    given = parser.parse_args()
    results = [compare(given.scalesim), resnet(given.machine)]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
