"""Processing in memory as a target, and what units at banks read of a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from hwsim.engine.play import Crew
from hwsim.numerics.datapath import SumRule, find_datapath
from hwsim.program.kernel import Kernel
from hwsim.program.operator import build_kernel
from hwsim.result import RunResult
from hwsim.spec.machine import MachineSpec
from hwsim.spec.workload import WorkloadSpec
from hwsim.target import Knob, Starts, Target, Why
from hwsim.targets.knobs import algorithm_knobs, by_name, has_products, in_first_format
from hwsim.targets.pim.lower import FIRST, SECOND
from hwsim.targets.pim.model import Banks
from hwsim.targets.pim.run import BankCrew
from hwsim.targets.pim.why import explain


def knobs(work: WorkloadSpec) -> Mapping[str, Knob]:
    """The operations themselves, and the operand that stays."""
    found = dict(algorithm_knobs(work, frozenset({"softmax"})))
    if has_products(work):
        meaning = "Which operand of a product stays in the banks: ws the second, is the first."
        flows = f"{SECOND},{FIRST}"
        found |= by_name(Knob("dataflow", meaning, "auto", flows, tries=flows))
    return found


class PimTarget(Target):
    """Vector units at DRAM banks."""

    groups: ClassVar[frozenset[str]] = frozenset({"mapping"})
    exact: ClassVar[str] = "operations, commands to the banks and bytes"

    def __init__(self, machine: MachineSpec) -> None:
        self.machine = machine
        self.banks = Banks.of(machine)

    def reads(self, work: WorkloadSpec) -> Mapping[str, Knob]:
        return knobs(work)

    def defaults(self, work: WorkloadSpec) -> WorkloadSpec:
        return in_first_format(work, self.banks.unit.formats)

    def sums(self, precision: str) -> SumRule:
        declared = self.banks.unit.formats.get(precision)
        return SumRule(None if declared is None else declared.accumulate)

    def prepare(self, work: WorkloadSpec, *, math: bool = True) -> Kernel:
        Banks.of(self.machine, find_datapath(work.precision).a.name)  # refuses a format that the units do not have
        return build_kernel(work, seed=work.seed, math=math, sums=SumRule(at_tiles=False))

    def crew(self, kernel: Kernel, work: WorkloadSpec | None = None, *, seed: int = 0) -> Crew:
        flow = None if work is None else work.choices.get("dataflow")
        return BankCrew(self.machine, kernel, None if flow is None else str(flow))

    def starts(self, result: RunResult) -> Starts:
        return Starts()

    def why(self, result: RunResult) -> Why:
        return explain(self.machine, result)


TARGET = PimTarget
