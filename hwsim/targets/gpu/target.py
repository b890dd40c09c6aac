"""GPUs as a target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from hwsim.engine import Crew, Outcome
from hwsim.numerics.datapath import SumRule, find_datapath
from hwsim.program.kernel import Kernel
from hwsim.program.loop_kernel import build_kernel
from hwsim.result import Counts, FormulaCheck, Intensity, RunResult
from hwsim.spec.machine import MachineSpec
from hwsim.spec.variant import with_parameters
from hwsim.spec.workload import WorkloadSpec
from hwsim.target import ComparedPart, Knob, Rung, Starts, Why, tried
from hwsim.targets.gpu.device import LAUNCH, Device
from hwsim.targets.gpu.knobs import choices_of, fuses_attention, knobs, ladder, with_epilogues
from hwsim.targets.gpu.lower import FAMILIES, Conditions
from hwsim.targets.gpu.run import GpuCrew
from hwsim.targets.gpu.why import explain


class GpuTarget:
    """Streaming multiprocessors behind an L2, and the kernels of the vendor's library."""

    groups: ClassVar[frozenset[str]] = frozenset({"threads"})
    exact: ClassVar[str] = "operations, blocks and waves"
    models: ClassVar[str] = "gpu_model"

    def __init__(self, machine: MachineSpec) -> None:
        self.machine = machine
        self.device = Device.of(machine)

    def reads(self, work: WorkloadSpec) -> Mapping[str, Knob]:
        return knobs(self.machine, work)

    def defaults(self, work: WorkloadSpec) -> WorkloadSpec:
        """As it is, but for fused attention that names no precision: the library has it on tensor cores alone."""
        halves = [name for name in ("fp16", "bf16") if name in self.device.sm.tensor]
        if "precision" in work.model_fields_set or not halves or not fuses_attention(work):
            return work
        return with_parameters(work, {"precision": halves[0]})

    def space(self, work: WorkloadSpec) -> Mapping[str, str]:
        return tried(self.reads(work))

    def misfit(self, kernel: Kernel, work: WorkloadSpec) -> str | None:
        """What does not fit is refused when it is laid out."""
        return None

    def ladder(self, story: str) -> tuple[Rung, ...]:
        return ladder(self.machine, story)

    def sums(self, precision: str) -> SumRule:
        return self.device.sums(precision)

    def prepare(self, work: WorkloadSpec, *, math: bool = True) -> Kernel:
        precision = find_datapath(work.precision).a.name
        self.device.unit_for(precision)  # refuses a format that it does not have
        work = with_epilogues(work, self.device.sm.library.epilogues)
        return build_kernel(work, seed=work.seed, math=math, sums=self.sums(precision))

    def crew(
        self,
        kernel: Kernel,
        work: WorkloadSpec | None = None,
        *,
        seed: int = 0,
        conditions: Conditions | None = None,
        choices: Mapping[str, int] | None = None,
    ) -> GpuCrew:
        """Under other `conditions` than those of a run: as something was measured."""
        if choices is None and work is not None:
            choices = choices_of(self.machine, work)
        return GpuCrew(self.device, kernel, None if work is None else work.threads, choices, conditions)

    def estimate(self, kernel: Kernel, work: WorkloadSpec) -> Crew | None:
        return None

    def formulas(
        self, kernel: Kernel, outcome: Outcome, memory: Mapping[str, Counts], intensity: Intensity
    ) -> tuple[FormulaCheck, ...]:
        """The formulas of the course are for loops on a core."""
        return ()

    def compared(self, kernel: Kernel, outcome: Outcome) -> tuple[ComparedPart, ...]:
        """Each launch, in the family that its lowering names."""
        return tuple(
            ComparedPart(each["family"], FAMILIES[each["family"]], each["seconds"], power="gpu_power")
            for each in outcome.use["gpu"]["launches"]
        )

    def starts(self, result: RunResult) -> Starts:
        """The first from the host, those that follow it as parts of a graph."""
        each, host = self.device.launch_seconds("graph"), self.device.launch_seconds("stream")
        cycles = sum(parts["waiting"].get(LAUNCH, 0) for parts in result.attribution.values())
        taken = cycles / self.device.clock_hz
        following = self.device.launch_seconds("following")
        kernels = 1 + round((taken - host) / following) if following else len(result.work.use["gpu"]["launches"])
        return Starts(max(1, kernels), taken, each, host, LAUNCH)

    def why(self, result: RunResult) -> Why:
        return explain(self.machine, result)


TARGET = GpuTarget
