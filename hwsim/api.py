"""`hwsim.run`: one call from names to a result.

What a run takes of this computer, known before it is spent: memory for the tensors, seconds for the arithmetic.

The numbers are rough, on purpose: they tell a run that cannot end from one that can, not ten seconds from twelve.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from hwsim.catalog import load_machine, load_workload
from hwsim.engine import Outcome, Span, keep_within_limit, play
from hwsim.errors import CapacityError, HostMemoryError, InputError, ShapeError
from hwsim.files import note_input
from hwsim.program.kernel import Kernel, small_tensors
from hwsim.program.loop_kernel import with_usual_scale
from hwsim.result import RunResult, machine_of, workload_of
from hwsim.results.bar_table import is_shipped
from hwsim.results.explanation import assemble, explain
from hwsim.spec.machine import DramSpec, MachineSpec
from hwsim.spec.variant import with_parameters
from hwsim.spec.workload import MappingSpec, WorkloadSpec
from hwsim.target import Target, check_choices, find_target, written_choices
from hwsim.units import data, format_bytes

if TYPE_CHECKING:
    from hwsim.memory.locality import Pressure, ReuseHistogram

BYTES_PER_ELEMENT = 24
"""Of memory for each element of the tensors: its random value in float64, as it is stored, its reference, the answer
and what is computed on the way; between 10 and 23 were measured."""
FIXED_BYTES = 400_000_000
"""What the compiler and NumPy take beside the tensors before a run is over."""
SMALL_BYTES = 100_000_000
"""Tensors that take less are not asked for: there is always room, or no hwsim either."""
SMALL_ELEMENTS = SMALL_BYTES // BYTES_PER_ELEMENT
OPERATIONS_PER_S = 5e8
"""Of arithmetic in NumPy with the checks around it; a low guess."""
LONG_S = 30
"""A run that takes longer than this says so before it starts."""

_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def free_bytes() -> int | None:
    """Memory that this process can still take: the least of what is free, what its group and what it itself may have.

    None where the system does not tell.
    """
    rooms = [room for room in (_available(), _within_group(), _within_limit()) if room is not None]
    return min(rooms) if rooms else None


def needed_bytes(kernel: Kernel) -> int:
    """Memory that the math of a kernel takes, from what its tensors take in the simulated machine."""
    bits = float(kernel.fmt.stored_bits) or 32.0
    return int(kernel.space.peak_bytes * 8 / bits) * BYTES_PER_ELEMENT


def math_seconds(kernel: Kernel) -> float:
    """How long the arithmetic of a kernel takes, roughly."""
    return kernel.useful_flops / OPERATIONS_PER_S


def check_memory(kernel: Kernel, name: str) -> None:
    """Raises HostMemoryError where the tensors of a kernel cannot be computed here, before any is made."""
    needed = needed_bytes(kernel)
    free = free_bytes() if needed > SMALL_BYTES else None
    if free is not None and needed + FIXED_BYTES > free:
        raise HostMemoryError(
            f"the tensors of {name} need about {data(needed)} of memory to be computed with, and this computer has "
            f"{data(max(0, free))} left; --no-math (math=False) leaves the answer out and needs none of that, or "
            "choose smaller sizes"
        )


def _available() -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _within_group() -> int | None:
    for limit, used in _CGROUPS:
        with suppress(OSError, ValueError):
            return int(Path(limit).read_text()) - int(Path(used).read_text())
    return None


def _within_limit() -> int | None:
    """Of the address space, where `ulimit -v` set a limit."""
    try:
        import resource
    except ImportError:  # Windows has none
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return None
    with suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        return soft - pages * os.sysconf("SC_PAGE_SIZE")
    return soft


DEFAULT_MACHINE, DEFAULT_WORKLOAD = "course_cpu", "matmul_tiled"

Settings = Mapping[str, object] | Sequence[str]
"""Changes to a machine: ``{"l1.size": "64 KiB"}`` or ``["l1.size=64 KiB"]``."""


@dataclass(frozen=True)
class Run:
    """A result together with what it was made from: the timeline is in the outcome; a whole model has none."""

    result: RunResult
    outcome: Outcome | None

    @property
    def spans(self) -> tuple[Span, ...]:
        """Who was busy when, where a timeline was asked for."""
        return self.outcome.spans if self.outcome is not None else ()


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
    warn: Callable[[float], None] | None = None,
) -> Run:
    """As `run`, with the engine's outcome beside the result; ``timeline`` records spans in it.

    ``warn`` is told the seconds of a run whose arithmetic takes long, before it begins.
    """
    computer = resolve_machine(machine, set)
    asked = resolve_workload(workload, parameters or {}, seed)
    if asked.runner is not None:
        if timeline:
            raise InputError(f"{asked.name} is a whole model, of which no timeline is kept; --plot draws its parts")
        return Run(import_module(asked.runner).run(computer, asked, math=math), None)
    target = find_target(computer)
    for file in asked.inputs.values():
        note_input(file)
    with _errors_name(workload):
        check_choices(target, asked, {**written_choices(workload, asked), **(parameters or {})})
        task = with_usual_scale(target.defaults(asked))
        kernel = prepare(computer, task, math=math, careful=True, warn=warn)
    outcome = simulate(computer, kernel, task, seed=task.seed, timeline=timeline)

    def again(slowed: MachineSpec) -> Outcome:
        return simulate(slowed, prepare(slowed, task, math=False), task, seed=task.seed, timeline=timeline)

    measured = is_shipped(computer)
    computer, outcome, throttle = keep_within_limit(computer, outcome, again)
    result = assemble(computer, task, kernel, outcome, seed=task.seed, throttle=throttle, as_shipped=measured)
    if task.precision != asked.precision:
        note = f"the workload names no precision: {kernel.fmt.name}, which {computer.name} computes in"
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


def prepare(
    machine: MachineSpec,
    workload: WorkloadSpec,
    *,
    math: bool = True,
    careful: bool = False,
    warn: Callable[[float], None] | None = None,
) -> Kernel:
    """The kernel of a workload for a machine, in the shape that the machine's class asks for.

    ``careful``: before large tensors are made, see whether they fit the memory of this computer. ``warn`` of long runs.
    """
    cores = sum(each.count for each in machine.compute)
    asked = getattr(getattr(workload, "schedule", None), "cores", None)
    if asked is not None and asked > cores:
        raise InputError(f"cores={asked}: {machine.name} has {cores}")
    target = find_target(machine)
    if "mapping" not in target.groups and workload.mapping != MappingSpec():
        raise InputError(f"mapping is for machines with systolic arrays; {machine.name} has none")
    try:
        kernel = _prepare_carefully(target, workload) if math and careful else target.prepare(workload, math=math)
    except MemoryError:
        raise CapacityError(
            f"the tensors of {workload.name} do not fit the memory of this computer; choose smaller sizes, or leave "
            "the math out (--no-math, math=False)"
        ) from None
    _check_room(machine, kernel)
    if warn is not None and math and (seconds := math_seconds(kernel)) > LONG_S:
        warn(seconds)
    return kernel


def _prepare_carefully(target: Target, workload: WorkloadSpec) -> Kernel:
    """Small tensors are made at once; of large ones, the kernel without values tells first what they need."""
    try:
        with small_tensors(SMALL_ELEMENTS):
            return target.prepare(workload, math=True)
    except MemoryError:
        check_memory(target.prepare(workload, math=False), workload.name)
        return target.prepare(workload, math=True)


def simulate(
    machine: MachineSpec, kernel: Kernel, work: WorkloadSpec | None = None, *, seed: int = 0, timeline: bool = False
) -> Outcome:
    """Play a kernel on a machine, laid out as its workload asks; every run starts with cold caches."""
    return play(find_target(machine).crew(kernel, work, seed=seed), timeline=timeline)


def set_pressure(result: RunResult) -> Pressure | None:
    """The misses of a stored run by set of its first cache: its accesses once more. None where sets mean nothing."""
    return explain(result).details.pressure


def reuse_histogram(result: RunResult) -> ReuseHistogram:
    """How far apart the uses of a line are in a stored run: its accesses once more, as far as some seconds allow."""
    from hwsim.memory.locality import measure_reuse  # compiled: only where it is asked for

    machine, workload = machine_of(result), workload_of(result)
    line = machine.caches[0].line if machine.caches else 64
    steps = prepare(machine, workload, math=False).blocks()[0].steps()
    return measure_reuse((nest for step in steps for nest in step.nests), line)


def _check_room(machine: MachineSpec, kernel: Kernel) -> None:
    needed = kernel.space.peak_bytes
    for level in machine.memory:
        if isinstance(level, DramSpec) and level.size is not None and needed > level.size:
            has, wanted = format_bytes(level.size), format_bytes(needed)
            if len(wanted) > len("9999 KiB"):  # no power of two divides it far: as the traffic is written
                has, wanted = data(level.size), data(needed)
            raise CapacityError(f"{kernel.name} needs {wanted} in {level.name}, which has {has}; take smaller sizes")
