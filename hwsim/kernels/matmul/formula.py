"""The course's closed forms for a matrix product, for the schedules that they are about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hwsim.kernels.kernel import Formula, Setting
from hwsim.kernels.loop.loops import LoopPlan
from hwsim.spec.ops.matmul import MatmulWorkload
from hwsim.trace.nest import Size

Sizes = Mapping[str, Size]
"""Bytes of an element of A, B and C."""


def matmul_formulas(workload: MatmulWorkload, plan: LoopPlan, setting: Setting, sizes: Sizes) -> tuple[Formula, ...]:
    counts = tuple(_register_counts(workload, plan)) if plan.lanes == 1 else ()
    return (*counts, *_line_counts(workload, plan, setting, sizes), *_intensity(workload, sizes))


def _register_counts(workload: MatmulWorkload, plan: LoopPlan) -> Iterator[Formula]:
    """Loads into registers and stores out of them: 2n³ and n², or n³/v2 + n³/v1 with a register tile."""
    schedule = workload.schedule
    if schedule.order not in ("ijk", "jik") or schedule.accumulate == "memory":
        return
    m, n, k = workload.m, workload.sizes.n, workload.k
    v1, v2 = plan.unroll.get("i", 1), plan.unroll.get("j", 1)
    passes = -(-k // plan.tile["k"]) if "k" in plan.tile else 0
    a = m * k * _blocks(n, plan.tile.get("j"), v2)
    b = k * n * _blocks(m, plan.tile.get("i"), v1)
    tiled = v1 > 1 or v2 > 1
    yield Formula("loads of A", "n³/v2" if tiled else "n³", a, "elements", "loads.A")
    yield Formula("loads of B", "n³/v1" if tiled else "n³", b, "elements", "loads.B")
    if not passes:
        both = "n³/v2 + n³/v1" if tiled else "2n³"
        yield Formula("loads, memory to registers", both, a + b, "elements", "loads")
        yield Formula("stores", "n²", m * n, "elements", "stores")
    else:
        both = "n³/v2 + n³/v1 + n³/b" if tiled else "2n³ + n³/b"
        yield Formula("loads, memory to registers", both, a + b + passes * m * n, "elements", "loads")
        yield Formula("stores", "n³/b", passes * m * n, "elements", "stores")


def _blocks(extent: int, tile: int | None, unroll: int) -> int:
    """Register tiles along an index, where a cache tile may cut some of them short."""
    size = min(tile or extent, extent)
    whole, rest = divmod(extent, size)
    return whole * -(-size // unroll) + -(-rest // unroll)


def _line_counts(workload: MatmulWorkload, plan: LoopPlan, setting: Setting, sizes: Sizes) -> Iterator[Formula]:
    """Lines brought into a cache that holds the tiles: 2n³/(L·b) + n²/L for square tiles, (n² + n³/b1)/L
    for strips.

    L is the number of elements in a line. C counts once; with tiles along k it is found in the cache again.
    """
    a, b, c = (setting.line_bytes / sizes[name] for name in "ABC")
    m, n, k = workload.m, workload.sizes.n, workload.k
    if {"i", "j", "k"} <= set(plan.tile) and workload.schedule.order in ("ijk", "jik"):
        value = m * k / a * -(-n // plan.tile["j"]) + k * n / b * -(-m // plan.tile["i"]) + m * n / c
        yield Formula("lines into L1, square tiles", "2n³/(L·b) + n²/L", round(value), "lines", "l1.fills")
    elif "i" in plan.tile and workload.schedule.order == "ijk":
        value = m * k / a + k * n / b * -(-m // plan.tile["i"])
        yield Formula("lines of A and B into L1, strips", "(n² + n³/b1)/L", round(value), "lines", "l1.fills")
        yield _total_time(workload, plan, sizes)


def _total_time(workload: MatmulWorkload, plan: LoopPlan, sizes: Sizes) -> Formula:
    """The course's whole model: what comes from DRAM and what comes from L1, one after the other."""
    m, n, k = workload.m, workload.sizes.n, workload.k
    far = m * k * sizes["A"] + k * n * sizes["B"] * -(-m // plan.tile["i"])
    near = m * k * sizes["A"] * _blocks(n, plan.tile.get("j"), plan.unroll.get("j", 1))
    near += k * n * sizes["B"] * _blocks(m, plan.tile.get("i"), plan.unroll.get("i", 1))
    expression = "(n² + n³/b1)·t(dram→L1) + (n³/v1 + n³/v2)·t(L1→reg)"
    return Formula("time, transfers alone", expression, 0, "s", "time_s", far=int(far), near=int(near))


def _intensity(workload: MatmulWorkload, sizes: Sizes) -> Iterator[Formula]:
    """The best that any schedule can reach: each element moved once."""
    m, n, k = workload.m, workload.sizes.n, workload.k
    bytes_once = m * k * sizes["A"] + k * n * sizes["B"] + m * n * sizes["C"]
    yield Formula(
        "operations per byte, each element moved once",
        "2n³/(3n² · bytes per element)",
        float(2 * m * n * k / bytes_once),
        "flop/B",
        "intensity.byte",
    )
