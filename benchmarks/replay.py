"""How fast `hwsim replay` is and how much memory it takes, on a din trace of 100 million accesses.

    python benchmarks/replay.py                 # makes about 1.2 GB in the temporary folder, and removes it
    python benchmarks/replay.py --accesses 10000000

The trace is a mix: three accesses in four walk through 64 KiB windows of 8-byte elements, one in four jumps
anywhere in 64 MiB; a third of all are writes. Exits with 1 if the memory goes beyond --max-mb.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
BASE = 0x1000_0000
SPAN = 64 << 20
WINDOW = 64 << 10
LINE_BYTES = 11  # "0 10000000\n"
PART = 1 << 20


def make_trace(path: Path, accesses: int, seed: int = 1) -> None:
    """Every address has eight hexadecimal digits, so that whole arrays of characters can be written."""
    numbers = np.random.default_rng(seed)
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    shifts = np.arange(28, -4, -4, dtype=np.uint64)
    with path.open("wb") as stream:
        for start in range(0, accesses, PART):
            addresses, writes = mixed_accesses(start, min(PART, accesses - start), numbers)
            text = np.full((len(addresses), LINE_BYTES), ord(" "), np.uint8)
            text[:, 0] = ord("0") + writes
            text[:, 2:10] = digits[(addresses[:, None] >> shifts) & np.uint64(15)]
            text[:, 10] = ord("\n")
            stream.write(text.tobytes())


def mixed_accesses(
    start: int, count: int, numbers: np.random.Generator
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    step = np.arange(start, start + count, dtype=np.uint64)
    window = (step >> np.uint64(17)) * np.uint64(WINDOW)
    walked = (window + step * np.uint64(8) % np.uint64(WINDOW)) % np.uint64(SPAN)
    anywhere = numbers.integers(0, SPAN // 8, count, dtype=np.uint64) * np.uint64(8)
    addresses = np.uint64(BASE) + np.where(numbers.random(count) < 0.25, anywhere, walked)
    return addresses, numbers.random(count) < 1 / 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accesses", type=int, default=100_000_000)
    parser.add_argument("--machine", default="zen3")
    parser.add_argument("--max-mb", type=float, default=500.0, help="peak memory allowed, in MB")
    options = parser.parse_args()
    needed = options.accesses * LINE_BYTES
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < needed * 1.1:
        print(f"the trace needs {needed / 1e9:.1f} GB, the temporary folder has {free / 1e9:.1f} GB free")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.din"
        began = time.perf_counter()
        make_trace(trace, options.accesses)
        print(f"made {trace.stat().st_size / 1e6:,.0f} MB of din text in {time.perf_counter() - began:.1f} s")
        command = [
            sys.executable,
            "-m",
            "hwsim",
            "replay",
            options.machine,
            str(trace),
            "--json",
            "-",
        ]
        subprocess.run([*command, "--limit", "1000"], cwd=ROOT, check=True, capture_output=True)  # compiles
        began = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        seconds = time.perf_counter() - began
    counts = json.loads(done.stdout)
    unit = 1 if sys.platform == "darwin" else 1024
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit / 1e6
    rate = counts["accesses"] / seconds / 1e6
    print(f"{options.machine}: {counts['accesses']:,} accesses in {seconds:.1f} s, {rate:.1f} M accesses/s")
    for name, level in counts["levels"].items():
        print(f"  {name}: miss rate {level['miss_rate']:.2%}")
    print(f"peak memory {peak_mb:.0f} MB (allowed: {options.max_mb:.0f} MB)")
    return 0 if peak_mb <= options.max_mb else 1


if __name__ == "__main__":
    sys.exit(main())
