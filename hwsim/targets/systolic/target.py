"""Systolic arrays as a target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from hwsim.engine.play import Crew
from hwsim.numerics.datapath import SumRule, find_datapath, sums_in
from hwsim.program.build import build_kernel
from hwsim.program.kernel import Kernel
from hwsim.result import RunResult
from hwsim.spec.machine import MachineSpec
from hwsim.spec.workload import WorkloadSpec
from hwsim.target import Knob, Rung, Starts, Target, Why
from hwsim.targets.knobs import in_first_format
from hwsim.targets.systolic.knobs import knobs, ladder, with_own_fields
from hwsim.targets.systolic.lower import with_tiles
from hwsim.targets.systolic.model import array_spec, build_chip
from hwsim.targets.systolic.run import ArrayCrew
from hwsim.targets.systolic.why import explain


class SystolicTarget(Target):
    """Arrays of cells between scratchpads that software fills."""

    groups: ClassVar[frozenset[str]] = frozenset({"mapping"})

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

    def starts(self, result: RunResult) -> Starts:
        return Starts()

    def why(self, result: RunResult) -> Why:
        return explain(self.machine, result)


TARGET = SystolicTarget
