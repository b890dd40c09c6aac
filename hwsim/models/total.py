"""The results of all kernels of a model as one result: counters, time, energy and attribution add up.

Each kernel counts as often as it runs, and a slice as often as it fits into the whole. What a kernel took to be started
alone is replaced by what it takes as one of many.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields
from math import ceil
from typing import TYPE_CHECKING, Any

from hwsim import __version__
from hwsim.engine import Attribution
from hwsim.memory.counters import DramCounters, ScratchpadCounters
from hwsim.models.count import active_parameters, kept_per_token, macs, parameters
from hwsim.models.memory import tokens_at_once
from hwsim.models.price import HOST, SPAWN, KernelPrice, OperationCost, PassCost, starts_of
from hwsim.numerics.quantize import NumericError
from hwsim.result import (
    Counts,
    EnergyLine,
    Intensity,
    ReplayModel,
    Resolved,
    RunResult,
    StageResult,
    TimeBounds,
    WorkDone,
    bytes_moved,
    machine_of,
)
from hwsim.results.bar_table import find_bars, is_shipped
from hwsim.results.explanation import NO_MATH
from hwsim.results.explanation import explain as explain_kernel
from hwsim.spec.fields import as_data
from hwsim.target import ARROW, ComparedPart, find_target
from hwsim.units import data

if TYPE_CHECKING:
    from hwsim.models.accuracy import Accuracy
    from hwsim.models.run import ModelRun

MODEL = "model"
"""The key under which a result of a model has what only models have."""


@dataclass(frozen=True)
class KernelShare:
    """A kernel of the whole run: its price, how often it runs, and what it does for whom."""

    price: KernelPrice
    count: float
    operation: OperationCost

    @property
    def factor(self) -> float:
        """Of what its own run counted."""
        return self.count * self.price.scale

    @property
    def seconds(self) -> float:
        return self.count * (self.price.seconds + self.price.starts * self.price.each_s)

    @property
    def joules(self) -> float:
        return self.count * (self.price.joules or 0.0)


def shares(found: ModelRun) -> Iterator[KernelShare]:
    for phase in found.phases:
        for operation in phase.step.operations:
            for _, price, count in operation.kernels:
                yield KernelShare(price, count * phase.times, operation)


def total_result(found: ModelRun, accuracy: Accuracy | None = None) -> RunResult:
    """One result for all phases."""
    all_of = list(shares(found))
    time_s = found.seconds
    machine, model = found.machine, found.model
    known = all(share.price.joules is not None for share in all_of)
    energy, causes = _energy(found, all_of) if known else (None, None)
    energy_j = None if energy is None else sum(energy.values())
    memory = _memory(all_of)
    flops = round(sum(share.factor * share.price.result.work.flops for share in all_of))
    attribution = _attribution(found, all_of)
    cycles = max((sum(sum(group.values()) for group in parts.values()) for parts in attribution.values()), default=1)
    return RunResult(
        machine=machine.name,
        workload=model.name,
        version=__version__,
        seed=model.seed,
        verified=None,
        cycles=cycles,
        time_s=time_s,
        energy_j=energy_j,
        power_w=None if energy_j is None else energy_j / time_s,
        energy=energy,
        memory=memory,
        work=_work(found, all_of, flops, time_s, energy_j, accuracy),
        intensity=_intensity(memory, flops, found),
        error=None if accuracy is None else NumericError(accuracy.report.max_rel, accuracy.report.rms_rel),
        attribution=attribution,
        peak_memory_bytes=found.memory.total,
        warnings=tuple(_warnings(found, accuracy)),
        resolved=Resolved(as_data(machine), as_data(model)),
        bounds=_bounds(all_of),
        bars=find_bars(machine, compared_phases(found), time_s, energy_j, 0.0, EXACT, as_shipped=is_shipped(machine)),
        energy_by_cause=causes,
        energy_by_tensor=None if energy is None else {},
        throttle=None,
        formulas=(),
        tensors={},
        stages=tuple(_stages(found)),
        replay=ReplayModel(MODEL, 0, 0),
        numeric=None if accuracy is None else accuracy.report,
    )


EXACT = "operations, parameters and bytes that are kept"
PHASES = {"inference": "inference with whole models", "training": "training of whole models"}


def compared_phases(found: ModelRun) -> tuple[ComparedPart, ...]:
    """Its phases as measurements of whole models know them; none where nobody measured any on such machines."""
    begin = find_target(found.machine).models
    named = [("training" if each.step.phase.name == "train" else "inference", each) for each in found.phases]
    return tuple(
        ComparedPart(f"{begin}_{name}", PHASES[name], each.times * each.step.seconds) for name, each in named if begin
    )


def _energy(found: ModelRun, all_of: list[KernelShare]) -> tuple[dict[str, float], dict[str, dict[str, EnergyLine]]]:
    """By component, and by cause and action; what the machine draws while it waits for the host is added."""
    energy: defaultdict[str, float] = defaultdict(float)
    causes: dict[str, dict[str, EnergyLine]] = {}
    for share in all_of:
        result = share.price.result
        whole = result.energy_j or 1.0
        part = share.joules / whole if whole else 0.0
        for name, joules in (result.energy or {}).items():
            energy[name] += part * joules
        for cause, lines in (result.energy_by_cause or {}).items():
            mine = causes.setdefault(cause, {})
            for action, line in lines.items():
                before = mine.get(action)
                count = round(share.factor * line.count) + (before.count if before else 0)
                joules = part * line.joules + (before.joules if before else 0.0)
                mine[action] = EnergyLine(count, joules, line.price, line.per, line.source)
    wanted = sum(each.times * (each.step.joules or 0.0) for each in found.phases)
    waited = wanted - sum(energy.values())
    if energy and waited > 0:
        largest = max(energy, key=lambda name: energy[name])
        energy[largest] += waited
    return dict(sorted(energy.items())), causes


def _scaled(counts: Counts, factor: float) -> Counts:
    values = {each.name: round(factor * getattr(counts, each.name)) for each in fields(counts)}
    if isinstance(counts, ScratchpadCounters):
        values["peak_bytes"] = counts.peak_bytes
    return type(counts)(**values)


def _memory(all_of: list[KernelShare]) -> dict[str, Counts]:
    found: dict[str, Counts] = {}
    for share in all_of:
        for name, counts in share.price.result.memory.items():
            more = _scaled(counts, share.factor)
            before = found.get(name)
            found[name] = more if before is None else before + more  # type: ignore[operator]
            if isinstance(more, ScratchpadCounters) and isinstance(before, ScratchpadCounters):
                peak = max(more.peak_bytes, before.peak_bytes)
                found[name] = _with_peak(found[name], peak)
    return dict(sorted(found.items(), key=lambda item: isinstance(item[1], DramCounters)))


def _with_peak(counts: Counts, peak: int) -> Counts:
    values = {each.name: getattr(counts, each.name) for each in fields(counts)} | {"peak_bytes": peak}
    return type(counts)(**values)


def _attribution(found: ModelRun, all_of: list[KernelShare]) -> Attribution:
    """Cycles of each agent; starting a kernel counts as it does for one of many."""
    target = find_target(found.machine)
    sums: dict[str, dict[str, defaultdict[str, float]]] = {}
    for share in all_of:
        result = share.price.result
        starts = starts_of(target, result)
        kept = starts.kernels * starts.each_s / starts.seconds if starts.seconds else 1.0
        for agent, parts in result.attribution.items():
            own = sums.setdefault(agent, {"busy": defaultdict(float), "waiting": defaultdict(float)})
            for kind, group in parts.items():
                for name, cycles in group.items():
                    factor = share.count * kept if name == starts.part else share.factor
                    own[kind][name] += factor * cycles
    return {
        agent: {kind: {name: ceil(cycles) for name, cycles in group.items()} for kind, group in parts.items()}
        for agent, parts in sums.items()
    }


def _bounds(all_of: list[KernelShare]) -> TimeBounds:
    parts: defaultdict[str, float] = defaultdict(float)
    lower = upper = 0.0
    for share in all_of:
        bounds = share.price.result.bounds
        lower += share.factor * bounds.lower_s
        upper += share.factor * bounds.upper_s
        for name, seconds in bounds.parts.items():
            parts[name] += share.factor * seconds
    return TimeBounds(min(lower, upper), upper, dict(sorted(parts.items())))


def _work(
    found: ModelRun,
    all_of: list[KernelShare],
    flops: int,
    time_s: float,
    energy_j: float | None,
    accuracy: Accuracy | None,
) -> WorkDone:
    instructions: defaultdict[str, int] = defaultdict(int)
    for share in all_of:
        for name, count in share.price.result.work.instructions.items():
            instructions[name] += round(share.factor * count)
    results = [share.price.result.work for share in all_of]
    peak = sum(share.seconds * share.price.result.peak_flops_per_s for share in all_of)
    busy = sum(share.seconds for share in all_of)
    return WorkDone(
        flops=flops,
        useful_flops=round(sum(share.factor * share.price.result.work.useful_flops for share in all_of)),
        macs=round(sum(share.factor * share.price.result.work.macs for share in all_of)),
        loads=round(sum(share.factor * share.price.result.work.loads for share in all_of)),
        stores=round(sum(share.factor * share.price.result.work.stores for share in all_of)),
        instructions=dict(instructions),
        cores=max(work.cores for work in results),
        flops_per_s=flops / time_s,
        peak_flops_per_s=peak / busy if busy else 0.0,
        use={MODEL: {**_description(found, time_s, energy_j), "computed": accuracy.words if accuracy else ""}},
    )


def _intensity(memory: dict[str, Counts], flops: int, found: ModelRun) -> Intensity:
    levels = {name: flops / bytes_moved(counts) if bytes_moved(counts) else None for name, counts in memory.items()}
    touched = bytes_moved(next(iter(memory.values()))) if memory else 0
    elements = touched / max(1e-9, found.numbers.activation_bytes(1))
    return Intensity(flops / elements if elements else None, flops / touched if touched else None, levels)


def _stages(found: ModelRun) -> Iterator[StageResult]:
    """Operations of the model, each phase for itself where there are several."""
    clock = found.machine.clock_hz(found.machine.compute[0].clock)
    for (phase, block, name), (seconds, flops) in _by_operation(found).items():
        several = len({each.step.phase.name for each in found.phases}) > 1
        shown = f"{phase}: {block}.{name}" if several else f"{block}.{name}"
        yield StageResult(shown, ceil(seconds * clock), seconds, flops, {})


def _by_operation(found: ModelRun) -> dict[tuple[str, str, str], tuple[float, int]]:
    sums: dict[tuple[str, str, str], tuple[float, int]] = {}
    for each in found.phases:
        for operation in each.step.operations:
            key = (_part(each.step, operation), operation.block, operation.name)
            flops = sum(count * price.scale * price.result.work.flops for _, price, count in operation.kernels)
            seconds, before = sums.get(key, (0.0, 0))
            sums[key] = seconds + each.times * operation.seconds, before + round(each.times * flops)
    return sums


def _part(step: PassCost, operation: OperationCost) -> str:
    return operation.part if step.phase.name == "train" else step.phase.name


def _description(found: ModelRun, time_s: float, energy_j: float | None) -> dict[str, Any]:
    """What only a model has, as plain data: screens, pages and JSON show it."""
    graph, numbers, use = found.graph, found.numbers, found.model.use
    first = found.phases[0].step.phase
    described = {
        "parameters": parameters(graph),
        "active_parameters": active_parameters(graph),
        "macs": macs(graph, first),
        "kv_bytes_per_token": numbers.kv_bytes(kept_per_token(graph)),
        "weights": numbers.weights,
        "activations": numbers.activations,
        "kv": numbers.kv,
        "kernels": found.kernels,
        "prompt": use.prompt,
        "generate": use.generate,
        "batch": use.batch,
        "allocator": use.allocator,
        "memory": found.memory.to_dict(),
        "tokens_at_once": tokens_at_once(first, found.kernels),
        "fit": found.fit.to_dict(),
        "phases": [_phase(found, name) for name in dict.fromkeys(each.step.phase.name for each in found.phases)],
        "metrics": {},
        "parts": dict(explain_kernel(next(shares(found)).price.result).parts),
        "notes": list(dict.fromkeys(note for each in found.phases for note in each.step.notes)),
    }
    described["metrics"] = _metrics(found, time_s, energy_j)
    return described


def _metrics(found: ModelRun, time_s: float, energy_j: float | None) -> dict[str, float]:
    """Numbers that people compare models by."""
    use = found.model.use
    metrics: dict[str, float] = {}
    read, made = found.phase("prefill"), found.phase("decode")
    if read:
        metrics["first_token_s"] = read[0].step.seconds
        metrics["prompt_tokens_per_s"] = use.batch * use.prompt / read[0].step.seconds
    if made:
        steps = sum(each.times for each in made)
        seconds = sum(each.times * each.step.seconds for each in made)
        metrics["next_token_s"] = seconds / steps
        metrics["tokens_per_s"] = use.batch * steps / seconds
        joules = [each.step.joules for each in made]
        if None not in joules:
            spent = sum(each.times * (each.step.joules or 0.0) for each in made)
            metrics["joules_per_token"] = spent / (use.batch * steps)
    if not read and not made:
        phase = found.phases[0].step.phase
        metrics["sequences_per_s"] = phase.batch / time_s
        if found.graph.takes_tokens:
            metrics["tokens_per_s"] = phase.batch * phase.tokens / time_s
        if energy_j is not None:
            metrics["joules_per_sequence"] = energy_j / phase.batch
    return metrics


def _phase(found: ModelRun, name: str) -> dict[str, Any]:
    """All steps of one phase together."""
    own = found.phase(name)
    times = sum(each.times for each in own)
    seconds = sum(each.times * each.step.seconds for each in own)
    joules = None if any(each.step.joules is None for each in own) else sum(
        each.times * (each.step.joules or 0.0) for each in own
    )  # fmt: skip
    operations: dict[tuple[str, str, str], dict[str, Any]] = {}
    bounds: defaultdict[str, float] = defaultdict(float)
    for each in own:
        for operation in each.step.operations:
            key = (operation.block, operation.name, operation.part)
            row = operations.setdefault(key, {
                "block": operation.block, "name": operation.name, "op": operation.word, "part": operation.part,
                "repeat": operation.repeat, "seconds": 0.0, "joules": 0.0, "kernels": operation.starts, "bound": "",
            })  # fmt: skip
            row["seconds"] += each.times * operation.seconds
            row["joules"] += each.times * (operation.joules or 0.0)
            row["bound"] = operation_bound(operation, bounds, each.times)
        waited = each.step.seconds - sum(operation.seconds for operation in each.step.operations)
        if waited > _ROUNDING * each.step.seconds:
            bounds[HOST] += each.times * waited
    return {
        "name": name,
        "steps": times,
        "seconds": seconds,
        "joules": joules,
        "kernels": own[0].step.starts,
        "host_seconds": own[0].step.host_seconds,
        "parts": own[0].step.parts,
        "tokens": own[0].step.phase.tokens,
        "context": own[len(own) // 2].step.phase.context,
        "bounds": dict(sorted(bounds.items(), key=lambda item: -item[1])),
        "operations": list(operations.values()),
    }


_ROUNDING = 1e-9
"""What is left of a step after its operations is nobody's time if it is a smaller share than this."""


