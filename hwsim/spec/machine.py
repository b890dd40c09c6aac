"""A whole machine, as one YAML file describes it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hwsim.errors import InputError
from hwsim.spec.base import Name, Sourced, Spec
from hwsim.spec.compute import ComputeSpec, CpuSpec
from hwsim.spec.energy import EnergySpec
from hwsim.spec.memory import CacheSpec, LevelSpec
from hwsim.units import Frequency


class ClockSpec(Sourced):
    """A clock domain."""

    name: Name = Field(description="How levels and units refer to this clock.", examples=["core"])
    frequency: Frequency = Field(description="Frequency that can be sustained.", examples=["2 GHz"])


class MachineSpec(Spec):
    """A machine: clocks, compute units, memory levels from the compute unit outwards, energy."""

    format: Literal[1] = Field(description="Version of this file format.")
    name: Name = Field(description="What the machine is called; the file has the same name.")
    description: str = Field(description="One or two sentences for people.")
    clocks: tuple[ClockSpec, ...] = Field(min_length=1, description="Clock domains; the first is the default.")
    compute: tuple[ComputeSpec, ...] = Field(min_length=1, description="Compute units.")
    memory: tuple[LevelSpec, ...] = Field(min_length=1, description="Memory levels, from the compute unit outwards.")
    energy: EnergySpec | None = Field(None, description="Energy prices; without them no energy is reported.")

    @property
    def caches(self) -> tuple[CacheSpec, ...]:
        return tuple(level for level in self.memory if isinstance(level, CacheSpec))

    @property
    def cpu(self) -> CpuSpec:
        """The first unit, where only a CPU core will do."""
        unit = self.compute[0]
        if not isinstance(unit, CpuSpec):
            raise InputError(
                f"machine {self.name} has no CPU core to run a kernel on: its {unit.name} is a {unit.kind}"
            )
        return unit

    def clock_hz(self, name: str | None) -> int:
        """The frequency of a clock domain; the first one where a part names none."""
        return next(clock.frequency for clock in self.clocks if name is None or clock.name == name)

    def level(self, name: str) -> LevelSpec:
        return next(level for level in self.memory if level.name == name)
