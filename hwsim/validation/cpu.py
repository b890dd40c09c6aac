"""`hwsim validate cpu`: time over tile size, against a real Zen 3 core.

Each measured matmul (the fastest of its repeats) is simulated on `zen3`. The host's compiler multiplied and added
apart, so fused multiply-add is switched off. Half of the rows, by a hash of their shape, were fitted on; only the
others are reported.

A few rows of the output are simulated with cold caches, then again, few and more of them: what they take with what the
first left in the caches grows in a straight line with their number, which is followed to the height of a tile.

`hwsim validate cpu --here` compares loops on a machine file with the computer at hand, measured now: products in
several orders and tiles, transposes, sums, fused and unfused vectors, convolutions, softmax and norms, attention, and
threads. Each is compiled with Numba and run with cold caches, the fastest of some repeats. Loops that Numba cannot make
into vector code are compared as scalar ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median

import numpy as np
from numpy.typing import NDArray

from hwsim.catalog import load_machine
from hwsim.engine import FEMTOSECONDS, play
from hwsim.memory.hierarchy import build_hierarchy
from hwsim.program.kernel import Kernel
from hwsim.program.loop_kernel import build_kernel
from hwsim.spec.machine import MachineSpec
from hwsim.spec.workload import WorkloadSpec
from hwsim.sweep.executor import in_parallel
from hwsim.targets.cpu.agent import CoreCrew
from hwsim.targets.cpu.target import CpuTarget
from hwsim.validation.report import Bar, ComparisonRow, Progress, relative_error, report
from hwsim.validation.residual import FIT, Purpose, Residual, purpose_of
from hwsim.validation.table import Record, integer, one_of, read_table, row_error, sample, shipped, tables


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rho, ties sharing their mean rank; 0 where one side does not vary."""
    a, b = _ranks(first), _ranks(second)
    if a.std() == 0 or b.std() == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: Sequence[float]) -> NDArray[np.float64]:
    data = np.asarray(values, np.float64)
    order = np.argsort(data, kind="stable")
    ranks = np.empty(len(data), np.float64)
    ranks[order] = np.arange(len(data), dtype=np.float64)
    for value in np.unique(data):
        ranks[data == value] = ranks[data == value].mean()
    return ranks


WHAT = "seconds of a matmul over tile size, against a measured Zen 3 core"

_COLUMNS = ("build", "dtype", "n", "variant", "tile", "seconds")
_PRECISION = {"f32": "fp32", "f64": "fp64"}
FEW, MORE = 4, 12
"""Rows of a tile that are simulated: the line through both numbers leads to all of them."""
ALIGNED_BYTES = 2 << 20
"""Where each measured matrix began: at a multiple of this."""
CURVE_AIM, POWER_AIM, OTHER_AIM, ERROR_AIM, RATIO_AIM, WORST_AIM = 0.8, 0.93, 0.85, 0.15, 1.3, 1.8

Curve = tuple[str, str, int, str]
Group = tuple[str, str, int]


@dataclass(frozen=True)
class Case:
    """One measured matmul."""

    build: str
    dtype: str
    n: int
    variant: str
    tile: int

    @property
    def purpose(self) -> Purpose:
        """Whether constants may be fitted on it."""
        return purpose_of(self.build, self.dtype, self.n, self.variant, self.tile)

    @property
    def curve(self) -> Curve:
        return self.build, self.dtype, self.n, self.variant

    @property
    def group(self) -> Group:
        return self.build, self.dtype, self.n

    @property
    def held_out(self) -> bool:
        """Whether nothing was fitted on it."""
        return self.purpose != FIT

    @property
    def name(self) -> str:
        return f"{self.build} {self.dtype} {self.n} {self.variant}" + (f" {self.tile}" if self.tile else "")