def operation_bound(operation: OperationCost, bounds: defaultdict[str, float], times: float) -> str:
    """What its longest kernel is bound by; seconds of all its kernels are put down to what bounds each."""
    longest, word = -1.0, ""
    for _, price, count in operation.kernels:
        seconds = count * price.seconds
        starting = count * price.starts * price.each_s
        started = STARTING_CORES if price.result.bounds.parts.get(SPAWN) else "starting kernels"
        short = started if price.starts and starting > seconds else kernel_bound(price.result)
        bounds[short] += times * (seconds + starting)
        if seconds + starting > longest:
            longest, word = seconds + starting, short
    return word


STARTING_CORES = "starting cores"
ARITHMETIC, OVERHEAD = "arithmetic", "overhead inside kernels"
LEAST_USEFUL = 0.25
"""Share of the work of multiply-add units below which it is not the multiply-adds of the model that take the time."""
NEARLY = 0.75
"""A level or a unit that would alone take so much of the longest part is what the kernel is bound by."""
PRODUCTS = frozenset({"math", "products and softmax", "fma", "array"})
UNITS = PRODUCTS | {"vector"}
"""Parts of a run that are multiply-adds, by the names that machines give them."""


def kernel_bound(result: RunResult) -> str:
    """What most cycles of a kernel went to; where that is no part of the machine but the end of a kernel or the like,
    the level or unit that would take about as long alone.

    Units may be busy with little: a tile of 64 queries computes one token, weights are unpacked, steps of a block wait
    for each other. Where the multiply-adds that were asked for would take but a small share of that time at the full
    rate, the kernel is bound by such overhead and not by arithmetic.
    """
    bound, parts = explain_kernel(result).bound, result.bounds.parts
    part = bound.part
    if part not in UNITS and part.partition(ARROW)[0] not in result.memory:
        skipped = starts_of(find_target(machine_of(result)), result).part
        real = {
            name: alone for name, alone in parts.items() if name in UNITS or name.partition(ARROW)[0] in result.memory
        }
        longest = max((alone for name, alone in parts.items() if name != skipped), default=0.0)
        part = max(real, key=lambda name: real[name], default="")
        if not part or (real[part] < NEARLY * longest and bound.part != SPAWN):
            return bound.short if bound.part != skipped else "starting kernels"
    if part not in UNITS:
        return f"bandwidth of {part.partition(ARROW)[0]}"
    needed_s = result.work.useful_flops / max(1.0, result.work.peak_flops_per_s)
    return OVERHEAD if part in PRODUCTS and needed_s < LEAST_USEFUL * parts.get(part, 0.0) else ARITHMETIC


def _warnings(found: ModelRun, accuracy: Accuracy | None) -> Iterator[str]:
    if not found.fit.fits:
        assert found.fit.has is not None
        yield (
            f"{found.model.name} needs {data(found.memory.total)}, and {found.machine.name} has "
            f"{data(found.fit.has)}: the times are those of a machine with more memory"
        )
    if found.swapped:
        yield found.swapped
    limit, use = found.model.context, found.model.use
    longest = use.prompt + (use.generate if use.phase == "all" else 0)
    if limit is not None and longest > limit and found.graph.is_generative:
        yield f"{found.model.name} was made for texts of up to {limit:,} tokens"
    yield from dict.fromkeys(note for each in found.phases for note in each.step.notes)
    if any(share.price.scale != 1 for share in shares(found)):
        yield "large kernels were simulated on a slice, and scaled to the whole"
    yield NO_MATH if accuracy is None else f"the numeric error is that of {accuracy.words}"
