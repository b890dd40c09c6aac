"""What actions cost, and what flows whether or not anything happens."""

from __future__ import annotations

from pydantic import Field

from hwsim.spec.base import Name, Spec
from hwsim.units import EnergyField, Nanometres, Watts


class PriceSpec(Spec):
    """The energy of one action, and where the number comes from."""

    energy: EnergyField = Field(description="Per action, or per bit moved.", examples=["10 pJ", "4 pJ/bit"])
    controller: EnergyField | None = Field(
        None,
        description="For main memory: what its controller and pins add to each action, shown apart; contained in "
        "`energy` if not given.",
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

    node: Nanometres = Field(description="Technology node of the prices.", examples=["45 nm"])
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
