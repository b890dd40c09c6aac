"""What actions cost, and what flows whether or not anything happens."""

from __future__ import annotations

from pydantic import Field

from hwsim.spec.base import Name, Spec
from hwsim.units import EnergyField, Nanometres, Watts


class PriceSpec(Spec):
    """The energy of one action, and where the number comes from."""

    energy: EnergyField = Field(description="Per action, or per bit moved.", examples=["10 pJ", "4 pJ/bit"])
    source: str = Field(description="Where the number comes from; 'assumption: …' where it is a choice.")


class StaticSpec(Spec):
    """Power that flows as long as the machine is on."""

    power: Watts = Field(description="Leakage and clock power of all instances together.")
    source: str = Field(description="Where the number comes from.")


class EnergySpec(Spec):
    """Prices for counted actions, and static power."""

    node: Nanometres = Field(description="Technology node of the prices.", examples=["45 nm"])
    actions: dict[str, PriceSpec] = Field(
        description="Price of each action of a part: `l1.read`, `core.instruction`, `core.fma.fp32`."
    )
    static: dict[Name, StaticSpec] = Field(
        {}, description="Static power by part; `machine` for what belongs to no single part."
    )
