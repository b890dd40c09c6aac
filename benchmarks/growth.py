"""Five hundred runs in one process: the memory that it holds at the end is what it held after the first fifty.

python benchmarks/growth.py [--runs N]
"""

from __future__ import annotations

import argparse
import gc
from pathlib import Path

import hwsim

CASES = (
    ("course_cpu", "matmul_tiled", {"n": 32, "tile": 8}),
    ("a100_40", "matmul", {"n": 256, "precision": "fp16"}),
    ("tpu_v1", "matmul", {"n": 64}),
    ("zen3", "softmax", {}),
    ("course_cpu", "attention_fused", {"n": 32}),
)
MOST_BYTES = 20 << 20


def held_bytes() -> int:
    """Resident memory of this process (Linux)."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500, help="how many (500)")
    runs = parser.parse_args().runs
    settled = 0
    for number in range(runs):
        machine, workload, given = CASES[number % len(CASES)]
        hwsim.run(machine, workload, **given)
        if number == 49:
            settled = held_bytes()
        if number % 50 == 49:
            print(f"after {number + 1:4} runs: {held_bytes() / 1e6:.1f} MB", flush=True)
    growth = held_bytes() - settled
    assert runs < 50 or growth < MOST_BYTES, f"{growth / 1e6:.1f} MB more than after 50 runs"
    print(f"growth after the first 50: {growth / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
