"""What a system file may say: devices, the links between them, and the libraries that move data over those links.

What an engine file may say: how an engine batches requests, keeps keys and values, and what its host costs.

Systems and engines by name: a file of `systems/` or `engines/`, or `8xh100`, so many of a machine where a stock
system has them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from hwsim.catalog import SO_MANY, Kind, expand, find, is_file, is_path, load_machine, machine_names, names, shown
from hwsim.errors import CatalogError
from hwsim.spec.base import BandwidthField, LatencyField, Name, Spec
from hwsim.spec.document import read_document
from hwsim.spec.fields import did_you_mean
from hwsim.spec.load import load_spec_file
from hwsim.spec.machine import MachineSpec
from hwsim.units import Latency

FEMTOSECONDS = 10**15


class Timed:
    """What was played, and took so long."""

    elapsed_fs: int

    @property
    def seconds(self) -> float:
        return self.elapsed_fs / FEMTOSECONDS


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


class HostCostSpec(Spec):
    """What the host does for each step, beside the devices."""

    step: Duration = Field(description="Scheduling, launching and sampling of one step.")
    request: Duration = Field(description="For each request of the step, on top.")
    overlap: bool = Field(
        description="Whether the host prepares the next step while the devices work: then a step takes the longer of "
        "both, otherwise their sum."
    )
    arrival: Duration | None = Field(
        None,
        description="Between a request that is sent and its place in the queue: received, turned into tokens.",
    )
    token: Duration | None = Field(
        None,
        description="For each token that is given out, in a process of its own (turned into text, sent): tokens wait "
        "in line where steps make them faster.",
    )
    source: Source | dict[str, str] = Field(description="Where the numbers come from; fitted ones say on what.")


class EngineSpec(Spec):
    """A serving engine."""

    format: Literal[1] = Field(description="Version of this file format.")
    name: Name = Field(description="What the engine is called; the file has the same name.")
    description: str = Field(description="One or two sentences for people.")
    tokens: int = Field(ge=1, le=1 << 20, description="Token budget of a step: decoding requests count one each.")
    requests: int = Field(ge=1, le=1 << 20, description="Requests that are in the batch at most.")
    block: int = Field(ge=1, le=4096, description="Tokens in one block of keys and values.")
    memory: float = Field(gt=0, le=1, description="Share of a device's memory for weights, keys and values.")
    chunked: bool = Field(description="Whether a prompt may be read in pieces, as far as the token budget allows.")
    mixed: bool = Field(
        description="Whether prompts and decoding share a step; otherwise prompts go first, and decoding waits."
    )
    library: Name = Field(description="Library of the system for all-reduces of a step; the system's first if unknown.")
    host: HostCostSpec = Field(description="Cost of the host.")
    source: Source | dict[str, str] = Field(description="Where budget, limits and policies come from.")


def load_system(name: str) -> SystemSpec:
    """A system by name or path, as `8xh100`, or a machine alone; raises CatalogError with what there is."""
    match = SO_MANY.fullmatch(name)
    if match is not None:
        return so_many(int(match["count"]), match["machine"], name)
    if not is_path(name) and name not in names("system") and name in machine_names():
        return alone(name)
    return load_system_file(find("system", name))


def described_kind(name: str) -> Kind | None:
    """Whether a word means a system or an engine; None where it means anything else."""
    if is_path(name):
        path = expand(name)
        if not is_file(path) or path.suffix not in (".yaml", ".yml"):
            return None
        fields = read_document(path, shown(path))[0].fields
        return "system" if "devices" in fields else "engine" if "chunked" in fields else None
    if is_system(name):
        return "system"
    return "engine" if name in names("engine") and name not in machine_names() else None


def load_described(kind: Kind, name: str) -> SystemSpec | EngineSpec:
    """A system or an engine, by name or path."""
    return load_system(name) if kind == "system" else load_engine(name)


def load_engine(name: str) -> EngineSpec:
    """An engine file of `engines/`; raises CatalogError with what there is."""
    path = find("engine", name)
    return load_spec_file(EngineSpec, path, shown(path))


def is_system(name: str) -> bool:
    """Whether a word of a command line means a system rather than a machine."""
    if is_path(name):
        return described_kind(name) == "system"
    return SO_MANY.fullmatch(name) is not None or (name in system_names() and name not in machine_names())


def load_system_file(path: Path) -> SystemSpec:
    return load_spec_file(SystemSpec, path, shown(path))


def device_of(system: SystemSpec) -> MachineSpec:
    """The machine that each device of a system is; raises CatalogError where there is no such machine yet."""
    if system.machine not in machine_names():
        raise CatalogError(
            f"{system.name} joins {system.machine}, and there is no machine of that name: hwsim collective needs none, "
            f"but a model does; describe it in machines/{system.machine}.yaml"
        )
    return load_machine(system.machine).spec


def system_names() -> tuple[str, ...]:
    """The names of all systems that can be found from this folder, in alphabetical order."""
    return names("system")


def joins(machine: str, count: int) -> bool:
    """Whether some system has so many of a machine."""
    try:
        so_many(count, machine, machine)
    except CatalogError:
        return False
    return True


def so_many(count: int, machine: str, name: str) -> SystemSpec:
    """So many devices, joined as in the smallest system that has as many of them."""
    if not 1 <= count <= MOST_DEVICES:
        raise CatalogError(f"{name}: from 1 to {MOST_DEVICES} devices")
    known = [load_system_file(find("system", each)) for each in system_names()]
    same = [each for each in known if machine in (each.machine, *each.like)]
    if not same:
        if count == 1 and machine in machine_names():
            return alone(machine)
        machines = sorted({one for each in known for one in (each.machine, *each.like)})
        raise CatalogError(
            f"{name}: no system joins {machine}{did_you_mean(machine, machines)}; there are systems of "
            f"{', '.join(machines)}. Describe yours in systems/NAME.yaml (hwsim show dgx_h100 --resolved is a start)"
        )
    large = [each for each in same if each.count >= count]
    if not large:
        most = max(same, key=lambda each: each.count)
        raise CatalogError(f"{name}: the largest system of {machine} is {most.name}, with {most.count} devices")
    found = min(large, key=lambda each: (each.count, each.name))
    if count > found.node_size and count % found.node_size:
        raise CatalogError(f"{name}: {found.name} has nodes of {found.node_size}; take all devices of each node")
    several = count > found.node_size
    return found.model_copy(
        update={
            "devices": f"{count} x {machine}",
            "node": found.node if several else None,
            "between": found.between if several else None,
        }
    )


def alone(machine: str) -> SystemSpec:
    """One device by itself: a system that has nobody to talk to."""
    nobody = "one device has no link"
    return SystemSpec.model_validate(
        {
            "format": 1,
            "name": machine,
            "description": f"One {machine}.",
            "devices": f"1 x {machine}",
            "inside": {"topology": "switch", "bandwidth": "inf", "source": nobody},
            "libraries": {
                "none": {
                    "kernels": (
                        {"algorithm": "direct", "ops": ("send",), "start": "0 s", "step": "0 s", "share": 1.0},
                    ),
                    "source": nobody,
                }
            },
        }
    )
