"""Systolic arrays as a target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from hwsim.engine.outcome import FEMTOSECONDS, Outcome
from hwsim.engine.play import Crew
from hwsim.numerics.datapath import SumRule, find_datapath, sums_in
from hwsim.program.contraction import gemm_view
from hwsim.program.kernel import Kernel
from hwsim.program.loop_kernel import LoopKernel
from hwsim.program.loops import all_loops
from hwsim.program.operator import build_kernel
from hwsim.result import RunResult
from hwsim.spec.machine import MachineSpec
from hwsim.spec.workload import WorkloadSpec
from hwsim.target import ComparedPart, Knob, Rung, Starts, Target, Why
from hwsim.targets.knobs import in_first_format
from hwsim.targets.systolic.knobs import knobs, ladder, with_own_fields
from hwsim.targets.systolic.lower import with_tiles
from hwsim.targets.systolic.model import array_spec, build_chip
from hwsim.targets.systolic.run import ArrayCrew
from hwsim.targets.systolic.why import explain

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