def validate(data: Path | None = None, count: int | None = None, seed: int = 0) -> Progress:
    """The number of rows to come, then each row as it is done, then the report."""
    (path,) = tables(data, "cpu.csv", ())
    measured = _measured(path, count, seed)
    for_fits = 0
    if data is None or data.is_dir():
        every, measured = measured, {case: seconds for case, seconds in measured.items() if case.held_out}
        for_fits = len(every) - len(measured)
    machine = load_machine("zen3", ["core.ports.fma=0"]).spec
    yield len(measured)
    simulated: dict[Case, float] = {}
    rows: dict[Case, ComparisonRow] = {}
    for case, found in in_parallel(partial(simulate_case, machine), measured):
        seconds = measured[case]
        simulated[case] = found
        detail = f"{found:.4g} s simulated, {seconds:.4g} s measured"
        residual = Residual("cpu_matmul", machine.name, found, seconds, case.purpose)
        group = f"{case.build} {case.variant}"
        rows[case] = ComparisonRow.of(case.name, group, found, seconds, detail, residual)
        yield rows[case]
    curves, groups = _correlations(measured, simulated)
    bars, notes = _bars(curves, groups, measured, simulated), _notes(curves, groups)
    fits = {("cpu_matmul", machine.name): for_fits}
    yield report("cpu", WHAT, [rows[case] for case in measured], bars, notes, fits)


def simulate_case(machine: MachineSpec, case: Case) -> float:
    """Seconds of the whole matmul, from some of its rows."""
    tile = case.tile if case.variant.startswith("tiled") else REGISTER_ROWS
    most = min(tile, MORE) if case.variant.startswith("tiled") else 2 * REGISTER_ROWS
    few = min(FEW, most)
    hierarchy = build_hierarchy(machine, cores=1)

    def seconds(rows: int) -> float:
        played = play(CoreCrew(machine, _kernel(machine, case, rows), hierarchy=hierarchy))
        return played.elapsed_fs / FEMTOSECONDS

    seconds(most)
    if most >= tile:
        return seconds(most) * case.n / most
    less, more = seconds(few), seconds(most)
    slope = (more - less) / (most - few)
    return (more + (tile - most) * slope) * case.n / tile


def _kernel(machine: MachineSpec, case: Case, rows: int) -> Kernel:
    simd = CpuTarget(machine).unit.simd
    precision = _PRECISION[case.dtype]
    lanes = simd.bits // int(precision[2:]) if simd and case.build == "vec" else 1
    return build_kernel(_workload(case, rows, precision), lanes=lanes, math=False, align=ALIGNED_BYTES)


REGISTER_ROWS, REGISTER_COLUMNS = 4, 8


def _workload(case: Case, rows: int, precision: str) -> WorkloadSpec:
    """The loops as they were compiled, as far as their times tell.

    The 4 x 8 sums of a register tile do not fit 16 registers, so they are loops over memory inside the loop over k; the
    vectorised ones are short enough to be unrolled.
    """
    schedule: dict[str, object] = {"vector": case.build == "vec"}
    if case.variant.startswith("regtile"):
        schedule |= {"order": "kij", "b1": REGISTER_ROWS, "b2": REGISTER_COLUMNS, "tile_k": case.tile or case.n}
        schedule |= {"v1": REGISTER_ROWS, "v2": REGISTER_COLUMNS} if case.build == "vec" else {}
    else:
        schedule["order"] = case.variant.removeprefix("tiled_")
        schedule |= {"tile": case.tile} if case.variant.startswith("tiled") else {}
    sizes = {"m": rows, "n": case.n, "k": case.n}
    return WorkloadSpec.model_validate(
        {"format": 1, "name": "measured", "description": case.name, "op": "matmul", "sizes": sizes,
         "schedule": schedule, "precision": precision}
    )  # fmt: skip


def _measured(path: Path, count: int | None, seed: int) -> dict[Case, float]:
    """The fastest of the repeats of each case."""
    fastest: dict[Case, float] = {}
    for record in sample(
        read_table(path, _COLUMNS), lambda r: (r["build"], r["dtype"], r["n"], r["variant"]), count, seed
    ):
        case = _case(path, record)
        fastest[case] = min(float(record["seconds"]), fastest.get(case, float("inf")))
    return fastest


