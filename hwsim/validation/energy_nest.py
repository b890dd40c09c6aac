"""Energy by counts: mappings whose energy other programs have published, counted by hwsim and priced as they did."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

from pydantic import Field

from hwsim.hardware.loopnest import Accesses, Convention, Convolution, Flow, Role, Store, count_accesses
from hwsim.spec.base import Name, Spec
from hwsim.spec.load import load_spec_file
from hwsim.units import EnergyField, EnergyPrice
from hwsim.validation.table import shipped

Count = Annotated[int, Field(ge=1)]


class StoreSpec(Spec):
    """One level of memory of a published result."""

    name: Name = Field(description="As the other program calls it, or nearly.")
    holds: tuple[Role, ...] = Field(description="Operands that it keeps.")
    bits: Count = Field(description="Bits of a value here.")
    word: int | None = Field(None, description="Bits of an access that the prices are for; one value if not given.")
    read: EnergyField = Field(description="Of a word, or per bit.")
    write: EnergyField = Field(description="Of a word, or per bit.")
    loops: dict[str, Count] = Field({}, description="Loops that run here, from the outside in.")
    spread: dict[str, Count] = Field({}, description="Loops that are spread over the instances inside.")
    multicast: bool = Field(True, description="Whether one read serves all instances that need the same.")
    accesses: int | None = Field(None, description="Published total of values read and written.")


class PublishedSpec(Spec):
    """A mapping, its prices, and the energy that was published for it."""

    name: Name
    what: str
    source: str
    energy: EnergyField
    tolerance: float = Field(gt=0)
    sizes: dict[str, Count]
    stride: Count = 1
    steps: int | None = None
    mac: EnergyField
    first_reads: bool = False
    drains: bool = True
    stores: tuple[StoreSpec, ...]


@dataclass(frozen=True)
class Recount:
    """What hwsim counts for a published mapping."""

    published: PublishedSpec
    flow: Flow
    joules: float

    @property
    def miscounted(self) -> list[str]:
        """Levels, or steps, whose published totals are not those counted here."""
        wrong = []
        for store in self.published.stores:
            found = self.flow.total(store.name)
            if store.accesses is not None and found.reads + found.writes != store.accesses:
                wrong.append(f"{store.name}: {found.reads + found.writes:,} accesses, published {store.accesses:,}")
        if self.published.steps is not None and self.flow.steps != self.published.steps:
            wrong.append(f"{self.flow.steps:,} steps, published {self.published.steps:,}")
        return wrong


def published() -> list[PublishedSpec]:
    """All that come with hwsim, by name."""
    return [load_spec_file(PublishedSpec, path, path.name) for path in sorted(shipped("nests").glob("*.yaml"))]


def recount(spec: PublishedSpec) -> Recount:
    stores = [
        Store(
            each.name, frozenset(each.holds), tuple(each.loops.items()), tuple(each.spread.items()),
            multicast=each.multicast,
        )
        for each in spec.stores
    ]  # fmt: skip
    flow = count_accesses(Convolution(spec.sizes, spec.stride), stores, Convention(spec.first_reads, spec.drains))
    picojoules = flow.macs * spec.mac.picojoules
    for each in spec.stores:
        picojoules += _energy(each, flow.total(each.name))
    return Recount(spec, flow, float(picojoules) * 1e-12)


def _energy(store: StoreSpec, count: Accesses) -> Fraction:
    def price(energy: EnergyPrice) -> Fraction:
        if energy.per == "bit":
            return energy.picojoules * store.bits
        return energy.picojoules * Fraction(store.bits, store.word or store.bits)

    return count.reads * price(store.read) + count.writes * price(store.write)
