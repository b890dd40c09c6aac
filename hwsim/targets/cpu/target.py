"""CPU cores as a target, and the closed forms of the course beside what they simulate.

What a core reads of a schedule: all fields of the operation's own, and tiles by the names of its levels.

A kernel for a core has one tile in registers and one in a cache. ``tile.regs.m`` is `v1`, ``tile.l1.k`` is `tile_k`:
which cache a tile is meant for does not change the loops, only whether it fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, cast

from pydantic import BaseModel

from hwsim.engine import FEMTOSECONDS, Crew, Outcome
from hwsim.errors import InputError, OverrideError
from hwsim.memory.counters import CacheCounters, DramCounters, ScratchpadCounters
from hwsim.memory.footprint import FootprintHierarchy
from hwsim.memory.hierarchy import Hierarchy
from hwsim.numerics.datapath import SumRule, find_datapath
from hwsim.numerics.format import FORMATS, BlockFormat, FloatFormat, Format, IntFormat
from hwsim.program.contraction import gemm_view
from hwsim.program.kernel import Formula, Kernel
from hwsim.program.loop_kernel import LoopKernel, build_kernel
from hwsim.program.loops import all_loops
from hwsim.result import Counts, FormulaCheck, Intensity, RunResult
from hwsim.spec.machine import MachineSpec, RegistersSpec
from hwsim.spec.variant import with_parameters
from hwsim.spec.workload import WorkloadSpec
from hwsim.target import ComparedPart, Knob, Rung, Starts, Why, tried
from hwsim.targets.cpu.agent import CoreCrew
from hwsim.targets.cpu.model import CpuCore, core_spec
from hwsim.targets.cpu.spec import CoreFormatSpec, CpuSpec, lanes_of
from hwsim.targets.cpu.why import crowded_rows, explain
from hwsim.targets.knobs import own_knobs
from hwsim.units import counted, format_bytes

REGISTERS, CACHE = "registers", "cache"
AXES: Mapping[str, tuple[str, str]] = {
    "v1": (REGISTERS, "m"),
    "v2": (REGISTERS, "n"),
    "v3": (REGISTERS, "k"),
    "b1": (CACHE, "m"),
    "b2": (CACHE, "n"),
    "tile_k": (CACHE, "k"),
    "br": (CACHE, "queries"),
    "bc": (CACHE, "keys"),
    "block": (CACHE, "rows"),
    "rows": (CACHE, "rows"),
}
"""The level and the axis of a tile, for the fields that are the extent of one."""
LOOPS = {"tile": CACHE, "unroll": REGISTERS}
"""Fields that have an entry for each loop: `tile.h` is the extent of the cache tile along h."""

TRIES: Mapping[str, str] = {
    "tile": "8..128:x2",
    "v1": "1,2,4,6,8",
    "order": "",
    "vector": "false,true",
    "parallel": "none,rows",
    "fused": "false,true",
    "variant": "",
    "algorithm": "",
    "br": "16..128:x2",
    "bc": "16..128:x2",
    "rows": "1,4,16",
    "block": "1,8,64",
    "cutoff": "32..256:x2",
}
"""What a search tries; all that is allowed where nothing is said."""
MATMUL = ("tile", "v1", "order", "vector")
"""Of a matrix product, which has more fields than a search can go through."""


def knobs(machine: MachineSpec, work: WorkloadSpec) -> Mapping[str, Knob]:
    """All fields of the operation's schedule, with the names of the machine's levels for those that are tiles."""
    found = {}
    for name, knob in own_knobs(work).items():
        found[name] = replace(knob, also=long_names(machine, name), tries=_tries(machine, work, knob))
    return found


def long_names(machine: MachineSpec, field: str) -> tuple[str, ...]:
    """``tile.l1.m`` and ``tile.l2.m`` for `b1`, ``tile.regs.co`` for `unroll.co`."""
    head, _, loop = field.partition(".")
    kind, axis = AXES.get(field) or (LOOPS.get(head) if loop else None, loop)
    if kind == REGISTERS:
        return tuple(f"tile.{level.name}.{axis}" for level in machine.memory if isinstance(level, RegistersSpec))
    return tuple(f"tile.{cache.name}.{axis}" for cache in machine.caches) if kind == CACHE else ()


def in_own_names(machine: MachineSpec, work: WorkloadSpec) -> WorkloadSpec:
    """The workload with tiles by level put into the fields of its own schedule."""
    if not work.choices:
        return work
    fields = {name: field for field in own_knobs(work) for name in long_names(machine, field)}
    found: dict[str, object] = {}
    said: dict[str, str] = {}
    for name, value in work.choices.items():
        field = fields.get(name)
        if field is None:
            raise OverrideError(
                f"{name} means nothing on {machine.name}: see hwsim show {work.name} --on {machine.name}"
            )
        if field in found and found[field] != value:
            raise OverrideError(
                f"{name}={value}: a kernel for cores has one such tile, and {said[field]} is another one"
            )
        found[field], said[field] = value, f"{name}={value}"
    bare = type(work).model_validate(work.model_dump(exclude_unset=True, exclude={"choices"}))
    return with_parameters(bare, _without_square_tile(work, found))


def _without_square_tile(work: WorkloadSpec, found: dict[str, object]) -> dict[str, object]:
    """A square tile becomes the extents that nobody named, where others are given by axis."""
    schedule = getattr(work, "schedule", None)
    square = getattr(schedule, "tile", None)
    if not isinstance(square, int) or not {"b1", "b2", "tile_k"} & set(found):
        return found
    rest = {"b1": square, "b2": square, "tile_k": getattr(schedule, "tile_k", None) or square}
    return {**rest, **found, "tile": None}


def broken_rule(machine: MachineSpec, kernel: Kernel, work: WorkloadSpec) -> str | None:
    """The first capacity rule that a schedule breaks; None where registers and the largest cache hold its tiles."""
    registers = machine.registers
    if registers is not None and kernel.registers_needed > registers.count:
        return f"registers: {registers.name} has {registers.count}, and the register tile needs more"
    tile = getattr(getattr(work, "schedule", None), "tile", None)
    if work.op != "matmul" or not isinstance(tile, int) or not machine.caches:
        return None
    element = max(1, kernel.fmt.bits // 8)
    largest = max(machine.caches, key=lambda cache: cache.size)
    if largest.infinite or 3 * tile * tile * element <= largest.size:
        return None
    return f"tile: 3·tile² elements do not fit {largest.name} ({format_bytes(largest.size)}), the largest cache"


def _tries(machine: MachineSpec, work: WorkloadSpec, knob: Knob) -> str:
    if not isinstance(getattr(work, "schedule", None), BaseModel) or knob.name not in TRIES:
        return ""
    if work.op == "matmul" and knob.name not in MATMUL:
        return ""
    if knob.name == "vector" and getattr(machine.compute[0], "simd", None) is None:
        return ""
    if knob.name == "parallel" and sum(unit.count for unit in machine.compute) == 1:
        return ""
    if knob.name == "order":
        return "ijk,ikj" if "ikj" in knob.allowed else knob.allowed if knob.allowed.count(",") == 1 else ""
    return TRIES[knob.name] or knob.allowed


SAME = 0.001
"""Closer than this counts as equal: the formula is a real number, and the simulation counts whole lines."""


def compare_formulas(
    machine: MachineSpec,
    kernel: Kernel,
    outcome: Outcome,
    memory: Mapping[str, CacheCounters | DramCounters | ScratchpadCounters],
    intensity: Intensity,
) -> tuple[FormulaCheck, ...]:
    """Every formula whose counterpart was simulated."""
    rows = []
    for formula in kernel.formulas():
        simulated = find_simulated(formula.compare, kernel, outcome, memory, intensity)
        predicted = _seconds(formula, machine) if formula.compare == "time_s" else formula.value
        if simulated is None or predicted is None:
            continue
        gap = simulated / predicted if predicted else None
        rows.append(
            FormulaCheck(
                name=formula.name,
                expression=formula.expression,
                unit=f"{formula.unit} of {list(intensity.levels)[-1]}" if formula.compare == FAR else formula.unit,
                compare=formula.compare,
                predicted=predicted,
                simulated=simulated,
                ratio=gap,
                reason="" if gap is None else _reason(formula, gap, simulated, machine, kernel, outcome, intensity),
            )
        )
    return tuple(rows)


FAR = "intensity.far"
"""Operations for each byte of the furthest level: what a formula about each element moved once is held against."""


def find_simulated(
    name: str,
    kernel: Kernel,
    outcome: Outcome,
    memory: Mapping[str, CacheCounters | DramCounters | ScratchpadCounters],
    intensity: Intensity,
) -> int | float | None:
    """The simulated number that a formula names; None where this machine has no such thing."""
    part, _, rest = name.partition(".")
    if part == "time_s":
        return outcome.elapsed_fs / FEMTOSECONDS
    if part == "macs":
        return outcome.macs
    if part == "bytes":
        return kernel.bytes_of(rest)
    if part in ("loads", "stores"):
        if not rest:
            return outcome.loads if part == "loads" else outcome.stores
        traffic = outcome.tensors.get(rest)
        return None if traffic is None else traffic.loads if part == "loads" else traffic.stores
    if part == "flops":
        return outcome.flops
    if name == FAR:
        return intensity.levels[list(intensity.levels)[-1]]
    if part == "intensity":
        value: float | None = intensity[rest]
        return value
    counts = memory.get(part)
    if counts is None:
        return None
    if rest == "fills":
        return counts.misses + counts.prefetches if isinstance(counts, CacheCounters) else None
    found: int | None = getattr(counts, rest, None)
    return found


def _seconds(formula: Formula, machine: MachineSpec) -> float | None:
    """What a formula's bytes take at the bandwidths of a machine; None where one of them has no limit."""
    core = CpuCore(machine, core_spec(machine))
    if not machine.caches:
        return None
    rates = core.read_rate(core.dram), core.read_rate(machine.caches[0])
    if rates[0] is None or rates[1] is None:
        return None
    return float((formula.far / rates[0] + formula.near / rates[1]) / core.clock_hz)


