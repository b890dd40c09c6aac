"""What specialisation saves: one matrix product on six machines of one technology, and what an instruction amortises.

python examples/specialisation.py [FILE.png] [n]
"""

from __future__ import annotations

import sys
from pathlib import Path

import hwsim
from hwsim.results.plot.style import plot_energy_stack

LADDER = {
    "scalar core": ("ladder_scalar", "matmul_register", {"v1": 8, "v2": 8}),
    "with vectors": ("ladder_simd", "matmul_register", {"vector": True, "v1": 8, "v2": 32}),
    "signal processor": ("ladder_dsp", "matmul_register", {"vector": True, "v1": 8, "v2": 32}),
    "GPU multiprocessor": ("ladder_gpu", "matmul", {}),
    "FPGA": ("ladder_fpga", "matmul", {}),
    "fixed function": ("ladder_asic", "matmul", {}),
}
"""A machine, and the product in the schedule that suits it: cores have a register tile, the others choose their own."""

INSTRUCTIONS = {
    "HFMA": ("fp16", {"m": 1, "n": 1, "k": 1}, 1.5),
    "HDP4A": ("fp16", {"m": 1, "n": 1, "k": 4}, 6.0),
    "HMMA": ("fp16", {"m": 4, "n": 4, "k": 4}, 110.0),
    "IMMA": ("int8", {"m": 4, "n": 4, "k": 8}, 160.0),
}
"""Format, multiply-adds, and picojoules of arithmetic of one instruction (Dally, Hot Chips 2023)."""
PER_INSTRUCTION_PJ = 30.0
"""Fetch, decode and operands of an instruction (the same source)."""


def climb(n: int) -> dict[str, hwsim.RunResult]:
    """The same product, in fp16, on every rung."""
    return {
        name: hwsim.run(machine, workload, n=n, precision="fp16", **schedule)
        for name, (machine, workload, schedule) in LADDER.items()
    }


def joules(result: hwsim.RunResult, cause: str) -> float:
    return sum(line.joules for line in (result.energy_by_cause or {}).get(cause, {}).values())


def print_ladder(results: dict[str, hwsim.RunResult]) -> None:
    head = f"{'arithmetic':>12}{'operands':>10}{'control':>9}{'memory':>9}{'static':>9}"
    print(f"{'pJ per multiply-add':22}{'all':>9}{head}")
    for name, result in results.items():
        each = 1e12 / result.work.macs
        columns = {"arithmetic": 12, "operand supply": 10, "control": 9, "memory": 9, "static": 9}
        split = "".join(f"{joules(result, cause) * each:>{width}.2f}" for cause, width in columns.items())
        print(f"{name:22}{(result.energy_j or 0) * each:>9.2f}{split}")
    first, last = (result.energy_j or 0.0 for result in (results["scalar core"], results["fixed function"]))
    print(f"scalar core to fixed function: {first / last:.0f} times less energy")


def widths(n: int = 64) -> dict[int, tuple[float, float]]:
    """By lanes of fp32: the share of arithmetic in arithmetic and control, and in all dynamic energy."""
    shares = {}
    for lanes in (1, 4, 8, 16, 32):
        vector = {"core.simd.bits": 32 * lanes, "regs.bits": 32 * lanes} if lanes > 1 else {}
        result = hwsim.run(
            "ladder_simd" if lanes > 1 else "ladder_scalar", "matmul_register",
            n=n, v1=8, v2=8 * lanes if 8 * lanes <= n else n, vector=lanes > 1, set=vector,
        )  # fmt: skip
        arithmetic, control = joules(result, "arithmetic"), joules(result, "control")
        dynamic = (result.energy_j or 0.0) - joules(result, "static")
        shares[lanes] = arithmetic / (arithmetic + control), arithmetic / dynamic
    return shares


def print_widths() -> None:
    print(f"\n{'lanes of fp32':16}{'of arithmetic and control':>28}{'6w/(6w+94)':>14}{'of all dynamic energy':>24}")
    for lanes, (share, whole) in widths().items():
        print(f"{lanes:<16}{share:>28.1%}{6 * lanes / (6 * lanes + 94):>14.1%}{whole:>24.1%}")


def amortised(n: int = 64) -> dict[str, tuple[float, float]]:
    """By instruction: its overhead against its arithmetic, and against both together."""
    found = {}
    for name, (fmt, matrix, picojoules) in INSTRUCTIONS.items():
        macs = matrix["m"] * matrix["n"] * matrix["k"]
        settings = {f"core.matrix.{axis}": size for axis, size in matrix.items()}
        settings |= {"core.simd": "null", "energy.actions.core.instruction.energy": f"{PER_INSTRUCTION_PJ} pJ"}
        settings |= {f"energy.actions.core.fma.{fmt}.energy": f"{picojoules / macs} pJ"}
        result = hwsim.run("ladder_simd", "matmul_register", n=n, v1=8, v2=8, precision=fmt, vector=False, set=settings)
        overhead = result.work.instructions["fma"] * PER_INSTRUCTION_PJ * 1e-12
        arithmetic = joules(result, "arithmetic")
        found[name] = overhead / arithmetic, overhead / (overhead + arithmetic)
    return found


def print_amortised() -> None:
    print(f"\n{'instruction':14}{'overhead, of the arithmetic':>30}{'of the total':>16}")
    for name, (of_arithmetic, of_total) in amortised().items():
        print(f"{name:14}{of_arithmetic:>30.0%}{of_total:>16.0%}")


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs/images/specialisation.png")
    n = int(sys.argv[2]) if len(sys.argv) > 2 else 128
    target.parent.mkdir(parents=True, exist_ok=True)
    results = climb(n)
    print(f"{n} x {n} matrix product in fp16, 45 nm, the same answer each time:\n")
    print_ladder(results)
    print_widths()
    print_amortised()
    plot_energy_stack(results, target, f"Specialisation: matrix product, n = {n}, fp16, 45 nm")
    print(f"\ndrawn: {target}")


if __name__ == "__main__":
    main()
