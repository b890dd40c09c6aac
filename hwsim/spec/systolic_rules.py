"""Rules across the fields of a machine with a systolic array."""

from __future__ import annotations

from collections.abc import Iterator

from hwsim.spec.fields import Finding, did_you_mean
from hwsim.spec.machine import MachineSpec
from hwsim.spec.memory import CacheSpec, DramSpec, ScratchpadSpec
from hwsim.spec.number import KNOWN_FORMATS
from hwsim.spec.systolic import SystolicSpec

OPERANDS = ("input", "weight", "output")


def an_array_has_scratchpads(machine: MachineSpec) -> Iterator[Finding]:
    """Each operand needs a place next to the array, and nothing loads through caches."""
    if not _arrays(machine):
        return
    for operand in OPERANDS:
        if not any(isinstance(level, ScratchpadSpec) and operand in level.holds for level in machine.memory):
            message = f"no scratchpad holds '{operand}', which a systolic array takes from or leaves in one"
            yield Finding(("memory",), message)
    for index, level in enumerate(machine.memory):
        if isinstance(level, CacheSpec):
            message = "a systolic array has scratchpads, not caches; make this a level of kind scratchpad"
            yield Finding(("memory", index, "kind"), message)


def arrays_share_all_their_scratchpads(machine: MachineSpec) -> Iterator[Finding]:
    """Several arrays work on one tile together."""
    for _, unit in _arrays(machine):
        for index, level in enumerate(machine.memory):
            if unit.count > 1 and isinstance(level, ScratchpadSpec) and level.shared_by not in ("all", unit.count):
                message = f"{unit.count} arrays work on one tile together: write 'all', found {level.shared_by}"
                yield Finding(("memory", index, "shared_by"), message)


def activations_name_a_level(machine: MachineSpec) -> Iterator[Finding]:
    homes = [
        level.name
        for level in machine.memory
        if isinstance(level, DramSpec)
        or (isinstance(level, ScratchpadSpec) and {"input", "output"} <= set(level.holds))
    ]
    for index, unit in _arrays(machine):
        if unit.activations is not None and unit.activations not in homes:
            message = f"'{unit.activations}' is no level that holds inputs and outputs: {', '.join(homes)}"
            yield Finding(("compute", index, "activations"), message + did_you_mean(unit.activations, homes))


def array_formats_are_known(machine: MachineSpec) -> Iterator[Finding]:
    known = KNOWN_FORMATS
    for index, unit in _arrays(machine):
        for name, fmt in unit.formats.items():
            path = ("compute", index, "formats", name)
            if name not in known:
                message = f"'{name}' is not one of the number formats {', '.join(known)}"
                yield Finding(path, message + did_you_mean(name, known))
            if fmt.accumulate not in known:
                message = f"'{fmt.accumulate}' is not one of the number formats {', '.join(known)}"
                yield Finding((*path, "accumulate"), message + did_you_mean(fmt.accumulate, known))


def _arrays(machine: MachineSpec) -> list[tuple[int, SystolicSpec]]:
    return [(index, unit) for index, unit in enumerate(machine.compute) if isinstance(unit, SystolicSpec)]


SYSTOLIC_RULES = (
    an_array_has_scratchpads,
    arrays_share_all_their_scratchpads,
    activations_name_a_level,
    array_formats_are_known,
)
