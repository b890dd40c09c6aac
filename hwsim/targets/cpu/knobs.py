"""What a core reads of a schedule: all fields of the operation's own, and tiles by the names of its levels.

A kernel for a core has one tile in registers and one in a cache. ``tile.regs.m`` is `v1`, ``tile.l1.k`` is `tile_k`:
which cache a tile is meant for does not change the loops, only whether it fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pydantic import BaseModel

from hwsim.errors import OverrideError
from hwsim.program.kernel import Kernel
from hwsim.spec.machine import MachineSpec
from hwsim.spec.memory import RegistersSpec
from hwsim.spec.parameters import with_parameters
from hwsim.spec.workload import WorkloadSpec
from hwsim.target import Knob
from hwsim.targets.knobs import own_knobs
from hwsim.units import format_bytes

REGISTERS, CACHE = "registers", "cache"
AXES: Mapping[str, tuple[str, str]] = {
    "v1": (REGISTERS, "m"),
    "v2": (REGISTERS, "n"),
    "v3": (REGISTERS, "k"),
    "b1": (CACHE, "m"),
    "b2": (CACHE, "n"),
    "tile_k": (CACHE, "k"),
    "br": (CACHE, "queries"),
    "bc": (CACHE, "keys"),
    "block": (CACHE, "rows"),
    "rows": (CACHE, "rows"),
}
"""The level and the axis of a tile, for the fields that are the extent of one."""
LOOPS = {"tile": CACHE, "unroll": REGISTERS}
"""Fields that have an entry for each loop: `tile.h` is the extent of the cache tile along h."""

TRIES: Mapping[str, str] = {
    "tile": "8..128:x2",
    "v1": "1,2,4,6,8",
    "order": "",
    "vector": "false,true",
    "parallel": "none,rows",
    "fused": "false,true",
    "variant": "",
    "algorithm": "",
    "br": "16..128:x2",
    "bc": "16..128:x2",
    "rows": "1,4,16",
    "block": "1,8,64",
    "cutoff": "32..256:x2",
}
"""What a search tries; all that is allowed where nothing is said."""
MATMUL = ("tile", "v1", "order", "vector")
"""Of a matrix product, which has more fields than a search can go through."""


def knobs(machine: MachineSpec, work: WorkloadSpec) -> Mapping[str, Knob]:
    """All fields of the operation's schedule, with the names of the machine's levels for those that are tiles."""
    found = {}
    for name, knob in own_knobs(work).items():
        found[name] = replace(knob, also=long_names(machine, name), tries=_tries(machine, work, knob))
    return found


def long_names(machine: MachineSpec, field: str) -> tuple[str, ...]:
    """``tile.l1.m`` and ``tile.l2.m`` for `b1`, ``tile.regs.co`` for `unroll.co`."""
    head, _, loop = field.partition(".")
    kind, axis = AXES.get(field) or (LOOPS.get(head) if loop else None, loop)
    if kind == REGISTERS:
        return tuple(f"tile.{level.name}.{axis}" for level in machine.memory if isinstance(level, RegistersSpec))
    return tuple(f"tile.{cache.name}.{axis}" for cache in machine.caches) if kind == CACHE else ()


def in_own_names(machine: MachineSpec, work: WorkloadSpec) -> WorkloadSpec:
    """The workload with tiles by level put into the fields of its own schedule."""
    if not work.choices:
        return work
    fields = {name: field for field in own_knobs(work) for name in long_names(machine, field)}
    found: dict[str, object] = {}
    said: dict[str, str] = {}
    for name, value in work.choices.items():
        field = fields.get(name)
        if field is None:
            raise OverrideError(
                f"{name} means nothing on {machine.name}: see hwsim show {work.name} --on {machine.name}"
            )
        if field in found and found[field] != value:
            raise OverrideError(
                f"{name}={value}: a kernel for cores has one such tile, and {said[field]} is another one"
            )
        found[field], said[field] = value, f"{name}={value}"
    bare = type(work).model_validate(work.model_dump(exclude_unset=True, exclude={"choices"}))
    return with_parameters(bare, _without_square_tile(work, found))


def _without_square_tile(work: WorkloadSpec, found: dict[str, object]) -> dict[str, object]:
    """A square tile becomes the extents that nobody named, where others are given by axis."""
    schedule = getattr(work, "schedule", None)
    square = getattr(schedule, "tile", None)
    if not isinstance(square, int) or not {"b1", "b2", "tile_k"} & set(found):
        return found
    rest = {"b1": square, "b2": square, "tile_k": getattr(schedule, "tile_k", None) or square}
    return {**rest, **found, "tile": None}


def broken_rule(machine: MachineSpec, kernel: Kernel, work: WorkloadSpec) -> str | None:
    """The first capacity rule that a schedule breaks; None where registers and the largest cache hold its tiles."""
    registers = machine.registers
    if registers is not None and kernel.registers_needed > registers.count:
        return f"registers: {registers.name} has {registers.count}, and the register tile needs more"
    tile = getattr(getattr(work, "schedule", None), "tile", None)
    if work.op != "matmul" or not isinstance(tile, int) or not machine.caches:
        return None
    element = max(1, kernel.fmt.bits // 8)
    largest = max(machine.caches, key=lambda cache: cache.size)
    if largest.infinite or 3 * tile * tile * element <= largest.size:
        return None
    return f"tile: 3·tile² elements do not fit {largest.name} ({format_bytes(largest.size)}), the largest cache"


def _tries(machine: MachineSpec, work: WorkloadSpec, knob: Knob) -> str:
    if not isinstance(getattr(work, "schedule", None), BaseModel) or knob.name not in TRIES:
        return ""
    if work.op == "matmul" and knob.name not in MATMUL:
        return ""
    if knob.name == "vector" and getattr(machine.compute[0], "simd", None) is None:
        return ""
    if knob.name == "parallel" and sum(unit.count for unit in machine.compute) == 1:
        return ""
    if knob.name == "order":
        return "ijk,ikj" if "ikj" in knob.allowed else knob.allowed if knob.allowed.count(",") == 1 else ""
    return TRIES[knob.name] or knob.allowed