def _reason(
    formula: Formula,
    gap: float,
    simulated: int | float,
    machine: MachineSpec,
    kernel: Kernel,
    outcome: Outcome,
    intensity: Intensity,
) -> str:
    """Why the two differ, as far as the counts tell; nothing where they agree."""
    if abs(gap - 1) <= SAME:
        return ""
    if formula.compare == "time_s":
        return "the formula adds up two transfers, and leaves out arithmetic, latency, C and what overlaps"
    if formula.compare.endswith(".fills"):
        level = formula.compare.removesuffix(".fills")
        return _fills_reason(formula, simulated, level, machine, kernel, outcome)
    if formula.compare.startswith("intensity."):
        if gap > 1:
            return "fewer bytes move than the formula counts"
        if formula.compare != FAR:
            return "elements are loaded into registers more than once"
        return "lines move more than once, or are brought in to be written"
    if formula.compare.endswith((".bytes_read", ".bytes_written")):
        return _bytes_reason(formula.compare, gap)
    if formula.compare.startswith("bytes."):
        return "at the edges there are fewer outputs than the formula counts, or more"
    if formula.compare == "macs":
        return "outputs at the edges are left out" if gap < 1 else "products are counted that the formula leaves out"
    if formula.compare.startswith("loads") and gap > 1:
        return "edges of tiles and sums that come back from memory are loaded as well"
    return "vectors move several elements at once" if gap < 1 else "sums go to memory more than once"


