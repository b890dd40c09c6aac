"""What a system file may say: devices, the links between them, and the libraries that move data over those links."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from hwsim.spec.base import Name, Spec
from hwsim.units import BandwidthField, Latency, LatencyField

FEMTOSECONDS = 10**15
MOST_DEVICES = 4096
"""More would be simulated for longer than anybody waits: every device of a collective is an agent."""

Operation = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send"]
Algorithm = Literal["one_shot", "two_shot", "ring", "tree", "direct", "switch", "hierarchical"]

_DEVICES = re.compile(r"(?P<count>\d{1,6})\s*[x×]\s*(?P<machine>[a-z][a-z0-9_]*)")


def _in_seconds(value: Latency) -> Latency:
    if value.unit == "cycles":
        raise ValueError("a link has no clock: write the time in ns, us or ms")
    return value


Duration = Annotated[LatencyField, AfterValidator(_in_seconds)]
Source = Annotated[str, StringConstraints(min_length=1)]


class SharedSpec(Spec):
    """What a bus gives to so many devices."""

    devices: int = Field(ge=2, le=MOST_DEVICES, description="Devices that take part.")
    bandwidth: BandwidthField = Field(description="All their transfers together.")


class LinkSpec(Spec):
    """One class of links: inside a node, or between nodes."""

    topology: Literal["switch", "ring", "tree", "bus"] = Field(
        description="switch: any device to any other at full rate. ring: each device to its two neighbours. tree: "
        "groups of devices behind a shared uplink. bus: all transfers share one medium, as a host bridge or a radio is."
    )
    bandwidth: BandwidthField = Field(
        description="Of one device's port in each direction; in a ring, of each of its two links."
    )
    shared: tuple[SharedSpec, ...] = Field(
        (),
        description="bus: what all transfers together get, by the number of devices that take part; between two "
        "numbers the next larger one counts.",
    )
    group: int | None = Field(None, ge=1, le=MOST_DEVICES, description="tree: devices behind one uplink.")
    uplink: BandwidthField | None = Field(None, description="tree: bandwidth of an uplink, in each direction.")
    step: Duration | None = Field(
        None, description="Between nodes: time of one message beside its bytes. Inside, the library has its own."
    )
    source: Source | dict[str, str] = Field(description="Where the numbers come from.")

    @model_validator(mode="after")
    def _has_what_its_topology_needs(self) -> Self:
        if (self.topology == "tree") != (self.group is not None and self.uplink is not None):
            raise ValueError("a tree has `group` and `uplink`, and nothing else has them")
        if (self.topology == "bus") != bool(self.shared):
            raise ValueError("a bus says with `shared` what all transfers together get, and nothing else does")
        return self


class KernelSpec(Spec):
    """One way in which a library moves data: an algorithm in a protocol, with its three constants."""

    algorithm: Algorithm = Field(
        description="one_shot: everybody reads everything. two_shot: a part each is reduced, then read by all. ring, "
        "tree: as the words say. direct: everybody to everybody, its own part each. switch: the switch adds and "
        "copies. hierarchical: reduced inside nodes, then between them, then spread inside."
    )
    protocol: Name | None = Field(None, description="What tells two kernels of one algorithm apart.")
    ops: tuple[Operation, ...] = Field(min_length=1, description="Collectives that it is used for.")
    start: Duration = Field(description="Before the first byte moves: launch, and everybody's arrival.")
    step: Duration = Field(description="Of each message that a device sends, beside its bytes.")
    share: float = Field(gt=0, le=1.5, description="Of the link's bandwidth that reaches the data.")
    least_devices: int = Field(2, ge=2, description="Used from so many devices on.")
    refuses: tuple[str, ...] = Field((), description="Number formats that it cannot add up.")

    @property
    def name(self) -> str:
        return self.algorithm if self.protocol is None else f"{self.algorithm}, {self.protocol.replace('_', ' ')}"


class CollectiveLibrarySpec(Spec):
    """The kernels of one library; which one runs is decided by size and topology: the fastest."""

    kernels: tuple[KernelSpec, ...] = Field((), description="Its own kernels.")
    host: Duration | None = Field(
        None, description="What the host takes to start one; it is the time where the devices are faster."
    )
    beside: Name | None = Field(None, description="Another library whose kernels it uses, too, where they are faster.")
    source: Source | dict[str, str] = Field(description="Where the constants come from; fitted ones say on what.")


class HostSpec(Spec):
    """The computer that feeds the devices: P8 of the mission."""

    machine: Name | None = Field(None, description="Which machine it is, where it computes, too: `zen4`.")
    bandwidth: BandwidthField = Field(description="From the host to one device, and back.")
    start: Duration = Field(description="Of one copy.")
    shared_by: int = Field(1, ge=1, le=MOST_DEVICES, description="Devices that share one such link.")
    source: Source | dict[str, str] = Field(description="Where the numbers come from.")


class SystemSpec(Spec):
    """Devices and what joins them."""

    format: Literal[1] = Field(description="Version of this file format.")
    name: Name = Field(description="What the system is called; the file has the same name.")
    description: str = Field(description="One or two sentences for people.")
    devices: str = Field(description="How many of which machine: `8 x h100`.", examples=["8 x h100"])
    like: tuple[Name, ...] = Field((), description="Machines that may stand in the same places: `8xa100_40`.")
    node: int | None = Field(None, ge=1, description="Devices of one node; all of them if not given.")
    inside: LinkSpec = Field(description="Links inside a node.")
    between: LinkSpec | None = Field(None, description="Links between nodes.")
    host: HostSpec | None = Field(None, description="The link to the host's memory.")
    libraries: dict[Name, CollectiveLibrarySpec] = Field(
        min_length=1, description="Libraries for collectives; the first is used where nobody names one."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        match = _DEVICES.fullmatch(self.devices.strip())
        if match is None:
            raise ValueError(f"devices: '{self.devices}' is not so many of a machine; write it as '8 x h100'")
        if not 1 <= int(match["count"]) <= MOST_DEVICES:
            raise ValueError(f"devices: {match['count']} is not from 1 to {MOST_DEVICES}")
        node = self.node or self.count
        if self.count % node:
            raise ValueError(f"node: {self.count} devices are not a whole number of nodes of {node}")
        if (node < self.count) != (self.between is not None):
            raise ValueError(
                "`between` is for systems of several nodes, and they need it: node is smaller than devices"
            )
        if self.between is not None and self.between.step is None:
            raise ValueError("between: `step` is missing, the time of a message between nodes")
        for name, library in self.libraries.items():
            if library.beside is not None and library.beside not in self.libraries:
                raise ValueError(f"libraries: {name} names '{library.beside}', which is not there")
            if not library.kernels and library.beside is None:
                raise ValueError(f"libraries: {name} has no kernels")
        return self

    @property
    def count(self) -> int:
        match = _DEVICES.fullmatch(self.devices.strip())
        assert match is not None
        return int(match["count"])

    @property
    def machine(self) -> str:
        """The name of the machine that each device is."""
        match = _DEVICES.fullmatch(self.devices.strip())
        assert match is not None
        return match["machine"]

    @property
    def node_size(self) -> int:
        return self.node or self.count

    def kernels(self, library: str) -> tuple[KernelSpec, ...]:
        """All kernels that a library may use, its own first."""
        found = self.libraries[library]
        return found.kernels + (self.kernels(found.beside) if found.beside is not None else ())


def as_femtoseconds(value: Latency | None) -> int:
    """A time of a file, exactly; nothing is no time."""
    return 0 if value is None else round(value.amount * FEMTOSECONDS)


def as_rate(link: LinkSpec) -> Fraction | None:
    """Bytes per second of a port; None without a limit."""
    return link.bandwidth.amount