def _case(path: Path, record: Record) -> Case:
    allowed = {
        "build": ("vec", "novec"),
        "dtype": tuple(_PRECISION),
        "variant": ("ijk", "ikj", "tiled_ijk", "tiled_ikj", "regtile4x8", "regtile4x8_k"),
    }
    for column, values in allowed.items():
        one_of(path, record, column, values)
    n, tile = integer(path, record, "n"), integer(path, record, "tile")
    tiled = record["variant"].startswith("tiled") or record["variant"] == "regtile4x8_k"
    for column, number, least in (("n", n, 2), ("tile", tile, 1 if tiled else 0)):
        if number < least:
            raise row_error(path, record, column, f"{number} is less than {least}")
    if not _is_time(record["seconds"]):
        raise row_error(path, record, "seconds", f"{record['seconds']!r} is not a time in seconds")
    return Case(record["build"], record["dtype"], n, record["variant"], tile)


def _is_time(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False


def _correlations(
    measured: dict[Case, float], simulated: dict[Case, float]
) -> tuple[dict[Curve, float], dict[Group, float]]:
    """Rank correlation of every tile-size curve, and of all variants of a build, type and size."""
    by_curve: defaultdict[Curve, list[Case]] = defaultdict(list)
    by_group: defaultdict[Group, list[Case]] = defaultdict(list)
    for case in measured:
        by_curve[case.curve].append(case)
        by_group[case.group].append(case)

    def rho(cases: Iterable[Case]) -> float:
        listed = list(cases)
        return spearman([measured[case] for case in listed], [simulated[case] for case in listed])

    curves = {name: rho(cases) for name, cases in by_curve.items() if name in _ceilings() and len(cases) >= 4}
    return curves, {name: rho(cases) for name, cases in by_group.items() if len(cases) >= 4}


def _ceilings() -> dict[Curve, float]:
    """How well two measurements of a usable curve agree with each other."""
    columns = ("build", "dtype", "n", "family", "split_half_min_rho", "usable")
    records = read_table(shipped("cpu_curves.csv"), columns)
    return {
        (r["build"], r["dtype"], int(r["n"]), r["family"]): float(r["split_half_min_rho"])
        for r in records
        if r["usable"] == "1"
    }


def _bars(
    curves: dict[Curve, float], groups: dict[Group, float], measured: dict[Case, float], simulated: dict[Case, float]
) -> list[Bar]:
    bars = []
    if curves:
        value = median(curves.values())
        name = "rank correlation over tile size, median of the usable curves"
        bars.append(Bar(name, f">= {CURVE_AIM}", f"{value:.2f}", value >= CURVE_AIM))
    if not groups:
        bars.append(Bar("rows to rank", "4 variants of one build, type and size", f"{len(measured)} rows", met=False))
        return bars
    powers = [rho for (_, _, n), rho in groups.items() if n.bit_count() == 1]
    others = [rho for (_, _, n), rho in groups.items() if n.bit_count() > 1]
    for found, aim, where in ((powers, POWER_AIM, "a power of two"), (others, OTHER_AIM, "another size")):
        if found:
            name = f"rank correlation over all variants, {where}, median of build and type"
            bars.append(Bar(name, f">= {aim}", f"{median(found):.2f}", median(found) >= aim))
    error = mean(relative_error(simulated[case], measured[case]) for case in measured)
    bars.append(Bar.at_most("mean error of the time", ERROR_AIM, error))
    factors = [_ratio_error(group, measured, simulated) for group in groups if _naive(group, measured)]
    if factors:
        name = "naive-to-best ratio, median of the same groups"
        text = f"a factor of {median(factors):.2f} off (worst {max(factors):.2f})"
        met = median(factors) <= RATIO_AIM and max(factors) <= WORST_AIM
        bars.append(Bar(name, f"within {RATIO_AIM:g} (worst {WORST_AIM:g})", text, met))
    return bars


def _naive(group: Group, measured: dict[Case, float]) -> Case | None:
    return next((case for case in measured if case.group == group and case.variant == "ijk"), None)


def _ratio_error(group: Group, measured: dict[Case, float], simulated: dict[Case, float]) -> float:
    """By what factor the simulated gain of the best variant over the naive one differs from the measured one."""
    cases = [case for case in measured if case.group == group]
    naive = _naive(group, measured)
    assert naive is not None
    gains = [times[naive] / min(times[case] for case in cases) for times in (measured, simulated)]
    return max(gains) / min(gains)


def _notes(curves: dict[Curve, float], groups: dict[Group, float]) -> list[str]:
    ceilings = _ceilings()
    notes = [
        f"{' '.join(map(str, name))}: rank correlation {rho:.2f} (two measurements agree by {ceilings[name]:.2f})"
        for name, rho in sorted(curves.items())
    ]
    if curves:
        notes.append(
            f"mean over the curves {mean(curves.values()):.2f}; noise ceiling {mean(ceilings[c] for c in curves):.2f}"
        )
    notes += [f"{' '.join(map(str, name))}: all variants {rho:.2f}" for name, rho in sorted(groups.items())]
    return notes


# This computer ------------------------------------------------------------------------------------------------------

RANK_AIM, FACTOR, SHARE_AIM = 0.85, 1.5, 0.75

TILES = (8, 16, 32, 64, 128)


def _loop(group: str, workload: str, **settings: object) -> tuple[str, str, dict[str, object]]:
    return group, workload, settings


CASES = (
    *(_loop("order", "matmul_naive", n=256, order=order) for order in ("ijk", "ikj", "jik", "jki", "kij", "kji")),
    *(_loop("tiles, 512", "matmul_tiled", n=512, tile=tile) for tile in TILES),
    *(_loop("tiles, 520", "matmul_tiled", n=520, tile=tile) for tile in (8, 20, 40, 65, 130)),
    *(_loop("tiles, vectors", "matmul_tiled", n=512, tile=tile, order="ikj", vector=True) for tile in TILES),
    *(_loop("padding", "matmul_naive", n=512, ld=ld) for ld in (512, 520, 528, 544)),
    *(_loop("transpose", name, m=m, n=1024) for name in ("transpose", "transpose_tiled") for m in (512, 1024)),
    *(_loop("sum", name, m=m, n=m) for name in ("sum_rows", "sum_columns") for m in (512, 2048)),
    *(_loop("vectors", name, n=n) for name in ("fused", "unfused", "triad") for n in (65536, 2097152)),
    *(_loop("register tile", "matmul_register", n=256, v1=v, v2=v) for v in (1, 2, 4)),
    *(_loop("convolution", name, vector=False) for name in ("conv2d_1x1", "conv2d_3x3", "conv2d_5x5", "conv2d_im2col")),
    *(_loop("softmax", name, vector=False) for name in ("softmax", "softmax_online", "rmsnorm", "layernorm")),
    *(
        _loop("attention", name, n=n, vector=False)
        for name in ("attention_naive", "attention_fused")
        for n in (128, 256)
    ),
    *(_loop("threads", "matmul_ikj", n=256, parallel="rows", cores=cores) for cores in (1, 2)),
)
"""Group, workload and settings of everything that is compared."""


def validate_here(machine: str | None = None) -> Progress:
    """The number of rows to come, then each row as it is done, then the report."""
    from hwsim.measure.here import this_computer
    from hwsim.measure.loops import Bench, simulate

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
            rows.append(ComparisonRow.of(name, group, simulated, measured, detail))
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
    if machine is None:
        notes.append(
            f"{chosen} is the stock machine nearest to this computer; hwsim calibrate here.yaml measures the computer "
            "itself, for --machine here.yaml"
        )
    yield report("cpu", f"loops on {chosen} against this computer ({computer.model})", rows, bars, notes)
