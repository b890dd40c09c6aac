"""`hwsim.run`: one call from names to a result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hwsim.catalog import load_machine, load_workload
from hwsim.engine.engine import simulate
from hwsim.engine.outcome import Outcome
from hwsim.engine.throttle import keep_within_limit
from hwsim.errors import CapacityError, InputError, ShapeError
from hwsim.hardware.formats import choose_format, lanes_of
from hwsim.hardware.gpu.device import Device
from hwsim.hardware.reuse_distance import ReuseHistogram, measure_reuse
from hwsim.kernels.build import build_kernel
from hwsim.kernels.kernel import Kernel
from hwsim.mapping.chip import build_chip, find_array
from hwsim.numerics.datapath import find_datapath
from hwsim.numerics.format import FORMATS
from hwsim.results.assemble import assemble
from hwsim.results.pressure import Pressure, look_at_sets
from hwsim.results.resolved import machine_of, workload_of
from hwsim.results.result import RunResult
from hwsim.spec.compute import CoreFormatSpec
from hwsim.spec.gpu import GpuSpec
from hwsim.spec.grid import GridSpec
from hwsim.spec.machine import MachineSpec
from hwsim.spec.mapping import MappingSpec
from hwsim.spec.memory import DramSpec
from hwsim.spec.ops.attention import AttentionWorkload
from hwsim.spec.ops.chain import AttentionStep, ChainWorkload
from hwsim.spec.parameters import with_parameters
from hwsim.spec.workload import WorkloadSpec
from hwsim.units import format_bytes

DEFAULT_MACHINE, DEFAULT_WORKLOAD = "course_cpu", "matmul_tiled"

Settings = Mapping[str, object] | Sequence[str]
"""Changes to a machine: ``{"l1.size": "64 KiB"}`` or ``["l1.size=64 KiB"]``."""


@dataclass(frozen=True)
class Run:
    """A result together with what it was made from: the timeline is in the outcome."""

    result: RunResult
    outcome: Outcome


def run(
    machine: str | Path | MachineSpec = DEFAULT_MACHINE,
    workload: str | Path | WorkloadSpec = DEFAULT_WORKLOAD,
    *,
    set: Settings = (),  # noqa: A002 - the same word as --set on the command line
    seed: int | None = None,
    math: bool = True,
    **parameters: object,
) -> RunResult:
    """Simulate a workload on a machine; both by name, by path, or as a spec.

    ``parameters`` are the workload's: ``n=256, tile=32``.
    ``set`` changes the machine: ``{"l1.size": "64 KiB"}``.
    ``seed`` makes the random inputs, and the choices of random replacement; the workload's own if not given.
    A wrong answer does not raise: look at ``result.verified``.
    """
    return run_all(machine, workload, set=set, seed=seed, math=math, parameters=parameters).result


def run_all(
    machine: str | Path | MachineSpec = DEFAULT_MACHINE,
    workload: str | Path | WorkloadSpec = DEFAULT_WORKLOAD,
    *,
    set: Settings = (),  # noqa: A002
    seed: int | None = None,
    math: bool = True,
    timeline: bool = False,
    parameters: Mapping[str, object] | None = None,
) -> Run:
    """As `run`, with the engine's outcome beside the result; ``timeline`` records spans in it."""
    target = resolve_machine(machine, set)
    asked = resolve_workload(workload, parameters or {}, seed)
    with _errors_name(workload):
        task = in_own_tiles(target, in_own_format(target, asked))
        kernel = prepare(target, task, math=math)
    outcome = simulate(target, kernel, seed=task.seed, timeline=timeline, mapping=task.mapping, threads=task.threads)

    def again(slowed: MachineSpec) -> Outcome:
        plain = prepare(slowed, task, math=False)
        return simulate(slowed, plain, seed=task.seed, timeline=timeline, mapping=task.mapping, threads=task.threads)

    target, outcome, throttle = keep_within_limit(target, outcome, again)
    result = assemble(target, task, kernel, outcome, seed=task.seed, throttle=throttle)
    if task.precision != asked.precision:
        note = f"the workload names no precision: {kernel.fmt.name}, which {target.name} computes in"
        result = replace(result, warnings=(*result.warnings, note))
    return Run(result, outcome)


@contextmanager
def _errors_name(workload: str | Path | WorkloadSpec) -> Iterator[None]:
    """What does not fit in a file of the user's own is reported with the name of the file."""
    try:
        yield
    except (InputError, ShapeError) as error:
        own = not isinstance(workload, WorkloadSpec) and Path(workload).suffix in (".yaml", ".yml")
        if own and type(error) in (InputError, ShapeError):
            raise type(error)(f"{workload}: {error}") from error
        raise


def resolve_machine(machine: str | Path | MachineSpec, settings: Settings = ()) -> MachineSpec:
    if not isinstance(machine, MachineSpec):
        settings = [settings] if isinstance(settings, str) else settings
        texts = [f"{k}={v}" for k, v in settings.items()] if isinstance(settings, Mapping) else settings
        return load_machine(machine, texts).spec
    if settings:
        raise InputError("set= changes a machine that is given by name or path; a MachineSpec is taken as it is")
    return machine


def resolve_workload(
    workload: str | Path | WorkloadSpec, parameters: Mapping[str, object], seed: int | None = None
) -> WorkloadSpec:
    spec = workload if isinstance(workload, WorkloadSpec) else load_workload(workload).spec
    return with_parameters(spec, {**parameters} if seed is None else {**parameters, "seed": seed})


