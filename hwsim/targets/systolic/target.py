"""Systolic arrays as a target, and what they read of a schedule: tiles in scratchpads, order, dataflow, buffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from hwsim.engine import FEMTOSECONDS, Crew, Outcome
from hwsim.errors import OverrideError
from hwsim.numerics.datapath import SumRule, find_datapath, sums_in
from hwsim.program.contraction import gemm_view
from hwsim.program.kernel import Kernel
from hwsim.program.loop_kernel import LoopKernel, build_kernel
from hwsim.program.loops import all_loops
from hwsim.result import RunResult
from hwsim.spec.machine import MachineSpec
from hwsim.spec.variant import parameter_keys, with_parameters
from hwsim.spec.workload import AUTO, WorkloadSpec, is_tile, tile_parts
from hwsim.target import ComparedPart, Knob, Rung, Starts, Target, Why
from hwsim.targets.knobs import algorithm_knobs, by_name, has_products, in_first_format, powers
from hwsim.targets.systolic.lower import is_fused_attention, with_tiles
from hwsim.targets.systolic.model import ROLES, array_spec, build_chip
from hwsim.targets.systolic.run import ArrayCrew
from hwsim.targets.systolic.tiling import ORDERS, RELEVANT
from hwsim.targets.systolic.why import explain

AXES: Mapping[str, str] = {
    "m": "Rows of A and C in a tile.",
    "n": "Columns of B and C in a tile.",
    "k": "Columns of A and rows of B in a tile.",
}
OWN: Mapping[str, tuple[str, str]] = {
    "br": ("queries", "Queries in a tile of fused attention."),
    "bc": ("keys", "Keys in a tile of fused attention."),
    "rows": ("rows", "Rows that go through all passes together."),
    "block": ("rows", "Rows that go through all passes together."),
}
"""Fields of an operation's own schedule that are tiles on an array, too, by axis."""


def knobs(machine: MachineSpec, work: WorkloadSpec) -> Mapping[str, Knob]:
    """Tiles of products in each scratchpad, their order, dataflow and buffers; tiles of fused loops."""
    found = dict(algorithm_knobs(work, frozenset({"softmax"})))
    side = _side(machine)
    pads = _pads(machine)
    found |= _own_tiles(work, next(iter(pads)), side, pads)
    products = has_products(work)
    if products and not is_fused_attention(work):
        nearest = {axis: next(pad for pad, axes in pads.items() if axis in axes) for axis in AXES}
        for axis, meaning in AXES.items():
            name = f"tile.{nearest[axis]}.{axis}"
            also = tuple(f"tile.{pad}.{axis}" for pad, axes in pads.items() if axis in axes and pad != nearest[axis])
            tries = powers(side, 16 * side)
            found[name] = Knob(name, meaning, AUTO, "1..", (*also, f"mapping.tile_{axis}"), tries)
        box = "Iterations of single loops in a tile, such as {h: 4, w: 14}, instead of a tile of their group."
        reuse = "What tiles share: comes once where there is room, or with each tile anew."
        found |= by_name(
            Knob("mapping.box", box, AUTO, "{loop: 1..}", group="mapping"),
            Knob("mapping.reuse", reuse, AUTO, "auto,none", group="mapping"),
        )
        orders = ",".join((AUTO, *ORDERS))
        found |= by_name(Knob("order", "Loops over tiles, outermost first.", AUTO, orders, ("mapping.order",)))
    if products:
        unit = array_spec(machine)
        flows = ",".join(dict.fromkeys((unit.dataflow, *unit.dataflows)))
        meaning = "Which operand stays in the cells: ws the weights, os the outputs, is the inputs."
        tries = flows if "," in flows else ""
        found |= by_name(Knob("dataflow", meaning, unit.dataflow, flows, ("mapping.dataflow",), tries))
    buffers = "1: a tile comes when the one before is done with; 2: while it is worked on, in half the room."
    keep = "What one loop leaves for the next: on the chip where it fits, or through main memory."
    return found | by_name(
        Knob("buffers", buffers, AUTO, "1,2", ("mapping.buffers",)),
        Knob("keep", keep, AUTO, "auto,none", ("mapping.keep",)),
    )


def with_own_fields(machine: MachineSpec, work: WorkloadSpec) -> WorkloadSpec:
    """The workload with what was chosen put where the mapper looks: its mapping, and tiles of fused loops."""
    if not work.choices:
        return work
    fields = {axis: field for field, (axis, _) in OWN.items() if field in parameter_keys(work)}
    pads = _pads(machine)
    asked: dict[str, object] = {}
    said: dict[str, str] = {}
    for name, value in work.choices.items():
        if is_tile(name):
            level, axis = tile_parts(name)
            if level not in pads or (axis not in pads[level] and axis not in fields):
                raise OverrideError(
                    f"{name}: {machine.name} keeps no such tile; see hwsim show {work.name} --on {machine.name}"
                )
            field = fields.get(axis, f"mapping.tile_{axis}")
        else:
            field = f"mapping.{name}"
        if asked.get(field, value) != value:
            raise OverrideError(
                f"{name}={value}: all scratchpads hold pieces of one tile, and {said[field]} is another one"
            )
        asked[field], said[field] = value, f"{name}={value}"
    bare = type(work).model_validate(work.model_dump(exclude_unset=True, exclude={"choices"}))
    return with_parameters(bare, asked)