def _bytes_reason(compare: str, gap: float) -> str:
    if gap > 1:
        return "lines that the formula leaves out, such as scratch space, move as well"
    if compare.endswith(".bytes_read"):
        return "part of it is still in a cache when it is needed again"
    return "part of it is still in a cache when the run ends"


def _fills_reason(
    formula: Formula,
    simulated: int | float,
    level: str,
    machine: MachineSpec,
    kernel: Kernel,
    outcome: Outcome,
) -> str:
    if simulated < formula.value:
        return "part of it is still in the cache when it is needed again"
    misses = {name: traffic.misses.get(level, 0) for name, traffic in outcome.tensors.items()}
    outputs = sum(count for name, count in misses.items() if outcome.tensors[name].stores)
    if outputs and abs(simulated - outputs - formula.value) <= SAME * formula.value and "A and B" in formula.name:
        lines = counted(outputs, "line")
        return f"the formula leaves C out: {lines} of it, fetched because a store that misses allocates"
    spec = next((cache for cache in machine.caches if cache.name == level), None)
    crowding = None if spec is None else crowded_rows(spec, kernel, misses)
    if crowding is not None:
        return (
            f"set conflicts: rows of {crowding.tensor} are {crowding.row_bytes:,} B apart, so a column falls "
            f"into only {crowding.used_sets} of {crowding.sets} sets"
        )
    return f"{level} does not keep everything until it is used again: too many lines come between two uses"


# What was measured ----------------------------------------------------------------------------------------------------

MEASURED_FORMATS = ("fp32", "fp64")
_OTHER = ("loops other than products in fp32 and fp64", "work of several cores")


def product_stages(kernel: Kernel) -> frozenset[str]:
    """The stages of a kernel that are products of matrices and nothing else."""
    if not isinstance(kernel, LoopKernel):
        return frozenset()
    phases = [(phase.name or kernel.name, list(all_loops(phase.items))) for phase in kernel.program]
    others = {name for name, loops in phases if not all(gemm_view(loop) for loop in loops)}
    return frozenset(name for name, _ in phases) - others


# The target -----------------------------------------------------------------------------------------------------------


