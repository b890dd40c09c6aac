"""Memory that runs with math take beyond their tensors: every stock workload on machines of each class, and large ones.

    python benchmarks/memory.py                       # some minutes
    python benchmarks/memory.py --machines course_cpu # on other machines
    python benchmarks/memory.py --large               # only the large ones

Each run is a process of its own, forked from one that has imported everything. What counts is the most memory that it
ever held (resident, read by the system), less what it held when it began, less the tensors of its kernel in the formats
that they are stored in. Beyond these lie the random values in float64 from which narrow inputs are rounded, the
reference in float64 that an answer is compared with, compiled code and the trace.

Exit 1 if a run takes more than the bar.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import hwsim
from hwsim.api import prepare, resolve_machine, resolve_workload
from hwsim.catalog import workload_names
from hwsim.errors import HwsimError
from hwsim.target import find_target

MACHINES = ("course_cpu", "zen4", "a100_40", "tpu_v1", "tpu_v4", "eyeriss", "gddr6_aim")
LARGE: tuple[tuple[str, str, Mapping[str, object]], ...] = (
    ("course_cpu", "matmul_tiled", {"n": 1024}),
    ("zen3", "matmul_simd", {"n": 2048}),
    ("a100_40", "matmul", {"n": 4096}),
    ("a100_40", "matmul", {"n": 4096, "precision": "fp16"}),
    ("a100_40", "matmul", {"n": 4096, "precision": "int8"}),
    ("tpu_v4", "matmul", {"n": 4096, "precision": "bf16"}),
    ("tpu_v1", "matmul", {"n": 4096}),
    ("a100_40", "attention_fused", {"n": 4096, "d": 64, "heads": 4}),
)
BAR_MB = 500


def stock(machines: list[str]) -> Iterator[tuple[str, str, Mapping[str, object]]]:
    for machine in machines:
        for workload in workload_names():
            yield machine, workload, {}


def measure(machine: str, workload: str, sizes: Mapping[str, object]) -> tuple[float, float, float] | str:
    """Megabytes of the tensors and beyond them, and seconds; or why the machine does not run it."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        answer: object
        try:
            computer = resolve_machine(machine)
            task = find_target(computer).defaults(resolve_workload(workload, sizes))
            kernel = prepare(computer, task, math=False)
            tensors = kernel.space.peak_bytes
            del kernel
            before, began = _held_bytes(), time.monotonic()
            hwsim.run(machine, workload, **sizes)
            most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            answer = tensors / 1e6, max(0, most - before - tensors) / 1e6, time.monotonic() - began
        except HwsimError as error:
            answer = str(error).splitlines()[0]
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    os.waitpid(child, 0)
    found = json.loads(text) if text else "died"
    return found if isinstance(found, str) else tuple(found)


def _held_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", default=",".join(MACHINES), help="where the stock workloads run")
    parser.add_argument("--large", action="store_true", help="only the large runs")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    for machine in MACHINES:  # imports and compiles what all runs share
        hwsim.run(machine, "matmul", n=64)
    most, ran, missed = 0.0, 0, 0
    refused: Counter[str] = Counter()
    for machine, workload, sizes in [*([] if asked.large else stock(asked.machines.split(","))), *LARGE]:
        found = measure(machine, workload, sizes)
        name = " ".join([machine, workload, *(f"{key}={value}" for key, value in sizes.items())])
        if isinstance(found, str):
            refused[machine] += 1
            missed += found == "died"
            if sizes or found == "died":
                print(f"{name}: {found}", flush=True)
            continue
        tensors, beyond, seconds = found
        ran, most = ran + 1, max(most, beyond)
        missed += beyond > BAR_MB
        if beyond > BAR_MB / 5 or sizes:
            verdict = "   MISSED" if beyond > BAR_MB else ""
            print(
                f"{name:<60} tensors {tensors:6.0f} MB, {beyond:5.0f} MB beyond, {seconds:5.1f} s{verdict}", flush=True
            )
    if refused:
        print("not run: " + ", ".join(f"{count} on {machine}" for machine, count in refused.items()))
    print(f"{'missed' if missed else 'holds'}: {ran} runs, at most {most:.0f} MB beyond their tensors (bar {BAR_MB})")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
