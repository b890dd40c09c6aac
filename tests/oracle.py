"""A plain-Python cache hierarchy, written for reading and not for speed: what the compiled models are compared with.

One object per level, one recursive call per transfer, lines as objects. It shares nothing with hwsim.memory but the
way random numbers are drawn, which is part of the machine's definition (xorshift64, `number % ways`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import reduce

MASK64 = (1 << 64) - 1


@dataclass
class Line:
    """A resident line: which of its sectors are present and which are modified."""

    number: int
    valid: set[int]
    dirty: set[int]
    fresh: bool = False
    value: int = 0


@dataclass
class Set:
    ways: list[Line | None]
    tree: list[bool] = field(default_factory=list)


class Memory:
    """Behind the last level: counts requests and bytes."""

    def __init__(self):
        self.counts = Counter()

    def read(self, address, nbytes, prefetch=False):
        self.counts["reads"] += 1
        self.counts["bytes_read"] += nbytes
        return set()

    def write(self, address, nbytes, kind):
        self.counts["writes"] += 1
        self.counts["bytes_written"] += nbytes


class Level:
    """One cache in front of `below`; `inner` are the levels nearer the core."""

    def __init__(self, spec, below, rng):
        self.spec, self.below, self.inner = spec, below, []
        self.sets = [Set([None] * spec.way_count, [False] * spec.way_count) for _ in range(spec.set_count)]
        self.counts, self.clock, self.rng = Counter(), 0, rng
        self.regions, self.seen = {}, 0
        self.pending = []

    # Where things are -------------------------------------------------------------------------------------------------

    def index(self, number):
        sets = self.spec.set_count
        if self.spec.index == "modulo" or sets == 1:
            return number % sets
        groups = [number >> shift & (sets - 1) for shift in range(0, 64, sets.bit_length() - 1)]
        return reduce(lambda a, b: a ^ b, groups)

    def sectors(self, address, nbytes):
        first = address % self.spec.line // self.spec.sector_bytes
        last = (address % self.spec.line + nbytes - 1) // self.spec.sector_bytes
        return set(range(first, last + 1))

    def find(self, number):
        ways = self.sets[self.index(number)].ways
        return next((line for line in ways if line and line.number == number), None)

    def drop(self, line):
        ways = self.sets[self.index(line.number)].ways
        ways[ways.index(line)] = None

    # Replacement ------------------------------------------------------------------------------------------------------

    def touch(self, line, inserted):
        group = self.sets[self.index(line.number)]
        policy = self.spec.replacement
        if policy == "lru" or (policy == "fifo" and inserted):
            self.clock += 1
            line.value = self.clock
        elif policy == "srrip":
            line.value = 2 if inserted else 0
        elif policy == "plru":
            low, high, node = 0, len(group.ways), 1
            while high - low > 1:
                middle = (low + high) // 2
                right = group.ways.index(line) >= middle
                group.tree[node] = not right
                low, high, node = (middle, high, 2 * node + 1) if right else (low, middle, 2 * node)

    def victim(self, group):
        policy = self.spec.replacement
        if policy in ("lru", "fifo"):
            return min(range(len(group.ways)), key=lambda way: group.ways[way].value)
        if policy == "random":
            x = self.rng
            x ^= x << 13 & MASK64
            x ^= x >> 7
            x ^= x << 17 & MASK64
            self.rng = x
            return x % len(group.ways)
        if policy == "srrip":
            while not any(line.value == 3 for line in group.ways):
                for line in group.ways:
                    line.value += 1
            return next(way for way, line in enumerate(group.ways) if line.value == 3)
        low, high, node = 0, len(group.ways), 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high, node = (middle, high, 2 * node + 1) if group.tree[node] else (low, middle, 2 * node)
        return low

    # Transfers --------------------------------------------------------------------------------------------------------

    def read(self, address, nbytes, prefetch=False):
        """Returns the sectors that arrive modified (only an exclusive cache hands such on)."""
        number, sectors = address // self.spec.line, self.sectors(address, nbytes)
        self.counts["prefetch_reads" if prefetch else "reads"] += 1
        self.counts["bytes_read"] += nbytes
        line = self.find(number)
        missing = sectors - (line.valid if line else set())
        modified = set()
        if not prefetch:
            self.consider_prefetch(number, bool(missing), not missing and self.use(line))
        if missing:
            if not prefetch:
                self.counts["read_misses"] += 1
                self.counts["sector_misses"] += line is not None
            modified = self.fetch(number, missing, prefetch)
            if self.spec.inclusion != "exclusive":
                self.insert(number, missing, modified)
                modified = set()
        else:
            self.touch(line, inserted=False)
            if self.spec.inclusion == "exclusive" and self.inner:
                modified = line.dirty & sectors
                line.valid -= sectors
                line.dirty -= sectors
                if not line.valid:
                    self.drop(line)
        return modified

    def write(self, address, nbytes, kind):
        number, sectors = address // self.spec.line, self.sectors(address, nbytes)
        self.counts["writes"] += 1
        self.counts["bytes_written"] += nbytes
        line = self.find(number)
        whole = kind != "store" and nbytes % self.spec.sector_bytes == 0
        through = self.spec.write == "through"
        modified = set() if kind == "victim" or through else sectors
        hit = line is not None and (whole or sectors <= line.valid)
        if kind == "store":
            self.consider_prefetch(number, not hit, hit and self.use(line))
        if hit:
            line.valid |= sectors
            line.dirty |= modified
            self.touch(line, inserted=False)
        else:
            self.counts["write_misses"] += 1
            self.counts["sector_misses"] += line is not None
            if self.spec.write_allocate:
                if not whole:
                    modified = modified | self.fetch(number, sectors - (line.valid if line else set()), False)
                self.insert(number, sectors, modified)
        if kind != "victim" and (through or (not hit and not self.spec.write_allocate)):
            self.pass_on(address, nbytes, kind)

    def fetch(self, number, sectors, prefetch):
        modified, size = set(), self.spec.sector_bytes
        for sector in sorted(sectors):
            self.counts["bytes_fetched"] += size
            if self.below.read(number * self.spec.line + sector * size, size, prefetch):
                modified.add(sector)
        return modified

    def pass_on(self, address, nbytes, kind):
        self.counts["bytes_evicted"] += nbytes
        self.below.write(address, nbytes, kind)

    def insert(self, number, sectors, modified, fresh=False):
        line = self.find(number)
        if line:
            line.valid |= sectors
            line.dirty |= modified
            self.touch(line, inserted=False)
            return
        group = self.sets[self.index(number)]
        leaving = None
        if None in group.ways:
            way = group.ways.index(None)
        else:
            way = self.victim(group)
            leaving = group.ways[way]
        group.ways[way] = line = Line(number, set(sectors), set(modified), fresh)
        self.touch(line, inserted=True)
        if leaving:
            self.evict(leaving)

    def evict(self, line):
        if self.spec.inclusion == "inclusive":
            self.take_from_inside(line)
        exclusive = isinstance(self.below, Level) and self.below.spec.inclusion == "exclusive"
        self.counts["writebacks"] += bool(line.dirty)
        self.counts["clean_victims"] += exclusive and not line.dirty
        for sector in sorted(line.valid | line.dirty if exclusive else line.dirty):
            address = line.number * self.spec.line + sector * self.spec.sector_bytes
            self.pass_on(address, self.spec.sector_bytes, "writeback" if sector in line.dirty else "victim")

    def take_from_inside(self, line):
        for depth, inner in enumerate(self.inner):
            copy = inner.find(line.number)
            if copy is None:
                continue
            self.counts["back_invalidations"] += 1
            inner.drop(copy)
            inner.counts["writebacks"] += bool(copy.dirty)
            for sector in sorted(copy.dirty):
                giver = inner
                for taker in [*self.inner[depth + 1 :], self]:
                    giver.counts["bytes_evicted"] += inner.spec.sector_bytes
                    taker.counts["bytes_written"] += inner.spec.sector_bytes
                    taker.counts["writes"] += 1
                    held = line if taker is self else taker.find(line.number)
                    if held:
                        held.valid.add(sector)
                        held.dirty.add(sector)
                        break
                    giver = taker

    # Prefetching: asked for from the core outwards, done once the access is complete --------------------------------

    def use(self, line):
        fresh, line.fresh = line.fresh, False
        self.counts["prefetch_hits"] += fresh
        return fresh

    def consider_prefetch(self, number, missed, used_fresh):
        kind, step = self.spec.prefetch.kind, 0
        if kind == "next_line" and (missed or used_fresh):
            step = 1
        elif kind == "stride":
            region = number * self.spec.line >> 12
            self.seen += 1
            if region in self.regions:
                last, before, _ = self.regions[region]
                taken = number - last
                step = taken if taken and taken == before else 0
                self.regions[region] = (number, taken or before, self.seen)
            else:
                if len(self.regions) == self.spec.prefetch.streams:
                    del self.regions[min(self.regions, key=lambda r: self.regions[r][2])]
                self.regions[region] = (number, 0, self.seen)
        if step:
            targets = [number + ahead * step for ahead in range(1, self.spec.prefetch.degree + 1)]
            self.pending.extend((self, target) for target in targets if target >= 0)

    def prefetch(self, number):
        if self.find(number) is None:
            self.counts["prefetches"] += 1
            everything = set(range(self.spec.line // self.spec.sector_bytes))
            self.insert(number, everything, self.fetch(number, everything, True), fresh=True)


class Oracle:
    """A chain of levels for one core."""

    def __init__(self, specs, seeds):
        self.memory = Memory()
        self.levels, pending = [], []
        for spec, seed in reversed(list(zip(specs, seeds, strict=True))):
            level = Level(spec, self.levels[0] if self.levels else self.memory, int(seed))
            level.pending = pending
            self.levels.insert(0, level)
        for depth, level in enumerate(self.levels):
            level.inner = self.levels[:depth]
        self.pending = pending
        self.grain = specs[0].sector_bytes

    def access(self, address, nbytes, write):
        end = address + nbytes
        while address < end:
            stop = min(end, (address // self.grain + 1) * self.grain)
            if write:
                self.levels[0].write(address, stop - address, "store")
            else:
                self.levels[0].read(address, stop - address)
            waiting, self.pending[:] = list(self.pending), []
            for level, number in waiting:
                level.prefetch(number)
            self.pending.clear()
            address = stop

    def contents(self, level):
        """Lines per set as {(line, dirty)}, to compare with `Hierarchy.contents` where order does not matter."""
        return [{(line.number, bool(line.dirty)) for line in group.ways if line} for group in self.levels[level].sets]
