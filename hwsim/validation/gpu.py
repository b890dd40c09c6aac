"""`hwsim validate gpu`: library kernels against times measured on real GPUs, by family and machine.

Only rows that no constant was fitted on are compared (split.py).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import mean, median

from pydantic import ValidationError

from hwsim.catalog import load_machine, machine_names
from hwsim.errors import InputError, SpecError
from hwsim.targets.gpu.target import GpuTarget
from hwsim.validation.gpu_workload import (
    CALL_US,
    COLUMNS,
    CONV_TIMED,
    CONV_US,
    HOST_US,
    LADDER,
    LAYER_TIMED,
    LAYER_US,
    LIBRARY_TIMED,
    PIECES,
    PLUGIN,
    PLUGIN_US,
    QUEUED_CALL_US,
    QUEUED_GAP_US,
    QUEUED_KERNEL_US,
    QUEUED_US,
    SERVING_LAUNCHES,
    TIMING,
    MeasuredKernel,
    PlayedKernel,
    pieces_of,
    play_piece,
)
from hwsim.validation.report import Bar, ComparisonRow, Progress, report
from hwsim.validation.residual import Residual
from hwsim.validation.table import one_of, read_table, sample, tables

WHAT = "seconds of library kernels, against times measured on real GPUs"

FAMILY_BARS = {
    "gemm_tensor": 0.15, "gemm_fp32": 0.15, "gemm_8bit": 0.20, "attention_fused": 0.12, "attention_decode": 0.25,
    "memory_bound": 0.10, "conv_implicit": 0.30,
}  # fmt: skip
"""Mean error of a family over its machines, every machine counting alike."""
NO_BARS = frozenset(("arc_b60", "b200", "b300", "gb200", "l40s", "mi100", "mi210", "rtx_pro_6000"))
"""Machines that are reported without a bar: most of their constants are assumptions or come from a relative."""
GROUP_BARS = {("gemm_tensor", "a100_80"): 0.10}


POOLS = ("gpu/pool.csv.gz", "gpu_new/pool.csv.gz")
"""Larger tables of the same columns, in a folder that is given with --data."""
POOL_ROWS = 300
"""Of a pool, so many rows of a family and machine that were not fitted are enough."""


def validate(data: Path | None = None, count: int | None = None, seed: int = 0) -> Progress:
    """The number of rows to come, then each row as it is done, then the report."""
    measured: list[MeasuredKernel] = []
    for_fits: Counter[tuple[str, str]] = Counter()
    pooled = data is not None and data.is_dir()
    for path in tables(data, "gpu.csv", POOLS):
        records = [MeasuredKernel(path, record) for record in read_table(path, COLUMNS)]
        for row in records:
            row.check_sizes()
        if pooled:
            known = frozenset(machine_names())
            records = [row for row in records if row.machine in known]
        for_fits.update((row.family, row.machine) for row in records if not row.held_out)
        records = [row for row in records if row.held_out and (not pooled or covered(row))]
        most = POOL_ROWS if pooled and count is None else count
        chosen = sample([row.record for row in records], lambda r: (r["family"], r["machine"]), most, seed)
        measured += [MeasuredKernel(path, record) for record in chosen]
    kept = [row for row in measured if covered(row)]
    yield len(kept)
    targets: dict[str, GpuTarget] = {}
    rows: list[ComparisonRow] = []
    refused = 0
    errors: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in kept:
        if row.machine not in targets:
            targets[row.machine] = _target(row)
        try:
            simulated = modelled_seconds(targets[row.machine], row)
        except SpecError:
            if not pooled:
                raise
            refused += 1
            continue
        detail = f"{row.words}: {simulated * 1e6:.4g} us simulated, {row.seconds * 1e6:.4g} us measured"
        residual = Residual(row.family, row.machine, simulated, row.seconds, row.purpose)
        group = f"{row.family} {row.machine}"
        rows.append(ComparisonRow.of(row.name, group, simulated, row.seconds, detail, residual))
        errors[row.family][row.machine].append(rows[-1].error)
        yield rows[-1]
    notes = _notes(errors, measured)
    if refused:
        notes.append(f"{refused} rows left out: hwsim has no kernel for their shapes")
    yield report("gpu", WHAT, rows, _bars(errors), notes, for_fits)


def _target(row: MeasuredKernel) -> GpuTarget:
    if row.machine not in machine_names():
        raise row.wrong("machine", f"there is no machine {row.machine!r}; known: {', '.join(machine_names())}")
    return GpuTarget(load_machine(row.machine).spec)


def covered(row: MeasuredKernel) -> bool:
    """Whether a library kernel stands behind the row, or a hand-written one that hwsim has too."""
    if row.record["op"] == "sgemm_ladder":
        return row.record["impl"] in LADDER
    return row.record["op"] in PIECES and not row.host_bound and not row.other_attention


def modelled_seconds(target: GpuTarget, row: MeasuredKernel) -> float:
    """What a run says about a row, with the launch that fits its timing."""
    try:
        played = [play_piece(target, piece) for piece in pieces_of(target.device, row)]
    except SpecError:
        raise
    except ValidationError as error:
        raise row.wrong("", "; ".join(each["msg"] for each in error.errors())) from error
    except InputError as error:
        raise row.wrong("", str(error)) from error
    return timed_seconds(
        target, row, PlayedKernel(sum(each.seconds for each in played), sum(each.launches for each in played))
    )


def timed_seconds(target: GpuTarget, row: MeasuredKernel, played: PlayedKernel) -> float:
    """With launches, as the row was timed."""
    timing = one_of(row.path, row.record, "timing", TIMING)
    if row.record["impl"].startswith(LAYER_TIMED):
        return played.seconds + (PLUGIN_US if PLUGIN in row.record["impl"] else LAYER_US) * 1e-6
    if row.record["impl"].startswith(CONV_TIMED):
        return played.seconds + CONV_US * 1e-6
    if timing == "wall_clock":
        return played.seconds + HOST_US.get(row.record["op"], HOST_US["gemm"]) * 1e-6
    queued = QUEUED_US.get((row.machine, row.record["dtype"]))
    if queued is not None and row.record["op"] == "gemm":
        return max(queued, played.seconds * 1e6 + QUEUED_GAP_US) * 1e-6
    if queued is not None:
        sent = QUEUED_CALL_US + played.launches * QUEUED_KERNEL_US
        return max(sent, played.seconds * 1e6 + played.launches * QUEUED_GAP_US) * 1e-6
    following = target.device.launch_seconds("following")
    whole = played.seconds + target.device.launch_seconds(TIMING[timing]) + (played.launches - 1) * following
    if timing == "cuda_event" and row.record["op"] == "gemm" and not row.record["impl"].startswith(LIBRARY_TIMED):
        whole += CALL_US * 1e-6
    return whole + SERVING_LAUNCHES.get(row.record["impl"], 0) * following


def family_error(by_machine: Mapping[str, list[float]]) -> float:
    """Mean of the machines' mean errors."""
    return mean(mean(errors) for errors in by_machine.values())


