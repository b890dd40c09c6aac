"""A whole machine, as one YAML file describes it: compute units, clocks, memory levels, and what actions cost.

Each class of machines brings its own spec of a compute unit, which is found by the unit's `kind`. A class is a folder
of `hwsim.targets`; what is in it is imported when a file names it, and no sooner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, SerializeAsAny, ValidationInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from hwsim.spec.base import Name, Sourced, Spec
from hwsim.spec.memory import CacheSpec, DramSpec, LevelSpec, RegistersSpec, ScratchpadSpec
from hwsim.units import EnergyField, Frequency, Nanometres, Watts

KINDS = ("cpu", "gpu", "grid", "pim", "systolic")
"""The classes of machines: to add one, add its folder to `hwsim/targets` and its name here."""


class UnitSpec(Sourced):
    """What all compute units have in common."""

    kind: str = Field(description="The class of machines that it belongs to.")
    name: Name = Field(description="How paths and counters call one unit.")

    if TYPE_CHECKING:  # declared by each class, at its own place

        @property
        def count(self) -> int: ...

        @property
        def clock(self) -> str | None: ...


def unit_spec(kind: str) -> type[UnitSpec]:
    """The spec of a class of machines."""
    found: type[UnitSpec] = import_module(f"hwsim.targets.{kind}.spec").UNIT
    return found


def class_rules(kind: str) -> Sequence[Callable[[Any], Iterator[Any]]]:
    """What has to hold between the parts of a machine of a class."""
    found: Sequence[Callable[[Any], Iterator[Any]]] = getattr(import_module(f"hwsim.targets.{kind}.spec"), "RULES", ())
    return found


class ByKind:
    """A unit is checked by the spec that its `kind` names."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(_check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        units = {kind: unit_spec(kind).__pydantic_core_schema__ for kind in KINDS}
        return handler(core_schema.tagged_union_schema(units, discriminator="kind"))


def _check(value: Any, info: ValidationInfo) -> UnitSpec:
    if isinstance(value, UnitSpec):
        return value
    if not isinstance(value, dict):
        raise PydanticCustomError("model_type", "Input should be a valid dictionary")
    kind = value.get("kind")
    if kind is None:
        raise PydanticCustomError("union_tag_not_found", "Unable to extract tag")
    if kind not in KINDS:
        known = ", ".join(f"'{name}'" for name in KINDS)
        raise PydanticCustomError("union_tag_invalid", "Unknown kind", {"tag": str(kind), "expected_tags": known})
    strict = (info.context or {}).get("strict")
    return unit_spec(kind).model_validate(value, strict=strict, context=info.context)


ComputeSpec = Annotated[SerializeAsAny[UnitSpec], ByKind()]


class PriceSpec(Spec):
    """The energy of one action, and where the number comes from."""

    energy: EnergyField = Field(description="Per action, or per bit moved.", examples=["10 pJ", "4 pJ/bit"])
    controller: EnergyField | None = Field(
        None,
        description="For main memory: what its controller and pins add to each action, shown apart; contained in "
        "`energy` if not given.",
    )
    control: EnergyField | None = Field(
        None,
        description="For arithmetic on a machine whose instructions are not counted by themselves: what fetching, "
        "decoding and issuing them adds to each action, put down to control; contained in `energy` if not given.",
    )
    source: str = Field(description="Where the number comes from; 'assumption: …' where it is a choice.")


class StaticSpec(Spec):
    """Power that flows as long as the machine is on."""

    power: Watts = Field(description="Leakage and clock power of all instances together.")
    clock: Watts | None = Field(
        None,
        description="Of the clock tree alone, at the clock of this file, if it is known apart: it comes on top of "
        "`power`, and falls when the clock is lowered.",
    )
    source: str = Field(description="Where the number comes from.")


class LimitSpec(Spec):
    """Power that must not be exceeded for long."""

    power: Watts = Field(description="Average power of a run; above it the clocks of the compute units are lowered.")
    source: str = Field(description="Where the number comes from.")


class EnergySpec(Spec):
    """Prices for counted actions, and static power."""

    node: Nanometres = Field(
        description="Technology node of the prices.",
        examples=["45 nm"],
        json_schema_extra={"descriptive": "what the prices are for: a table of prices for another node is refused"},
    )
    table: Name | None = Field(
        None,
        description="An energy table, found by its name in machines/energy: it prices what `actions` does not. Its "
        "node has to be the machine's.",
        examples=["cmos_45nm"],
    )
    instruction: Name | None = Field(
        None, description="Which of the table's instructions the cores issue.", examples=["in_order"]
    )
    dram: Name | None = Field(
        None, description="Which of the kinds of memory in the table `dram` main memory is.", examples=["ddr4"]
    )
    tdp: LimitSpec | None = Field(None, description="Power limit of the data sheet; no limit if not given.")
    actions: dict[str, PriceSpec] = Field(
        {}, description="Price of each action of a part: `l1.read`, `core.instruction`, `core.fma.fp32`."
    )
    static: dict[Name, StaticSpec] = Field(
        {}, description="Static power by part; `machine` for what belongs to no single part."
    )


class ClockSpec(Sourced):
    """A clock domain."""

    name: Name = Field(description="How levels and units refer to this clock.", examples=["core"])
    frequency: Frequency = Field(description="Frequency that can be sustained.", examples=["2 GHz"])


class MachineSpec(Spec):
    """A machine: clocks, compute units, memory levels from the compute unit outwards, energy."""

    format: Literal[1] = Field(description="Version of this file format.")
    name: Name = Field(description="What the machine is called; the file has the same name.")
    description: str = Field(description="One or two sentences for people.")
    clocks: tuple[ClockSpec, ...] = Field(
        min_length=1, max_length=64, description="Clock domains; the first is the default."
    )
    compute: tuple[ComputeSpec, ...] = Field(min_length=1, max_length=64, description="Compute units.")
    memory: tuple[LevelSpec, ...] = Field(
        min_length=1, max_length=16, description="Memory levels, from the compute unit outwards."
    )
    energy: EnergySpec | None = Field(None, description="Energy prices; without them no energy is reported.")

    @property
    def caches(self) -> tuple[CacheSpec, ...]:
        return tuple(level for level in self.memory if isinstance(level, CacheSpec))

    @property
    def scratchpads(self) -> tuple[ScratchpadSpec, ...]:
        return tuple(level for level in self.memory if isinstance(level, ScratchpadSpec))

    @property
    def registers(self) -> RegistersSpec | None:
        return next((level for level in self.memory if isinstance(level, RegistersSpec)), None)

    @property
    def dram(self) -> DramSpec:
        """Main memory: every machine has one."""
        return next(level for level in self.memory if isinstance(level, DramSpec))

    @property
    def kind(self) -> str:
        """The class of machines that it belongs to: that of its first unit."""
        return self.compute[0].kind

    def clock_hz(self, name: str | None) -> int:
        """The frequency of a clock domain; the first one where a part names none."""
        return next(clock.frequency for clock in self.clocks if name is None or clock.name == name)

    def level(self, name: str) -> LevelSpec:
        return next(level for level in self.memory if level.name == name)
