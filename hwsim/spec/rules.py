"""Rules across fields of a machine: what each field alone cannot tell. One small function for each rule.

A rule yields what it found wrong. Rules of a level look at that level alone, and also run while another part
of the file is still broken; rules of a machine need all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import pairwise

from hwsim.spec.fields import Finding, did_you_mean
from hwsim.spec.machine import CacheSpec, DramSpec, Level, MachineSpec, RegistersSpec, StorageSpec, class_rules
from hwsim.units import INFINITE_BYTES, format_bytes, plain

RESERVED_NAMES = frozenset(
    ("format", "name", "description", "extends", "clock", "clocks", "compute", "memory", "energy", "machine")
)
"""Words that already begin a path or an energy key, so that no part may have them as its name."""

WHOLE_MACHINE = "machine"
"""The key for static power that belongs to no single part: I/O, clock distribution, voltage regulators."""

MOST_ROW_BYTES = 1 << 30
MOST_BANKS = 1 << 20
MOST_LINES = 1 << 27
"""Of all caches together: each line has a few bytes of state."""

_ADDRESS_PARTS = ("row", "rank", "bank", "column", "channel")


def check_level(level: Level, index: int) -> Iterator[Finding]:
    """What is wrong with one level by itself."""
    for kind, rule in LEVEL_RULES:
        if isinstance(level, kind):
            for field, message in rule(level):
                yield Finding(("memory", index, *field.split(".")), message)


def check_machine(machine: MachineSpec) -> Iterator[Finding]:
    """What is wrong between the parts of a machine."""
    for rule in MACHINE_RULES:
        yield from rule(machine)
    for kind in dict.fromkeys(unit.kind for unit in machine.compute):
        for rule in class_rules(kind):
            yield from rule(machine)


# Rules of a level: (field, message)

Found = Iterator[tuple[str, str]]


def _line_is_a_power_of_two(cache: CacheSpec) -> Found:
    if not _usable_line(cache.line):
        yield "line", f"{format_bytes(cache.line)} is not a power of two from 4 B to 4 KiB"


def _size_is_whole_sets(cache: CacheSpec) -> Found:
    if cache.infinite or not _usable_line(cache.line):
        return
    if cache.ways == "full":
        step, what = cache.line, f"whole lines of {format_bytes(cache.line)}"
    else:
        step, what = cache.line * cache.ways, f"whole sets of {cache.ways} ways x {format_bytes(cache.line)}"
    if cache.size % step:
        lower, upper = cache.size // step * step, (cache.size // step + 1) * step
        near = f"{format_bytes(lower)} or {format_bytes(upper)}" if lower else format_bytes(upper)
        yield "size", f"{format_bytes(cache.size)} does not divide into {what}; the nearest is {near}"


def _sector_divides_line(cache: CacheSpec) -> Found:
    if cache.sector is None or not _usable_line(cache.line):
        return
    if not _power_of_two(cache.sector) or cache.line % cache.sector:
        line = format_bytes(cache.line)
        yield "sector", f"{format_bytes(cache.sector)} is not a power of two that divides the line of {line}"
    elif cache.line // cache.sector > 32:
        least = format_bytes(cache.line // 32)
        yield (
            "sector",
            f"a line of {cache.line // cache.sector} sectors; at most 32, so at least {least} each",
        )


def _tree_plru_needs_a_tree(cache: CacheSpec) -> Found:
    if cache.replacement == "plru" and not (_power_of_two(cache.way_count) and cache.way_count <= 64):
        found = "inf" if cache.infinite and cache.ways == "full" else cache.way_count
        yield "ways", f"plru needs 1, 2, 4, 8, 16, 32 or 64 ways, found {found}"


def _xor_index_needs_power_of_two_sets(cache: CacheSpec) -> Found:
    whole = cache.way_count > 0 and cache.set_count > 0
    if cache.index == "xor" and whole and not _power_of_two(cache.set_count) and not cache.infinite:
        yield "index", f"xor needs a power of two of sets; size, line and ways make {cache.set_count}"


def _exclusive_holds_what_is_evicted(cache: CacheSpec) -> Found:
    if cache.inclusion == "exclusive" and cache.write != "back":
        yield "write", "an exclusive cache must write back: it holds the only copy"
    if cache.inclusion == "exclusive" and not cache.write_allocate:
        yield (
            "write_allocate",
            "an exclusive cache must allocate on writes: it takes what the level inside evicts",
        )


def _mapping_names_each_part_once(dram: DramSpec) -> Found:
    parts = dram.mapping.split(":")
    for part in dict.fromkeys(parts):
        if part not in _ADDRESS_PARTS:
            yield (
                "mapping",
                f"'{part}' is not one of {', '.join(_ADDRESS_PARTS)}{did_you_mean(part, _ADDRESS_PARTS)}",
            )
        elif parts.count(part) > 1:
            yield (
                "mapping",
                f"'{part}' is given {parts.count(part)} times; each part belongs in the mapping once",
            )
    missing = [part for part in _ADDRESS_PARTS if part not in parts]
    if missing and all(part in _ADDRESS_PARTS for part in parts):
        yield "mapping", f"'{dram.mapping}' lacks {', '.join(missing)}"
    if sorted(parts) == sorted(_ADDRESS_PARTS) and parts[0] != "row":
        yield "mapping", f"must begin with row, which takes all the high bits; found '{parts[0]}'"


def _rows_and_bursts_are_powers_of_two(dram: DramSpec) -> Found:
    for field in ("row", "burst"):
        size = getattr(dram, field)
        if not _power_of_two(size) or size >= INFINITE_BYTES:
            yield field, f"{format_bytes(size)} is not a power of two"


def _row_holds_whole_bursts(dram: DramSpec) -> Found:
    if dram.row % dram.burst:
        yield "row", f"{format_bytes(dram.row)} does not hold whole bursts of {format_bytes(dram.burst)}"


def _rows_and_bursts_are_real(dram: DramSpec) -> Found:
    for field in ("row", "burst"):
        size = getattr(dram, field)
        if MOST_ROW_BYTES < size < INFINITE_BYTES:
            yield field, f"{format_bytes(size)} is more than {format_bytes(MOST_ROW_BYTES)}: no memory opens as much"


def _banks_can_be_counted(dram: DramSpec) -> Found:
    banks = dram.channels * dram.ranks * dram.banks
    if banks > MOST_BANKS:
        yield "banks", f"{banks:,} in all channels and ranks; at most {MOST_BANKS:,}, each has a state of its own"


def _refreshes_leave_time(dram: DramSpec) -> Found:
    """Between two refreshes there has to be time for an access."""
    timing = dram.timing
    if timing is None:
        return
    if timing.trefi.amount == 0:
        yield "timing.trefi", f"{timing.trefi} between two refreshes leaves no time; some microseconds are usual"
    elif timing.trefi.unit == timing.trfc.unit and timing.trefi.amount <= timing.trfc.amount:
        yield "timing.trefi", f"{timing.trefi} between two refreshes, which take {timing.trfc} each, leaves no time"


LEVEL_RULES: tuple[tuple[type[Level], Callable[..., Found]], ...] = (
    (CacheSpec, _line_is_a_power_of_two),
    (CacheSpec, _size_is_whole_sets),
    (CacheSpec, _sector_divides_line),
    (CacheSpec, _tree_plru_needs_a_tree),
    (CacheSpec, _xor_index_needs_power_of_two_sets),
    (CacheSpec, _exclusive_holds_what_is_evicted),
    (DramSpec, _mapping_names_each_part_once),
    (DramSpec, _rows_and_bursts_are_powers_of_two),
    (DramSpec, _row_holds_whole_bursts),
    (DramSpec, _rows_and_bursts_are_real),
    (DramSpec, _banks_can_be_counted),
    (DramSpec, _refreshes_leave_time),
)


# Rules of a machine


def _names_are_unique(machine: MachineSpec) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    parts = [("compute", index, unit.name) for index, unit in enumerate(machine.compute)]
    parts += [("memory", index, level.name) for index, level in enumerate(machine.memory)]
    for group, index, name in parts:
        if name in seen:
            yield Finding((group, index, "name"), f"'{name}' is already the name of a part in {seen[name]}")
        elif name in RESERVED_NAMES:
            yield Finding((group, index, "name"), f"'{name}' has a meaning of its own in paths; choose another name")
        seen.setdefault(name, group)
    clocks = [clock.name for clock in machine.clocks]
    for index, name in enumerate(clocks):
        if name in clocks[:index]:
            yield Finding(("clocks", index, "name"), f"'{name}' is already the name of a clock")


def _clocks_exist(machine: MachineSpec) -> Iterator[Finding]:
    clocks = sorted(clock.name for clock in machine.clocks)
    named = [(("compute", index, "clock"), unit.clock) for index, unit in enumerate(machine.compute)]
    named += [(("memory", index, "clock"), level.clock) for index, level in enumerate(machine.memory)]
    for path, clock in named:
        if clock is not None and clock not in clocks:
            near = did_you_mean(clock, clocks)
            yield Finding(path, f"there is no clock '{clock}'; this machine has {', '.join(clocks)}{near}")


def _levels_are_in_order(machine: MachineSpec) -> Iterator[Finding]:
    drams = [index for index, level in enumerate(machine.memory) if isinstance(level, DramSpec)]
    if not drams:
        yield Finding(("memory",), "has no level of kind dram; every hierarchy ends in main memory (size: inf is fine)")
    for index in drams[1:]:
        first = machine.memory[drams[0]].name
        yield Finding(("memory", index, "kind"), f"a second dram level; '{first}' already is main memory")
    for index, level in enumerate(machine.memory):
        if isinstance(level, RegistersSpec) and index > 0:
            yield Finding(("memory", index, "kind"), "registers come first in the list, nearest the compute unit")
        elif isinstance(level, StorageSpec):
            if drams and index < drams[0]:
                yield Finding(("memory", index, "kind"), "storage lies behind dram; move it to the end of the list")
        elif not isinstance(level, DramSpec) and drams and index > drams[0]:
            name = machine.memory[drams[0]].name
            yield Finding(("memory", index, "kind"), f"only storage can lie behind '{name}'; move this level before it")


def _outer_caches_are_larger(machine: MachineSpec) -> Iterator[Finding]:
    for (_, inner), (index, outer) in _neighbouring_caches(machine):
        if outer.size < inner.size and outer.inclusion != "exclusive" and not inner.infinite:
            message = (
                f"{format_bytes(outer.size)} is smaller than {inner.name}.size ({format_bytes(inner.size)}); "
                "an outer cache is at least as large, unless its inclusion is exclusive"
            )
            yield Finding(("memory", index, "size"), message)


def _lines_do_not_shrink_outwards(machine: MachineSpec) -> Iterator[Finding]:
    for (_, inner), (index, outer) in _neighbouring_caches(machine):
        if outer.line < inner.line:
            message = f"{format_bytes(outer.line)} is smaller than {inner.name}.line ({format_bytes(inner.line)})"
            yield Finding(("memory", index, "line"), message)


def _sectors_do_not_shrink_outwards(machine: MachineSpec) -> Iterator[Finding]:
    for (_, inner), (index, outer) in _neighbouring_caches(machine):
        if outer.sector_bytes < inner.sector_bytes <= outer.line:
            message = (
                f"{format_bytes(outer.sector_bytes)} is smaller than what {inner.name} fetches at a time "
                f"({format_bytes(inner.sector_bytes)}); give {inner.name} sectors as small, or this level larger ones"
            )
            yield Finding(("memory", index, "sector"), message)


def _inclusion_needs_equal_lines(machine: MachineSpec) -> Iterator[Finding]:
    neighbours = list(_neighbouring_caches(machine))
    for (_, inner), (index, outer) in neighbours:
        if outer.inclusion == "none" or outer.line < inner.line:
            continue
        if outer.line != inner.line:
            message = (
                f"{outer.inclusion} needs the line size of the level inside, {inner.name}.line "
                f"({format_bytes(inner.line)}), found {format_bytes(outer.line)}"
            )
            yield Finding(("memory", index, "inclusion"), message)
        elif outer.sector_bytes != inner.sector_bytes:
            message = (
                f"{outer.inclusion} needs the sector size of the level inside, {inner.name} "
                f"({format_bytes(inner.sector_bytes)}), found {format_bytes(outer.sector_bytes)}"
            )
            yield Finding(("memory", index, "inclusion"), message)


def _first_cache_includes_nothing(machine: MachineSpec) -> Iterator[Finding]:
    for index, level in enumerate(machine.memory):
        if isinstance(level, CacheSpec):
            if level.inclusion != "none":
                message = f"{level.inclusion} is said against the caches inside; {level.name} is the innermost"
                yield Finding(("memory", index, "inclusion"), message)
            return


def _sharing_fits_the_units(machine: MachineSpec) -> Iterator[Finding]:
    units = sum(unit.count for unit in machine.compute)
    inner_name, inner = "", 1
    for index, level in enumerate(machine.memory):
        path = ("memory", index, "shared_by")
        sharers = units if level.shared_by == "all" else level.shared_by
        if sharers > units:
            yield Finding(path, f"{sharers} is more than the machine's {units} compute units")
        elif units % sharers:
            yield Finding(path, f"{sharers} does not divide the machine's {units} compute units evenly")
        elif sharers < inner:
            message = f"{sharers} is less than {inner_name}.shared_by ({inner}); sharing does not shrink outwards"
            yield Finding(path, message)
        if sharers >= inner:
            inner_name, inner = level.name, sharers


def _latency_does_not_shrink_outwards(machine: MachineSpec) -> Iterator[Finding]:
    clocks = {clock.name for clock in machine.clocks}
    timed = [
        (index, level, level.latency, level.latency.seconds(machine.clock_hz(level.clock)))
        for index, level in enumerate(machine.memory)
        if level.latency is not None and (level.clock is None or level.clock in clocks)
    ]
    for (_, inner, inner_latency, inner_seconds), (index, _, latency, seconds) in pairwise(timed):
        if seconds < inner_seconds:
            message = f"{latency} is shorter than {inner.name}.latency ({inner_latency})"
            yield Finding(("memory", index, "latency"), message)


def _energy_keys_name_parts(machine: MachineSpec) -> Iterator[Finding]:
    if machine.energy is None:
        return
    parts = sorted({unit.name for unit in machine.compute} | {level.name for level in machine.memory})
    for key in machine.energy.actions:
        part, _, action = key.partition(".")
        path = ("energy", "actions", key)
        if part not in parts:
            message = f"'{part}' is no level or unit of this machine, which has {', '.join(parts)}"
            yield Finding(path, message + did_you_mean(part, parts))
        elif not action:
            yield Finding(path, f"say which action of '{part}' this is the price of, such as '{part}.read'")
    for key in machine.energy.static:
        if key not in parts and key != WHOLE_MACHINE:
            message = f"'{key}' is no level or unit of this machine; known: {', '.join(parts)}, {WHOLE_MACHINE}"
            yield Finding(("energy", "static", key), message + did_you_mean(key, [*parts, WHOLE_MACHINE]))


def _a_power_limit_leaves_room(machine: MachineSpec) -> Iterator[Finding]:
    energy = machine.energy
    if energy is None or energy.tdp is None:
        return
    idle = sum((each.power + (each.clock or 0) for each in energy.static.values()), Fraction(0))
    if energy.tdp.power <= idle:
        message = f"{plain(energy.tdp.power)} W is no more than the static power of {plain(idle)} W: nothing could run"
        yield Finding(("energy", "tdp", "power"), message)


def _caches_can_be_simulated(machine: MachineSpec) -> Iterator[Finding]:
    units = sum(unit.count for unit in machine.compute)
    for index, level in enumerate(machine.memory):
        if not isinstance(level, CacheSpec) or level.infinite or not _usable_line(level.line):
            continue
        sharers = units if level.shared_by == "all" else level.shared_by
        lines = level.size // level.line * max(1, units // sharers)
        if lines > MOST_LINES:
            message = f"{lines:,} lines in all instances; at most {MOST_LINES:,} can be simulated, or inf for no limit"
            yield Finding(("memory", index, "size"), message)


MACHINE_RULES: tuple[Callable[[MachineSpec], Iterator[Finding]], ...] = (
    _names_are_unique,
    _clocks_exist,
    _levels_are_in_order,
    _outer_caches_are_larger,
    _lines_do_not_shrink_outwards,
    _sectors_do_not_shrink_outwards,
    _inclusion_needs_equal_lines,
    _first_cache_includes_nothing,
    _sharing_fits_the_units,
    _latency_does_not_shrink_outwards,
    _energy_keys_name_parts,
    _a_power_limit_leaves_room,
    _caches_can_be_simulated,
)


def _usable_line(size: int) -> bool:
    return _power_of_two(size) and 4 <= size <= 4096


def _power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def _neighbouring_caches(
    machine: MachineSpec,
) -> Iterator[tuple[tuple[int, CacheSpec], tuple[int, CacheSpec]]]:
    caches = [(index, level) for index, level in enumerate(machine.memory) if isinstance(level, CacheSpec)]
    return pairwise(caches)