class CpuTarget:
    """Cores that load and store through caches."""

    groups: ClassVar[frozenset[str]] = frozenset()
    exact: ClassVar[str] = "operations, loads and stores; hits, misses and bytes of every level for its stated policy"
    models: ClassVar[str] = ""

    def __init__(self, machine: MachineSpec) -> None:
        self.machine = machine
        self.unit = core_spec(machine)

    def reads(self, work: WorkloadSpec) -> Mapping[str, Knob]:
        return knobs(self.machine, work)

    def defaults(self, work: WorkloadSpec) -> WorkloadSpec:
        """A core computes in any format; tiles that were chosen by level become those of the workload's schedule."""
        return in_own_names(self.machine, work)

    def space(self, work: WorkloadSpec) -> Mapping[str, str]:
        return tried(self.reads(work))

    def misfit(self, kernel: Kernel, work: WorkloadSpec) -> str | None:
        return broken_rule(self.machine, kernel, work)

    def ladder(self, story: str) -> tuple[Rung, ...]:
        """The stories are told for cores."""
        return ()

    def sums(self, precision: str) -> SumRule:
        declared = self.unit.formats.get(precision)
        return SumRule(declared.accumulate, declared.chunk) if isinstance(declared, CoreFormatSpec) else SumRule()

    def prepare(self, work: WorkloadSpec, *, math: bool = True) -> Kernel:
        """With the lanes of the core's vectors, its cores and its lines."""
        compute = choose_format(self.unit, find_datapath(work.precision).a, convert=work.convert)
        return build_kernel(
            work,
            seed=work.seed,
            lanes=lanes_of(self.unit, compute),
            cores=sum(unit.count for unit in self.machine.compute),
            math=math,
            line_bytes=self.machine.caches[0].line if self.machine.caches else 64,
            compute=compute.name,
            sums=self.sums(compute.name),
        )

    def crew(self, kernel: Kernel, work: WorkloadSpec | None = None, *, seed: int = 0) -> Crew:
        return CoreCrew(self.machine, kernel, seed=seed)

    def estimate(self, kernel: Kernel, work: WorkloadSpec) -> Crew:
        """The same cores, with footprints in place of the exact caches."""
        machine = self.machine
        kernel.sketch = True
        hierarchy = FootprintHierarchy(
            machine.caches,
            machine.dram,
            cores=sum(unit.count for unit in machine.compute),
            unit=self.unit.name,
        )
        return CoreCrew(machine, kernel, seed=work.seed, hierarchy=cast(Hierarchy, hierarchy))

    def formulas(
        self, kernel: Kernel, outcome: Outcome, memory: Mapping[str, Counts], intensity: Intensity
    ) -> tuple[FormulaCheck, ...]:
        return compare_formulas(self.machine, kernel, outcome, memory, intensity)

    def compared(self, kernel: Kernel, outcome: Outcome) -> tuple[ComparedPart, ...]:
        """Products on one core were measured; other loops, and several cores, were not."""
        products = product_stages(kernel) if len(outcome.agents) == 1 and kernel.fmt.name in MEASURED_FORMATS else ()
        return tuple(
            ComparedPart("cpu_matmul", "products on one core", each.elapsed_fs / FEMTOSECONDS)
            if each.name in products
            else ComparedPart("cpu_other", _OTHER[len(outcome.agents) > 1], each.elapsed_fs / FEMTOSECONDS)
            for each in outcome.stages
        )

    def starts(self, result: RunResult) -> Starts:
        return Starts()

    def why(self, result: RunResult) -> Why:
        return explain(self.machine, result)


TARGET = CpuTarget


def choose_format(unit: CpuSpec, fmt: Format, *, convert: bool) -> Format:
    """The format that a core computes in: the tensors' own or, if asked, the narrowest it has that loses nothing."""
    if fmt.name in unit.formats:
        return fmt
    has = ", ".join(unit.formats)
    if not convert:
        raise InputError(
            f"precision: {unit.name} does not compute in {fmt.name}; it has {has}. Take one of these, or convert=true: "
            "converted on the way to registers and back, and counted"
        )
    wider = [FORMATS[name] for name in unit.formats if name in FORMATS and contains(FORMATS[name], fmt)]
    if not wider:
        raise InputError(f"precision: {unit.name} has no format with all numbers of {fmt.name}; it has {has}")
    return min(wider, key=lambda other: (other.lane_bits, -other.significand))


def contains(wide: Format, narrow: Format) -> bool:
    """Whether every number of a format is one of another; of an MX format, every element with a usual scale."""
    if isinstance(narrow, BlockFormat):
        many_exponents = isinstance(wide, FloatFormat) and wide.grid.exponent >= 8
        return many_exponents and contains(wide, narrow.element)
    if isinstance(wide, IntFormat) and isinstance(narrow, IntFormat):
        return wide.low <= narrow.low and narrow.high <= wide.high
    if isinstance(wide, FloatFormat) and isinstance(narrow, FloatFormat):
        in_range = wide.smallest <= narrow.smallest and narrow.largest <= wide.largest
        return in_range and wide.significand >= narrow.significand
    return False