def barred(by_machine: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """The machines that bars are about."""
    return {name: errors for name, errors in by_machine.items() if name not in NO_BARS}


def _bars(errors: dict[str, defaultdict[str, list[float]]]) -> list[Bar]:
    bars = [
        Bar.at_most(f"{family}, mean over machines", limit, family_error(barred(errors[family])))
        for family, limit in FAMILY_BARS.items()
        if family in errors and barred(errors[family])
    ]
    return bars + [
        Bar.at_most(f"{family} on {machine}", limit, mean(errors[family][machine]))
        for (family, machine), limit in GROUP_BARS.items()
        if family in errors and machine in errors[family]
    ]


def _notes(errors: dict[str, defaultdict[str, list[float]]], measured: list[MeasuredKernel]) -> list[str]:
    notes = [
        f"{family}: mean error {family_error(by_machine):.1%} over {len(by_machine)} machines, "
        f"median {median(error for each in by_machine.values() for error in each):.1%}"
        for family, by_machine in sorted(errors.items())
    ]
    host = sum(row.host_bound for row in measured)
    others = sum(not covered(row) for row in measured) - host
    if host:
        notes.append(f"{host} short rows of attention and of block-scaled products left out: they measure the host")
    if others:
        notes.append(f"{others} rows left out: hwsim has no kernel like theirs")
    return notes
