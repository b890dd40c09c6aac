"""Systems and engines by name: a file of `systems/` or `engines/`, or `8xh100`, so many of a machine where a stock
system has them."""

from __future__ import annotations

import re
from pathlib import Path

from hwsim.catalog import Kind, expand, find, is_file, is_path, load_machine, machine_names, names, shown
from hwsim.errors import CatalogError
from hwsim.spec.document import read_document
from hwsim.spec.fields import did_you_mean
from hwsim.spec.load import load_spec_file
from hwsim.spec.machine import MachineSpec
from hwsim.systems.engine_spec import EngineSpec
from hwsim.systems.spec import MOST_DEVICES, SystemSpec

_SO_MANY = re.compile(r"(?P<count>\d{1,6})[x×](?P<machine>[a-z][a-z0-9_]*)")


def load_system(name: str) -> SystemSpec:
    """A system by name or path, as `8xh100`, or a machine alone; raises CatalogError with what there is."""
    match = _SO_MANY.fullmatch(name)
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
    return _SO_MANY.fullmatch(name) is not None or (name in system_names() and name not in machine_names())


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
