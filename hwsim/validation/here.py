"""`hwsim validate cpu --here`: time of loops on a machine file against the computer at hand, measured now.

Products in several orders and tiles, transposes, sums, fused and unfused vectors, convolutions, softmax and norms,
attention, and threads. Each is compiled with Numba and run with cold caches, the fastest of some repeats. Loops that
Numba cannot make into vector code are compared as scalar ones.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from hwsim.measure.here import this_computer
from hwsim.measure.loops import Bench, simulate
from hwsim.validation.cpu import spearman
from hwsim.validation.report import Bar, ComparisonRow, Progress, relative_error, report

RANK_AIM, FACTOR, SHARE_AIM = 0.85, 1.5, 0.75

Settings = dict[str, object]
TILES = (8, 16, 32, 64, 128)


def _case(group: str, workload: str, **settings: object) -> tuple[str, str, Settings]:
    return group, workload, settings


CASES = (
    *(_case("order", "matmul_naive", n=256, order=order) for order in ("ijk", "ikj", "jik", "jki", "kij", "kji")),
    *(_case("tiles, 512", "matmul_tiled", n=512, tile=tile) for tile in TILES),
    *(_case("tiles, 520", "matmul_tiled", n=520, tile=tile) for tile in (8, 20, 40, 65, 130)),
    *(_case("tiles, vectors", "matmul_tiled", n=512, tile=tile, order="ikj", vector=True) for tile in TILES),
    *(_case("padding", "matmul_naive", n=512, ld=ld) for ld in (512, 520, 528, 544)),
    *(_case("transpose", name, m=m, n=1024) for name in ("transpose", "transpose_tiled") for m in (512, 1024)),
    *(_case("sum", name, m=m, n=m) for name in ("sum_rows", "sum_columns") for m in (512, 2048)),
    *(_case("vectors", name, n=n) for name in ("fused", "unfused", "triad") for n in (65536, 2097152)),
    *(_case("register tile", "matmul_register", n=256, v1=v, v2=v) for v in (1, 2, 4)),
    *(_case("convolution", name, vector=False) for name in ("conv2d_1x1", "conv2d_3x3", "conv2d_5x5", "conv2d_im2col")),
    *(_case("softmax", name, vector=False) for name in ("softmax", "softmax_online", "rmsnorm", "layernorm")),
    *(
        _case("attention", name, n=n, vector=False)
        for name in ("attention_naive", "attention_fused")
        for n in (128, 256)
    ),
    *(_case("threads", "matmul_ikj", n=256, parallel="rows", cores=cores) for cores in (1, 2)),
)
"""Group, workload and settings of everything that is compared."""


def validate_here(machine: str | None = None) -> Progress:
    """The number of rows to come, then each row as it is done, then the report."""
    computer = this_computer()
    chosen = machine or computer.nearest
    cases = [case for case in CASES if int(str(case[2].get("cores", 1))) <= computer.cores]
    yield len(cases)
    rows = []
    times: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    with Bench() as bench:
        for group, workload, settings in cases:
            measured = bench.measure(workload, settings, chosen).seconds
            simulated = simulate(workload, settings, chosen).time_s
            times[group].append((measured, simulated))
            name = " ".join([workload, *(f"{key}={value}" for key, value in settings.items())])
            detail = f"{simulated:.4g} s simulated, {measured:.4g} s measured"
            rows.append(ComparisonRow(name, group, relative_error(simulated, measured), detail))
            yield rows[-1]
    ranks = {name: spearman(*zip(*pairs, strict=True)) for name, pairs in times.items() if len(pairs) >= 4}
    every = [pair for pairs in times.values() for pair in pairs]
    near = sum(max(pair) / min(pair) <= FACTOR for pair in every) / len(every)
    bars = [
        Bar("rank correlation, median of the groups", f">= {RANK_AIM}", f"{median(ranks.values()):.2f}",
            median(ranks.values()) >= RANK_AIM),
        Bar(f"rows within a factor of {FACTOR:g}", f">= {SHARE_AIM:.0%}", f"{near:.0%}", near >= SHARE_AIM),
    ]  # fmt: skip
    notes = [f"{name}: rank correlation {rho:.2f}" for name, rho in ranks.items()]
    yield report("cpu", f"loops on {chosen} against this computer ({computer.model})", rows, bars, notes)
