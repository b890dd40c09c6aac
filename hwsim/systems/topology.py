"""Topology: which links lie between two devices of a system, and how fast each of them is.

A link is named and has one direction: `h100[0] out`, `h100[3] in`, `bus`, `uplink[1] out`. A message holds all links of
its path at once and is through when the slowest of them is, as cut-through routing has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

from hwsim.systems.spec import LinkSpec, SystemSpec, as_femtoseconds

Path = tuple[str, ...]


@dataclass(frozen=True)
class LinkTopology:
    """The devices that take part, by their numbers, and the links between them."""

    system: SystemSpec
    members: tuple[int, ...]

    @classmethod
    def of(cls, system: SystemSpec, members: Sequence[int] | None = None) -> LinkTopology:
        return cls(system, tuple(range(system.count)) if members is None else tuple(members))

    def node_of(self, device: int) -> int:
        return device // self.system.node_size

    @property
    def nodes(self) -> int:
        """Nodes that the members lie in."""
        return len({self.node_of(device) for device in self.members})

    def crosses(self, source: int, target: int) -> bool:
        """Whether a message leaves its node."""
        return self.node_of(source) != self.node_of(target)

    def path(self, source: int, target: int) -> Path:
        """The links that a message takes, in its direction."""
        if self.crosses(source, target):
            assert self.system.between is not None
            return self._way(self.system.between, source, target, "net ", 0, self.system.count)
        first = self.node_of(source) * self.system.node_size
        return self._way(self.system.inside, source, target, "", first, self.system.node_size)

    def _way(self, link: LinkSpec, source: int, target: int, prefix: str, first: int, count: int) -> Path:
        ends = (f"{prefix}{self._name(source)} out", f"{prefix}{self._name(target)} in")
        if link.topology == "bus":
            return (ends[0], f"{prefix}bus[{self.node_of(source)}]", ends[1])
        if link.topology == "tree":
            assert link.group is not None
            here, there = (source - first) // link.group, (target - first) // link.group
            up = (f"{prefix}uplink[{here}] out", f"{prefix}uplink[{there}] in") if here != there else ()
            return (ends[0], *up, ends[1])
        if link.topology == "ring":
            return self._around(source, target, prefix, first, count)
        return ends

    def _around(self, source: int, target: int, prefix: str, first: int, count: int) -> Path:
        """The shorter way round; to the right where both are equal."""
        right, left = (target - source) % count, (source - target) % count
        turn = 1 if right <= left else -1
        hops = [first + (source - first + turn * hop) % count for hop in range(min(right, left) + 1)]
        return tuple(f"{prefix}{self._name(a)}→{self._name(b)}" for a, b in pairwise(hops))

    def _name(self, device: int) -> str:
        return f"{self.system.machine}[{device}]"

    def rate(self, link: str) -> Fraction | None:
        """Bytes per second of a link; None without a limit."""
        spec = self.system.between if link.startswith("net ") else self.system.inside
        assert spec is not None
        word = link.removeprefix("net ")
        if word.startswith("uplink["):
            assert spec.uplink is not None
            return spec.uplink.amount
        return self._bus_rate if word.startswith("bus[") else spec.bandwidth.amount

    @cached_property
    def _bus_rate(self) -> Fraction | None:
        """What a bus gives to as many as take part in a node: that of the next larger number that is known."""
        taking_part = max(Counter(map(self.node_of, self.members)).values())
        known = sorted(self.system.inside.shared, key=lambda each: each.devices)
        return next((each for each in known if each.devices >= taking_part), known[-1]).bandwidth.amount

    def step_fs(self, source: int, target: int, inside_fs: int) -> int:
        """The time of a message beside its bytes."""
        if not self.crosses(source, target):
            return inside_fs
        assert self.system.between is not None
        return as_femtoseconds(self.system.between.step)
