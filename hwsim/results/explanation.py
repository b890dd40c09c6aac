"""From what the engine counted and timed to a RunResult, its answer checked against float64 references.

Two questions, two references. *Right*: from the inputs as they are stored, so that only the errors of the computation
count; these must be ones that rounding explains. *Good*: from the inputs before they were rounded to their format, so
that everything counts that a low precision costs.

A result in words: why it took so long, as its target tells it; what passes between operations; a summary.

How large a square tile may be before something no longer fits: for marks in plots and for searches.

Capacity: three tiles (of A, B and C) in a cache, 3·tile² elements. Conflicts: rows of a matrix are a fixed
distance apart, so the lines of a tile fall into some sets only; no set may get more lines of A and B than it has ways.
Beyond the tile whose B alone fits its sets, a line of B is gone before the next row of A asks for it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from html import escape
from importlib import import_module
from math import ceil, fsum, isqrt, prod
from typing import Any

import numpy as np

from hwsim import __version__
from hwsim.energy import Entry
from hwsim.engine import FEMTOSECONDS, Outcome, StageOutcome, Throttle, at_voltage_of, in_cycles
from hwsim.memory.counters import CacheCounters
from hwsim.numerics.format import FORMATS, Array, operation_unit
from hwsim.numerics.quantize import (
    BEFORE,
    STORED,
    NumericError,
    NumericReport,
    input_losses,
    measure,
    output_losses,
    with_losses,
)
from hwsim.program.kernel import Kernel, rows_of
from hwsim.program.loop_kernel import exact_kernel
from hwsim.record import NEVER_MARK, ErrorBar
from hwsim.result import (
    Counts,
    EnergyLine,
    Intensity,
    ReplayModel,
    Resolved,
    RunResult,
    StageResult,
    TensorUse,
    TimeBounds,
    WorkDone,
    bytes_moved,
    machine_of,
)
from hwsim.results.bar_table import find_bars
from hwsim.results.metrics import about, energy_by_tensor, shown, throttle_words, write
from hwsim.spec.fields import as_data
from hwsim.spec.machine import CacheSpec, DramSpec, MachineSpec
from hwsim.spec.workload import WorkloadSpec, workload_model
from hwsim.target import Why, find_target
from hwsim.units import data, format_frequency, percent, rate

NO_MATH = "ran without math: the answer was not computed, so it could not be checked"


def assemble(
    machine: MachineSpec,
    workload: WorkloadSpec,
    kernel: Kernel,
    outcome: Outcome,
    *,
    seed: int,
    throttle: Throttle | None = None,
    as_shipped: bool = False,
) -> RunResult:
    """Check the answer, price the energy, and put everything where it can be found.

    `as_shipped`: the machine, before a power limit lowered its clock, is one that comes with hwsim, as it comes.
    """
    machine, target = at_voltage_of(machine, outcome), find_target(machine)
    check = verify(kernel, workload, seed) if kernel.setting.math else None
    verified, error = (check.verified, check.error) if check is not None else (None, None)
    entries = _priced(machine, outcome)
    time_s = outcome.elapsed_fs / FEMTOSECONDS
    energy_j = None if entries is None else fsum(entry.joules for entry in entries)
    memory: dict[str, Counts] = {**outcome.levels, _dram_name(machine): outcome.dram}
    intensity = _intensity(kernel, outcome, memory)
    warnings = [*outcome.warnings]
    schedule = getattr(workload, "schedule", None)
    if getattr(schedule, "cores", None) is not None and getattr(schedule, "parallel", "rows") == "none":
        warnings.append("cores has no effect without parallel=rows: one core did all the work")
    if throttle is not None:
        warnings.append(throttle_words(throttle, (energy_j or 0.0) / time_s))
    if verified is None:
        warnings.append(NO_MATH)
    if check is not None and not check.verified:
        warnings.append(
            f"the answer is wrong: its error is {check.error.max_rel:.2e}, and rounding explains {check.allowed:.2e}"
            f"{_range_words(kernel, check)}"
        )
    return RunResult(
        machine=machine.name,
        workload=workload.name,
        version=__version__,
        seed=seed,
        verified=verified,
        cycles=outcome.cycles,
        time_s=time_s,
        energy_j=energy_j,
        power_w=None if energy_j is None else energy_j / time_s if time_s else 0.0,
        energy=_by_component(entries),
        memory=memory,
        work=_work(kernel, outcome),
        intensity=intensity,
        error=error,
        numeric=None if check is None else check.report,
        attribution=in_cycles(outcome.agents, outcome.clock_hz),
        peak_memory_bytes=kernel.space.peak_bytes + outcome.workspace_bytes,
        warnings=tuple(warnings),
        resolved=Resolved(as_data(machine), as_data(workload)),
        bounds=TimeBounds(
            lower_s=outcome.lower_fs / FEMTOSECONDS,
            upper_s=outcome.upper_fs / FEMTOSECONDS,
            parts={name: fs / FEMTOSECONDS for name, fs in sorted(outcome.parts.items())},
        ),
        bars=find_bars(
            machine,
            target.compared(kernel, outcome),
            time_s,
            energy_j,
            fsum(entry.joules for entry in entries or () if entry.per == "second"),
            target.exact,
            as_shipped=as_shipped,
        ),
        energy_by_cause=_by_cause(entries),
        energy_by_tensor=energy_by_tensor(entries, outcome),
        throttle=throttle,
        formulas=target.formulas(kernel, outcome, memory, intensity),
        tensors=_tensors(kernel, outcome),
        stages=tuple(_stage(stage, outcome.clock_hz) for stage in _joined(outcome.stages)),
        replay=ReplayModel(outcome.model, outcome.accesses, outcome.skipped),
        output=kernel.output if kernel.setting.math else None,
    )


def _range_words(kernel: Kernel, check: Check) -> str:
    """Numbers beyond the range of their format are no fault of the computation."""
    if not check.report.saturated:
        return ""
    share = 100 * check.report.saturated
    return f"; {share:.2g} % of the numbers are beyond the range of {kernel.fmt.name}: a wider format, or a scale"


def _priced(machine: MachineSpec, outcome: Outcome) -> tuple[Entry, ...] | None:
    if machine.energy is None:
        return None
    return outcome.ledger.priced(machine.energy, Fraction(outcome.elapsed_fs, FEMTOSECONDS), machine.name)


def _by_component(entries: tuple[Entry, ...] | None) -> dict[str, float] | None:
    if entries is None:
        return None
    names = sorted({entry.component for entry in entries})
    return {name: fsum(entry.joules for entry in entries if entry.component == name) for name in names}


def _by_cause(entries: tuple[Entry, ...] | None) -> dict[str, dict[str, EnergyLine]] | None:
    if entries is None:
        return None
    causes: dict[str, dict[str, EnergyLine]] = {}
    for entry in sorted(entries, key=lambda e: (e.cause, e.component, e.action)):
        line = EnergyLine(entry.count, entry.joules, entry.price, entry.per, entry.source)
        causes.setdefault(entry.cause, {})[f"{entry.component}.{entry.action}"] = line
    return causes


def _work(kernel: Kernel, outcome: Outcome) -> WorkDone:
    seconds = Fraction(outcome.elapsed_fs, FEMTOSECONDS)
    return WorkDone(
        flops=outcome.flops,
        useful_flops=kernel.useful_flops,
        macs=outcome.macs,
        loads=outcome.loads,
        stores=outcome.stores,
        instructions=asdict(outcome.instructions),
        cores=len(outcome.agents),
        flops_per_s=float(outcome.flops / seconds) if seconds else 0.0,
        peak_flops_per_s=outcome.peak_flops_per_s,
        use=outcome.use,
    )


def _intensity(kernel: Kernel, outcome: Outcome, memory: dict[str, Counts]) -> Intensity:
    """Per element and per byte that the program touches, and per byte between a level and the one above."""
    levels = {name: bytes_moved(counts) for name, counts in memory.items()}
    touched = next(iter(levels.values()))
    elements = float(touched / kernel.fmt.element_bytes)
    return Intensity(
        element=outcome.flops / elements if elements else None,
        byte=outcome.flops / touched if touched else None,
        levels={name: outcome.flops / moved if moved else None for name, moved in levels.items()},
    )


def _tensors(kernel: Kernel, outcome: Outcome) -> dict[str, TensorUse]:
    row_lengths, row_counts = rows_of(kernel)
    found = {}
    for name, traffic in sorted(outcome.tensors.items()):
        view = kernel.tensors.get(name)
        elements = prod(view.shape) if view is not None else 0
        found[name] = TensorUse(
            elements=elements,
            bytes=ceil(elements * view.element_bytes) if view is not None else 0,
            loads=traffic.loads,
            stores=traffic.stores,
            misses=dict(traffic.misses),
            rows=row_counts.get(name),
            row_bytes=row_lengths.get(name),
        )
    return found


def _joined(stages: Sequence[StageOutcome]) -> list[StageOutcome]:
    """Stages of one operation that follow each other, as one."""
    joined: list[StageOutcome] = []
    for stage in stages:
        if joined and joined[-1].name == stage.name:
            joined[-1] += stage
        else:
            joined.append(stage)
    return joined


def _stage(stage: StageOutcome, clock_hz: int) -> StageResult:
    return StageResult(
        name=stage.name,
        cycles=-(-stage.elapsed_fs * clock_hz // FEMTOSECONDS),
        time_s=stage.elapsed_fs / FEMTOSECONDS,
        flops=stage.flops,
        tensors=dict(sorted(stage.tensors.items())),
    )


def _dram_name(machine: MachineSpec) -> str:
    return next((level.name for level in machine.memory if isinstance(level, DramSpec)), "memory")


@dataclass(frozen=True)
class Check:
    """Whether the answer is right, how far it is from what its stored inputs give, and how good it is."""

    verified: bool
    error: NumericError
    allowed: float
    """The largest error that rounding explains."""
    report: NumericReport


def verify(kernel: Kernel, workload: WorkloadSpec | None = None, seed: int = 0) -> Check:
    """Whether the error is one that rounding explains; with several answers, the worst of them counts.

    The report is about the main answer, the last. With a workload, for which a second kernel is made, all that
    the first has beside its results is let go on the way.
    """
    errors, allowed = [], []
    for name, output, reference in kernel.answers():
        errors.append(measure(output, reference))
        allowed.append(explained_error(kernel, name, reference))
    error = NumericError(max(each.max_rel for each in errors), max(each.rms_rel for each in errors))
    verified = all(each.max_rel <= most for each, most in zip(errors, allowed, strict=True))
    if workload is not None and _is_rounded(kernel):
        del reference  # large tensors: one at a time
        report = _before_rounding(kernel, output, exact_kernel(workload, seed=seed))
    else:
        report = with_losses(errors[-1], [output_losses(output, reference, kernel.output_format)], STORED)
    return Check(verified, error, max(allowed), report)


def _before_rounding(kernel: Kernel, output: Array, exact: Kernel) -> NumericReport:
    """The main answer against what the inputs give that were not rounded."""
    if not _same_shapes(kernel, exact):
        *_, (_, _, reference) = kernel.answers()
        return with_losses(measure(output, reference), [output_losses(output, reference, kernel.output_format)], STORED)
    losses = [
        input_losses(exact.arrays[each], kernel.stored_input(each), kernel.input_format(each))
        for each in kernel.input_names
    ]
    kernel.drop_values(but_results=True)
    for _, _, reference in exact.answers():  # noqa: B007 - the main answer is the last
        pass
    exact.drop_values()
    losses.append(output_losses(output, reference, kernel.output_format))
    return with_losses(measure(output, reference), losses, BEFORE)


def explained_error(kernel: Kernel, name: str, reference: Array) -> float:
    """The largest error of an answer that rounding explains.

    Beside what the kernel says, each result may be off by half the smallest number of its format: that counts where the
    whole answer is small.
    """
    fmt = kernel.answer_format(name)
    largest = max(float(np.max(reference, initial=0.0)), -float(np.min(reference, initial=0.0))) or 1.0
    return kernel.tolerance + (0.0 if fmt.is_integer else fmt.smallest / 2 / largest)


def _same_shapes(kernel: Kernel, exact: Kernel) -> bool:
    """Not so where a size is given in bytes: then other formats have other numbers of elements."""
    return all(exact.arrays[name].shape == kernel.arrays[name].shape for name in kernel.input_names)


def _is_rounded(kernel: Kernel) -> bool:
    """Whether storing the inputs has cost something worth knowing: in fp32 and fp64 it has not.

    Integers without a scale are made as integers: nothing is rounded.
    """
    return not kernel.fmt.is_integer and kernel.fmt.name not in ("fp32", "fp64")


def explain(result: RunResult) -> Why:
    """What decided the time of a run, worked out once for each result."""
    found: Why | None = result.__dict__.get("why")
    if found is None:
        runner = workload_model(result.resolved.workload.get("op")).runner
        found = find_target(machine_of(result)).why(result) if runner is None else import_module(runner).explain(result)
        assert found is not None
        result.__dict__["why"] = found  # beside the fields: not part of the result, of JSON, or of what is compared
    return found


@dataclass(frozen=True)
class Edge:
    """A tensor between two stages."""

    tensor: str
    producer: str
    consumer: str
    bytes: int
    """Size of the tensor."""
    loads: int
    """Elements of it that the consumer loaded."""
    misses: dict[str, int]
    """Lines of it that each cache did not have when the consumer asked for them."""


def find_edges(result: RunResult) -> tuple[Edge, ...]:
    """Every tensor that one stage stored and a later one loaded, in the order of the stages."""
    made: dict[str, str] = {}
    edges = []
    for stage in result.stages:
        for name, traffic in stage.tensors.items():
            if traffic.loads and made.get(name, stage.name) != stage.name:
                size = result.tensors[name].bytes
                misses = {level: traffic.misses[level] for level in result.caches if level in traffic.misses}
                edges.append(Edge(name, made[name], stage.name, size, traffic.loads, misses))
            if traffic.stores:
                made[name] = stage.name
    return tuple(edges)


_LEFT = "style='text-align:left'"


def summary_lines(result: RunResult) -> list[str]:
    """What ran, then one line each for time, energy, memory, and what it is bound by."""
    rows = _rows(result)
    width = max(len(name) for name, _ in rows)
    lines = [f"RunResult: {result.workload} on {result.machine}"]
    return lines + [f"  {name:<{width}}  {text}" for name, text in rows]


def summary_html(result: RunResult) -> str:
    """The same as a small table."""
    head = f"<b>{escape(result.workload)}</b> on <b>{escape(result.machine)}</b>"
    rows = "".join(
        f"<tr><th {_LEFT}>{escape(name)}</th><td {_LEFT}>{escape(text)}</td></tr>" for name, text in _rows(result)
    )
    return f"<div>{head}<table>{rows}</table></div>"


def verdict(result: RunResult) -> str:
    """Whether the answer is right, and how far off it is; the rounding of the inputs counted in."""
    if result.error is None:
        return "not verified: ran without math"
    if result.verified is None:
        return f"computed in part: rms {result.error.rms_rel:.1e} off float64"
    if not result.verified:
        return f"WRONG ANSWER: {_sizes(result.error)} vs NumPy float64{_range_hint(result)}"
    if result.numeric is None or result.numeric.inputs != BEFORE:
        return f"verified: {_sizes(result.error)} vs NumPy float64"
    return f"verified: {_sizes(result.numeric)} vs NumPy float64, input rounding included"


def _sizes(error: NumericError | NumericReport) -> str:
    return f"max rel err {error.max_rel:.1e}, rms {error.rms_rel:.1e}"


def _range_hint(result: RunResult) -> str:
    """Whole numbers without a scale wrap around where a result needs more bits than they have."""
    workload = result.resolved.get("workload", {})
    fmt = FORMATS.get(str(workload.get("precision")))
    if fmt is None or not fmt.is_integer or workload.get("scale") not in (None, "none"):
        return ""
    return f"; results beyond the range of {fmt.name} wrap around: give it a scale, scale=tensor"


def accuracy(result: RunResult) -> str:
    """What the error comes from, where inputs were rounded; nothing where they were not."""
    report = result.numeric
    if report is None or result.error is None or report.inputs != BEFORE:
        return ""
    lost = [(report.saturated, "saturated"), (report.flushed, "flushed to zero")]
    words = "".join(f", {100 * share:.2g} % {what}" for share, what in lost if share)
    return f"of it the arithmetic alone: {_sizes(result.error)}; signal to noise {report.snr_db:.1f} dB{words}"


def peak_words(result: RunResult) -> str:
    """``2.1 GFLOP/s, 6.6 % of the peak of 1 core (32 GFLOP/s)``; nothing where nothing is computed.

    The peak is that at full clock; where a power limit lowered the clock, what it left is said as well.
    """
    if not result.work.flops:
        return ""
    speed, unit = result.work.flops_per_s, operation_unit(result.resolved.workload["precision"])
    peak, left = result.peak_flops_per_s, result.work.peak_flops_per_s
    words = f"{rate(speed, unit)}, {percent(speed, peak)} of the peak of {explain(result).peak} ({rate(peak, unit)}"
    if result.throttle is None:
        return words + ")"
    clock = format_frequency(result.throttle.clock_hz)
    limited = f"{percent(speed, left)} of the {rate(left, unit)} at the {clock} that the power limit leaves"
    return f"{words} at full clock), {limited}"


def wider_words(result: RunResult) -> str:
    """That results are stored in more bits than the format of the inputs, as sums of int8 are; nothing where not."""
    workload = result.resolved.workload
    fmt = FORMATS.get(str(workload["precision"]))
    stored = {name: each for name, each in result.tensors.items() if each.stores and not each.loads and each.elements}
    whole = sum(each.bytes for each in stored.values())
    wide = {name: 8 * each.bytes // each.elements for name, each in stored.items() if _MANY * each.bytes >= whole}
    if fmt is None or not wide or max(wide.values()) <= 8 * fmt.element_bytes:
        return ""
    bits = max(wide.values())
    names = [name for name in wide if wide[name] == bits]
    unscaled = fmt.is_integer and workload.get("scale") in (None, "none")
    stored_as = f"as {fmt.sum_name}" if unscaled and not workload.get("accumulate") else f"in {bits} bits"
    times = f"{float(bits / (8 * fmt.element_bytes)):g} times as wide as {fmt.name}"
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} stored {stored_as}, {times}"


def about_numbers(results: Sequence[RunResult]) -> list[str]:
    """What a table of runs does not show: a clock that was lowered, results that are wider than their format says, and
    formats that stand for others."""
    slowed = dict.fromkeys(
        f"{each.machine} to {percent(each.throttle.share, 1)}" for each in results if each.throttle is not None
    )
    limited = [f"the power limit lowered the clock of {', '.join(slowed)}; of peak is of that at full clock"]
    wider = [words for each in results if (words := wider_words(each))]
    stands = [words for each in results if (words := _stand_in(each))]
    return list(dict.fromkeys([*(limited if slowed else []), *wider, *stands]))


def _stand_in(result: RunResult) -> str:
    """That a machine has no such format, and what it has."""
    precision = result.resolved.workload["precision"]
    for unit in result.resolved.machine["compute"]:
        form = (unit.get("formats") or {}).get(precision) if isinstance(precision, str) else None
        if isinstance(form, Mapping) and form.get("stands_for"):
            return f"{result.machine} computes in {form['stands_for']}: {precision} stands in for them"
    return ""


_MANY = 4
"""Tensors of fewer bytes than this part of all results are not worth a word."""


def bar_of(metric: str, result: RunResult) -> ErrorBar | None:
    """The error bar of a metric; None where it has none, as exact counts do."""
    return {"time_s": result.time_bar, "energy_j": result.energy_bar, "power_w": result.power_bar}.get(metric)


def with_bar(metric: str, result: RunResult) -> str:
    """A metric with its error bar where it has one: ``4.24 ms ± 9 %``; with a mark where it was never compared."""
    text, bar = write(metric, about(metric).of(result)), bar_of(metric, result)
    return text if bar is None else f"{text} {bar.words if bar.is_known else NEVER_MARK}"


def bar_sources(result: RunResult) -> str:
    """What the bars of time and energy rest on, once where that is the same."""
    energy = result.energy_bar
    if energy is None or energy.source == result.time.source:
        return result.time.source
    return f"time: {result.time.source}; energy: {energy.source}"


def _barred(metric: str, result: RunResult) -> str:
    """A metric with its error bar where it has one, and without a mark where it was never compared."""
    bar = bar_of(metric, result)
    return with_bar(metric, result) if bar is None or bar.is_known else write(metric, about(metric).of(result))


def _rows(result: RunResult) -> list[tuple[str, str]]:
    rows = [("answer", verdict(result)), *([("accuracy", accuracy(result))] if accuracy(result) else [])]
    for metric in shown("repr"):
        value = metric.of(result)
        if value is not None:
            rows.append((metric.title, ", ".join([_barred(metric.name, result), *_beside(metric.name, result)])))
    rows.append(("memory", ", ".join(_level(name, result) for name in result.memory)))
    rows += [("bars", bar_sources(result)), ("exact", result.bars.exact)]
    rows.append(("why", explain(result).bound.words))
    return rows + [("warning", text) for text in result.warnings]


def _beside(metric: str, result: RunResult) -> list[str]:
    """What is said in one breath with a metric."""
    if metric == "time_s":
        return [f"{result.cycles:,} cycles", *([words] if (words := peak_words(result)) else [])]
    return [f"{_barred('power_w', result)} on average"] if metric == "energy_j" and result.power_w is not None else []


def _level(name: str, result: RunResult) -> str:
    counts = result.memory[name]
    if isinstance(counts, CacheCounters):
        return f"{name} {percent(counts.hits, counts.accesses)} hits"
    return f"{name} {data(bytes_moved(counts))}"


CAPACITY, CONFLICT, ALONE = "capacity", "conflict", "alone"


@dataclass(frozen=True)
class Limit:
    """The largest tile that fits a level, and by which rule."""

    level: str
    kind: str
    tile: int

    @property
    def words(self) -> str:
        if self.kind == CAPACITY:
            return f"3·tile² elements fit {self.level}"
        return f"{'tiles of A and B fit' if self.kind == CONFLICT else 'a tile of B fits'} the sets of {self.level}"


def tile_limits(result: RunResult) -> tuple[Limit, ...]:
    """Limits of a tiled matrix product in each cache, smaller than the matrix itself; none for anything else."""
    workload = result.resolved.workload
    schedule = workload.get("schedule", {})
    if workload.get("op") != "matmul" or not schedule.get("tile"):
        return ()
    facts = result.tensors.get("B")
    if facts is None or not facts.elements:
        return ()
    element = max(1, facts.bytes // facts.elements)
    most = max(size for size in _extents(workload) if size)
    found = []
    for cache in machine_of(result).caches:
        if cache.infinite:
            continue
        found.append(Limit(cache.name, CAPACITY, capacity_tile(cache, element)))
        if not schedule.get("packed") and facts.row_bytes:
            for kind, matrices in ((CONFLICT, 2), (ALONE, 1)):
                found.append(Limit(cache.name, kind, conflict_tile(cache, facts.row_bytes, element, most, matrices)))
    return tuple(limit for limit in found if limit.tile < most)


def capacity_tile(cache: CacheSpec, element_bytes: int) -> int:
    """The largest tile of which three fit: 3·tile² elements."""
    return isqrt(cache.size // (3 * element_bytes))


def conflict_tile(cache: CacheSpec, row_bytes: int, element_bytes: int, most: int, matrices: int = 2) -> int:
    """The largest tile such that no set is asked for more lines of A and B (or of B alone) than it has ways."""
    low, high = 1, most
    while low < high:
        middle = (low + high + 1) // 2
        if matrices * _crowd(cache, row_bytes, element_bytes, middle) <= cache.way_count:
            low = middle
        else:
            high = middle - 1
    return low


def _crowd(cache: CacheSpec, row_bytes: int, element_bytes: int, tile: int) -> int:
    """Lines of a tile in the set that gets the most of them."""
    rows = np.arange(tile, dtype=np.int64) * row_bytes
    columns = np.arange(-(-tile * element_bytes // cache.line), dtype=np.int64) * cache.line
    lines = np.unique((rows[:, None] + columns[None, :]) // cache.line)
    return int(np.bincount(lines % cache.set_count).max())


def _extents(workload: Mapping[str, Any]) -> list[int]:
    sizes = workload.get("sizes", {})
    return [sizes.get("n") or 0, sizes.get("m") or 0, sizes.get("k") or 0]
