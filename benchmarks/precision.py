"""What it costs to really compute in a low precision: emulated products beside plain float32 NumPy.

    python benchmarks/precision.py           # 1024 x 1024 x 1024
    python benchmarks/precision.py --n 512
    python benchmarks/precision.py --json    # the same as JSON

For each datapath, A and B are rounded to their format (and scaled), multiplied, and summed; the time is that of all of
it, from float32 inputs to the result. Beside it stands the error against float64. Sums in fp32 or int32 are held to a
bar of four times plain float32 for bf16, fp8 and int8; sums that are rounded after every chunk have no bar. Exits with
1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hwsim.numerics.datapath import find_datapath

BAR = 4.0
"""Times plain float32."""
REPEATS = 7


@dataclass(frozen=True)
class Case:
    """A datapath, and whether it is held to the bar."""

    precision: str
    options: dict[str, Any]
    barred: bool = False

    @property
    def title(self) -> str:
        return " ".join([self.precision, *(f"{name}={value}" for name, value in self.options.items())])


@dataclass(frozen=True)
class Row:
    """What a datapath took, and how far it is off."""

    title: str
    seconds: float
    ratio: float
    rms_error: float
    bar: float | None

    @property
    def holds(self) -> bool:
        return self.bar is None or self.ratio <= self.bar


CASES = (
    Case("bf16", {}, barred=True),
    Case("fp8_e4m3", {}, barred=True),
    Case("fp8_e4m3", {"scale": "tensor"}, barred=True),
    Case("fp8_e5m2", {"scale": "tensor"}, barred=True),
    Case("int8", {}, barred=True),
    Case("int8", {"scale": "tensor"}, barred=True),
    Case("int8", {"scale": "row"}, barred=True),
    Case("tf32", {}),
    Case("fp16", {}),
    Case("mxfp8", {}),
    Case("mxfp4", {}),
    Case("int4", {"scale": "row"}),
    Case("int8", {"scale": "block"}),
    Case("w8a16", {}),
    Case("w4a16", {}),
    Case("bf16", {"accumulate": "bf16"}),
    Case("bf16", {"accumulate": "bf16", "chunk": 128}),
    Case("bf16", {"accumulate": "bf16", "chunk": 32}),
    Case("fp8_e4m3", {"accumulate": "fp16", "chunk": 32}),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=1024, help="rows, columns and inner length")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    random = np.random.default_rng(0)
    a, b = random.standard_normal((2, options.n, options.n)).astype(np.float32)
    plain = best_time(lambda: a @ b)
    rows = [measure(case, a, b, plain) for case in CASES]
    if options.json:
        print(json.dumps({"n": options.n, "float32_seconds": plain, "rows": [asdict(row) for row in rows]}, indent=2))
    else:
        print_table(options.n, plain, rows)
    return 0 if all(row.holds for row in rows) else 1


def measure(case: Case, a: np.ndarray, b: np.ndarray, plain: float) -> Row:
    path = find_datapath(case.precision, **case.options)
    left, right = a, b
    if path.a.is_integer and not path.scaled:  # numbers that are integers already
        left, right = (np.clip(np.rint(each * 30), -128, 127) for each in (a, b))
    product = path.dot(path.quantize_a(left), path.quantize_b(right))
    exact = left.astype(np.float64) @ right.astype(np.float64)
    error = float(np.sqrt(np.mean((product - exact) ** 2) / np.mean(exact**2)))
    slow = path.chunk is not None
    seconds = best_time(lambda: path.dot(path.quantize_a(left), path.quantize_b(right)), 2 if slow else REPEATS)
    return Row(case.title, seconds, seconds / plain, error, BAR if case.barred else None)


def best_time(function: Callable[[], object], repeats: int = REPEATS) -> float:
    """The shortest of several: what it takes when nothing else gets in the way."""
    function()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return min(times)


def print_table(n: int, plain: float, rows: list[Row]) -> None:
    print(f"{n} x {n} x {n}, plain float32: {1e3 * plain:.1f} ms")
    print(f"{'datapath':38} {'ms':>8} {'x float32':>10} {'rms error':>10}  bar")
    for row in rows:
        bar = "" if row.bar is None else f"{row.bar:.0f}x {'holds' if row.holds else 'MISSED'}"
        print(f"{row.title:38} {1e3 * row.seconds:8.1f} {row.ratio:10.2f} {row.rms_error:10.2e}  {bar}")


if __name__ == "__main__":
    sys.exit(main())
