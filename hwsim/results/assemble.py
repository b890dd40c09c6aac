"""From what the engine counted and timed to a RunResult."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from fractions import Fraction
from math import ceil, fsum, prod
from typing import Any

from hwsim import __version__
from hwsim.energy import Entry
from hwsim.engine.outcome import FEMTOSECONDS, Outcome, StageOutcome
from hwsim.engine.throttle import Throttle
from hwsim.hardware.core import CpuCore
from hwsim.kernels.kernel import Kernel
from hwsim.results.accelerator_work import accelerator_work
from hwsim.results.attribution import in_cycles
from hwsim.results.energy_report import energy_by_tensor, throttle_words
from hwsim.results.formula import compare_formulas, rows_of
from hwsim.results.result import Counts, RunResult
from hwsim.results.verify import Check, verify
from hwsim.spec.machine import MachineSpec
from hwsim.spec.memory import DramSpec
from hwsim.spec.render import as_data
from hwsim.spec.workload import WorkloadSpec

NO_MATH = "ran without math: the answer was not computed, so it could not be checked"


def assemble(
    machine: MachineSpec,
    workload: WorkloadSpec,
    kernel: Kernel,
    outcome: Outcome,
    *,
    seed: int,
    throttle: Throttle | None = None,
) -> RunResult:
    """Check the answer, price the energy, and put everything where it can be found."""
    check = verify(kernel, workload, seed) if kernel.setting.math else None
    verified, error = (check.verified, check.error) if check is not None else (None, None)
    entries = _priced(machine, outcome)
    time_s = outcome.elapsed_fs / FEMTOSECONDS
    energy_j = None if entries is None else fsum(entry.joules for entry in entries)
    memory: dict[str, Counts] = {**outcome.levels, _dram_name(machine): outcome.dram}
    intensity = _intensity(kernel, outcome, memory)
    on_core = outcome.array is None and outcome.gpu is None
    warnings = [*kernel.warnings()] if on_core else []
    schedule = getattr(workload, "schedule", None)
    if getattr(schedule, "cores", None) is not None and getattr(schedule, "parallel", "rows") == "none":
        warnings.append("cores has no effect without parallel=rows: one core did all the work")
    if outcome.spilled:
        warnings.append(
            f"{kernel.registers_needed} values in {kernel.registers_needed - outcome.spilled} registers: "
            f"{outcome.spilled} are loaded and stored again in every iteration of the innermost loop"
        )
    if throttle is not None:
        warnings.append(throttle_words(throttle))
    if verified is None:
        warnings.append(NO_MATH)
    if check is not None and not check.verified:
        warnings.append(
            f"the answer is wrong: its error is {check.error.max_rel:.2e}, and rounding explains {check.allowed:.2e}"
            f"{_range_words(kernel, check)}"
        )
    tensors = _tensors(kernel, outcome)
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
        work=_work(machine, kernel, outcome),
        intensity=intensity,
        error=error,
        numeric=None if check is None else check.report,
        attribution=in_cycles(outcome.agents, outcome.clock_hz),
        peak_memory_bytes=kernel.space.peak_bytes,
        warnings=tuple(warnings),
        resolved={"machine": as_data(machine), "workload": as_data(workload)},
        bounds={
            "lower_s": outcome.lower_fs / FEMTOSECONDS,
            "upper_s": outcome.upper_fs / FEMTOSECONDS,
            "parts": {name: fs / FEMTOSECONDS for name, fs in sorted(outcome.parts.items())},
        },
        energy_by_cause=_by_cause(entries),
        energy_by_tensor=energy_by_tensor(entries, outcome, machine),
        throttle=None if throttle is None else asdict(throttle),
        formulas=() if not on_core else compare_formulas(machine, kernel, outcome, memory, intensity),
        tensors=tensors,
        stages=tuple(_stage(stage, outcome.clock_hz) for stage in _joined(outcome.stages)),
        replay={
            "model": outcome.model,
            "accesses": outcome.accesses,
            "skipped": outcome.skipped,
        },
        output=kernel.output if kernel.setting.math else None,
    )


def _range_words(kernel: Kernel, check: Check | None) -> str:
    """Numbers beyond the range of their format are no fault of the computation."""
    if check is None or not check.report.saturated:
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


def _by_cause(entries: tuple[Entry, ...] | None) -> dict[str, dict[str, dict[str, Any]]] | None:
    if entries is None:
        return None
    causes: dict[str, dict[str, dict[str, Any]]] = {}
    for entry in sorted(entries, key=lambda e: (e.cause, e.component, e.action)):
        line = {
            "count": entry.count, "joules": entry.joules, "price": entry.price, "per": entry.per, "source": entry.source
        }  # fmt: skip
        causes.setdefault(entry.cause, {})[f"{entry.component}.{entry.action}"] = line
    return causes


def _work(machine: MachineSpec, kernel: Kernel, outcome: Outcome) -> dict[str, Any]:
    if outcome.array is not None or outcome.gpu is not None:
        return accelerator_work(kernel, outcome)
    unit = machine.cpu
    core = CpuCore(machine, unit)
    cores = len(outcome.agents)
    peak = float(core.peak_flops_per_cycle(kernel.compute_fmt) * core.clock_hz * cores)
    seconds = Fraction(outcome.elapsed_fs, FEMTOSECONDS)
    return {
        "flops": outcome.flops,
        "useful_flops": kernel.useful_flops,
        "macs": outcome.macs,
        "loads": outcome.loads,
        "stores": outcome.stores,
        "instructions": asdict(outcome.instructions),
        "cores": cores,
        "flops_per_s": float(outcome.flops / seconds) if seconds else 0.0,
        "peak_flops_per_s": peak,
    }


def _intensity(kernel: Kernel, outcome: Outcome, memory: dict[str, Counts]) -> dict[str, Any]:
    """Per element and per byte that the program touches, and per byte between a level and the one above."""
    first = next(iter(memory.values()))
    touched = first.bytes_read + first.bytes_written
    levels = {name: counts.bytes_read + counts.bytes_written for name, counts in memory.items()}
    elements = float(touched / kernel.fmt.element_bytes)
    return {
        "element": outcome.flops / elements if elements else None,
        "byte": outcome.flops / touched if touched else None,
        "levels": {name: outcome.flops / moved if moved else None for name, moved in levels.items()},
    }


def _tensors(kernel: Kernel, outcome: Outcome) -> dict[str, dict[str, Any]]:
    row_lengths, row_counts = rows_of(kernel)
    found = {}
    for name, traffic in sorted(outcome.tensors.items()):
        view = kernel.tensors.get(name)
        elements = prod(view.shape) if view is not None else 0
        rows, row_bytes = (row_counts.get(name), row_lengths.get(name))
        found[name] = {
            "elements": elements,
            "bytes": ceil(elements * view.element_bytes) if view is not None else 0,
            "loads": traffic.loads,
            "stores": traffic.stores,
            "misses": dict(traffic.misses),
            "rows": rows,
            "row_bytes": row_bytes,
        }
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


def _stage(stage: StageOutcome, clock_hz: int) -> dict[str, Any]:
    return {
        "name": stage.name,
        "cycles": -(-stage.elapsed_fs * clock_hz // FEMTOSECONDS),
        "time_s": stage.elapsed_fs / FEMTOSECONDS,
        "flops": stage.flops,
        "tensors": {name: asdict(traffic) for name, traffic in sorted(stage.tensors.items())},
    }


def _dram_name(machine: MachineSpec) -> str:
    return next((level.name for level in machine.memory if isinstance(level, DramSpec)), "memory")
