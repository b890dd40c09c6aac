"""From what the engine counted and timed to a RunResult, its answer checked against float64 references.

Two questions, two references. *Right*: from the inputs as they are stored, so that only the errors of the computation
count; these must be ones that rounding explains. *Good*: from the inputs before they were rounded to their format, so
that everything counts that a low precision costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from math import ceil, fsum, prod

import numpy as np

from hwsim import __version__
from hwsim.energy import Entry
from hwsim.engine.attribution import in_cycles
from hwsim.engine.outcome import FEMTOSECONDS, Outcome, StageOutcome
from hwsim.engine.throttle import Throttle
from hwsim.numerics.error import (
    BEFORE,
    STORED,
    NumericError,
    NumericReport,
    input_losses,
    measure,
    output_losses,
    with_losses,
)
from hwsim.numerics.format import Array
from hwsim.program.build import exact_kernel
from hwsim.program.kernel import Kernel, rows_of
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
)
from hwsim.results.bar_table import find_bars
from hwsim.results.energy import energy_by_tensor, throttle_words
from hwsim.spec.fields import as_data
from hwsim.spec.machine import MachineSpec
from hwsim.spec.memory import DramSpec
from hwsim.spec.workload import WorkloadSpec
from hwsim.target import find_target

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
    target = find_target(machine)
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
        warnings.append(throttle_words(throttle))
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

    The report is about the main answer, the last.
    """
    answers = list(kernel.answers())
    errors = [measure(output, reference) for _, output, reference in answers]
    error = NumericError(max(each.max_rel for each in errors), max(each.rms_rel for each in errors))
    _, output, reference = answers[-1]
    report = errors[-1]
    exact = exact_kernel(workload, seed=seed) if workload is not None and _is_rounded(kernel) else None
    if exact is not None and _same_shapes(kernel, exact):
        _, _, reference = list(exact.answers())[-1]
        report = measure(output, reference)
        losses = [
            input_losses(exact.arrays[each], kernel.stored_input(each), kernel.input_format(each))
            for each in kernel.input_names
        ]
        losses.append(output_losses(output, reference, kernel.output_format))
        report = with_losses(report, losses, BEFORE)
    else:
        report = with_losses(report, [output_losses(output, reference, kernel.output_format)], STORED)
    allowed = [explained_error(kernel, name, exact) for name, _, exact in answers]
    verified = all(each.max_rel <= most for each, most in zip(errors, allowed, strict=True))
    return Check(verified, error, max(allowed), report)


def explained_error(kernel: Kernel, name: str, reference: Array) -> float:
    """The largest error of an answer that rounding explains.

    Beside what the kernel says, each result may be off by half the smallest number of its format: that counts where the
    whole answer is small.
    """
    fmt = kernel.answer_format(name)
    largest = float(np.max(np.abs(reference), initial=0.0)) or 1.0
    return kernel.tolerance + (0.0 if fmt.is_integer else fmt.smallest / 2 / largest)


def _same_shapes(kernel: Kernel, exact: Kernel) -> bool:
    """Not so where a size is given in bytes: then other formats have other numbers of elements."""
    return all(exact.arrays[name].shape == kernel.arrays[name].shape for name in kernel.input_names)


def _is_rounded(kernel: Kernel) -> bool:
    """Whether storing the inputs has cost something worth knowing: in fp32 and fp64 it has not.

    Integers without a scale are made as integers: nothing is rounded.
    """
    return not kernel.fmt.is_integer and kernel.fmt.name not in ("fp32", "fp64")