def in_own_format(machine: MachineSpec, workload: WorkloadSpec) -> WorkloadSpec:
    """A workload that names no precision, in the first format of the machine's array that the kernel can have.

    On a GPU it stays as it is, but for fused attention, which the library has on tensor cores alone.
    """
    if "precision" in workload.model_fields_set:
        return workload
    unit = machine.compute[0]
    if isinstance(unit, GpuSpec):
        fused = isinstance(workload, AttentionWorkload) and workload.schedule.variant == "fused"
        if isinstance(workload, ChainWorkload):
            fused = any(isinstance(step, AttentionStep) and step.variant == "fused" for step in workload.operations)
        halves = [name for name in ("fp16", "bf16") if name in unit.tensor]
        return with_parameters(workload, {"precision": halves[0]}) if fused and halves else workload
    array = find_array(machine)
    if isinstance(unit, GridSpec):
        return with_parameters(workload, {"precision": "int16" if "int16" in FORMATS else "int8"})
    if array is None:
        return workload
    for name in array.formats:
        chosen = with_parameters(workload, {"precision": name})
        with suppress(InputError):  # a chain that rounds between its operations takes no integers
            build_kernel(chosen, math=False)
            return chosen
    return with_parameters(workload, {"precision": next(iter(array.formats))})


def in_own_tiles(machine: MachineSpec, workload: WorkloadSpec) -> WorkloadSpec:
    """Fused attention that names no tiles, with tiles as large as the machine's array."""
    array = find_array(machine)
    if array is None or not isinstance(workload, AttentionWorkload) or workload.schedule.variant != "fused":
        return workload
    named = workload.schedule.model_fields_set
    sizes = {
        "br": min(array.rows, workload.sizes.queries or workload.sizes.n),
        "bc": min(array.columns, workload.sizes.n),
    }
    return with_parameters(workload, {name: size for name, size in sizes.items() if name not in named})


def prepare(machine: MachineSpec, workload: WorkloadSpec, *, math: bool = True) -> Kernel:
    """The kernel of a workload for a machine: with the lanes of its vectors, its cores and its lines."""
    cores = sum(each.count for each in machine.compute)
    asked = getattr(getattr(workload, "schedule", None), "cores", None)
    if asked is not None and asked > cores:
        raise InputError(f"cores={asked}: {machine.name} has {cores}")
    if find_array(machine) is None and workload.mapping != MappingSpec():
        raise InputError(f"mapping is for machines with systolic arrays; {machine.name} has none")
    try:
        kernel = _build(machine, workload, cores, math)
    except MemoryError:
        raise CapacityError(
            f"the tensors of {workload.name} do not fit the memory of this computer; choose smaller sizes, or leave "
            "the math out (--no-math, math=False)"
        ) from None
    _check_room(machine, kernel)
    return kernel


def set_pressure(result: RunResult) -> Pressure | None:
    """The misses of a stored run by set of its first cache: its accesses once more. None where sets mean nothing."""
    machine, workload = machine_of(result), workload_of(result)
    if workload.op == "python" or not machine.caches:
        return None
    first = machine.caches[0].name
    misses = {name: facts["misses"].get(first, 0) for name, facts in result.tensors.items()}
    return look_at_sets(machine, prepare(machine, workload, math=False), misses)


def reuse_histogram(result: RunResult) -> ReuseHistogram:
    """How far apart the uses of a line are in a stored run: its accesses once more, as far as some seconds allow."""
    machine, workload = machine_of(result), workload_of(result)
    line = machine.caches[0].line if machine.caches else 64
    steps = prepare(machine, workload, math=False).blocks()[0].steps()
    return measure_reuse((nest for step in steps for _ in range(step.repeat) for nest in step.nests), line)


def _build(machine: MachineSpec, workload: WorkloadSpec, cores: int, math: bool) -> Kernel:
    if find_array(machine) is not None:
        build_chip(machine, find_datapath(workload.precision).a.name)  # refuses a format that the array does not have
        return build_kernel(workload, seed=workload.seed, math=math)
    if isinstance(machine.compute[0], GridSpec):
        return build_kernel(workload, seed=workload.seed, math=math)
    if isinstance(machine.compute[0], GpuSpec):
        Device.of(machine).unit_for(find_datapath(workload.precision).a.name)  # refuses a format that it does not have
        return build_kernel(workload, seed=workload.seed, math=math)
    unit = machine.cpu
    compute = choose_format(unit, find_datapath(workload.precision).a, convert=workload.convert)
    declared = unit.formats.get(compute.name)
    return build_kernel(
        workload,
        seed=workload.seed,
        lanes=lanes_of(unit, compute),
        cores=cores,
        math=math,
        line_bytes=machine.caches[0].line if machine.caches else 64,
        compute=compute.name,
        sums=declared if isinstance(declared, CoreFormatSpec) else None,
    )


def _check_room(machine: MachineSpec, kernel: Kernel) -> None:
    needed = kernel.space.peak_bytes
    for level in machine.memory:
        if isinstance(level, DramSpec) and level.size is not None and needed > level.size:
            has = format_bytes(level.size)
            wanted = f"{needed:,} B" if format_bytes(needed) == "inf" else format_bytes(needed)
            raise CapacityError(f"{kernel.name} needs {wanted} in {level.name}, which has {has}")