def ladder(machine: MachineSpec, story: str) -> tuple[Rung, ...]:
    """A matrix product in tiles as large as the array, then in those of the mapper; with one buffer, then with two."""
    if story != "matmul":
        return ()
    side = _side(machine)
    small = {f"mapping.tile_{axis}": side for axis in AXES}
    size = {"n": 8 * side}
    return (
        Rung("tiles of the array's size, one buffer", "matmul", {**size, **small, "buffers": 1}),
        Rung("two buffers", "matmul", {**size, **small, "buffers": 2}),
        Rung("larger tiles, one buffer", "matmul", {**size, "buffers": 1}),
        Rung("larger tiles, as the mapper finds", "matmul", size),
    )


def _own_tiles(work: WorkloadSpec, pad: str, side: int, pads: Mapping[str, frozenset[str]]) -> Mapping[str, Knob]:
    found = {}
    keys = parameter_keys(work)
    schedule = getattr(work, "schedule", None)
    for field, (axis, meaning) in OWN.items():
        if field not in keys or (field in ("br", "bc") and not is_fused_attention(work)):
            continue
        name = f"tile.{pad}.{axis}"
        others = tuple(f"tile.{other}.{axis}" for other in pads if other != pad)
        named = schedule is not None and field in schedule.model_fields_set
        default = str(getattr(schedule, field)) if named else AUTO
        tries = powers(side, 16 * side) if field in ("br", "bc") else "1,16,256"
        found[name] = Knob(name, meaning, default, "1..", (field, *others), tries)
    return found


def _pads(machine: MachineSpec) -> Mapping[str, frozenset[str]]:
    """The scratchpads by name, with the axes of the operands that they hold; those with most operands first."""
    chip = build_chip(machine, next(iter(array_spec(machine).formats)))
    nearest = [chip.pads[role] for role in ROLES]
    axes = {
        pad.name: frozenset(axis for role in ROLES if role in pad.holds for axis in RELEVANT[role][:2])
        for pad in (*nearest, *chip.scratchpads)
    }
    return {name: axes[name] for name in sorted(axes, key=lambda name: -len(axes[name]))}


def _side(machine: MachineSpec) -> int:
    unit = array_spec(machine)
    return max(unit.rows, unit.columns)


OTHER = "array_other"
FAMILIES = {
    "array_products": "products on an array",
    "array_attentions": "attention on an array",
    OTHER: "work of the vector unit alone",
}
"""Families of measurements, and what they are called."""


def stage_families(kernel: Kernel) -> dict[str, str]:
    """The family of each stage: attention as a whole, whatever has a product, and the rest."""
    found: dict[str, str] = {}
    for phase in kernel.program if isinstance(kernel, LoopKernel) else ():
        name = phase.name or kernel.name
        if phase.operator is not None and phase.operator.name == "attention":
            found[name] = "array_attentions"
        elif any(gemm_view(loop) is not None for loop in all_loops(phase.items)):
            found.setdefault(name, "array_products")
    return found


class SystolicTarget(Target):
    """Arrays of cells between scratchpads that software fills."""

    groups: ClassVar[frozenset[str]] = frozenset({"mapping"})
    exact: ClassVar[str] = "operations, folds and their cycles; bytes of every tile that moves"

    def __init__(self, machine: MachineSpec) -> None:
        self.machine = machine
        self.unit = array_spec(machine)

    def reads(self, work: WorkloadSpec) -> Mapping[str, Knob]:
        return knobs(self.machine, work)

    def defaults(self, work: WorkloadSpec) -> WorkloadSpec:
        return with_tiles(self.machine, in_first_format(with_own_fields(self.machine, work), self.unit.formats))

    def ladder(self, story: str) -> tuple[Rung, ...]:
        return ladder(self.machine, story)

    def sums(self, precision: str) -> SumRule:
        """In the accumulators that the file names; those narrower than fp32 are rounded after each row of cells."""
        declared = self.unit.formats.get(precision)
        return SumRule(at_tiles=False) if declared is None else sums_in(precision, declared.accumulate, self.unit.rows)

    def prepare(self, work: WorkloadSpec, *, math: bool = True) -> Kernel:
        precision = find_datapath(work.precision).a.name
        build_chip(self.machine, precision)  # refuses a format that the array does not have
        return build_kernel(work, seed=work.seed, math=math, sums=self.sums(precision))

    def crew(self, kernel: Kernel, work: WorkloadSpec | None = None, *, seed: int = 0) -> Crew:
        return ArrayCrew(self.machine, kernel, None if work is None else work.mapping)

    def compared(self, kernel: Kernel, outcome: Outcome) -> tuple[ComparedPart, ...]:
        """Products and attention were measured; what the vector unit does alone was not."""
        families = stage_families(kernel)
        found = [(families.get(each.name, OTHER), each.elapsed_fs / FEMTOSECONDS) for each in outcome.stages]
        return tuple(ComparedPart(family, FAMILIES[family], seconds) for family, seconds in found)

    def starts(self, result: RunResult) -> Starts:
        return Starts()

    def why(self, result: RunResult) -> Why:
        return explain(self.machine, result)


TARGET = SystolicTarget
