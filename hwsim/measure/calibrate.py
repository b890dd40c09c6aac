"""`hwsim calibrate`: from probes of the computer at hand to a machine file.

What the system tells (caches, cores, vectors) is taken as it is; what was measured carries its median, repeats and
spread; what is too noisy is left to the nearest stock machine, and the file says so. Nothing is claimed that was not
seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwsim.measure import probes
from hwsim.measure.here import Computer, KnownCache
from hwsim.measure.probes import Reading, Samples
from hwsim.spec.machine import CacheSpec, DramSpec, MachineSpec

NOISY = 0.25
"""A spread beyond which a number is not taken."""
MOMENTS = 8
"""How often all probes are sampled, one after the other: what other programs do comes in bursts."""
FAR_BYTES = 192 << 20
"""Memory far beyond any cache."""
CLAIMED_L3 = 2 << 20
"""Of a shared cache at most so much is gone through: others use it too."""
CHASED_L1, CHASED_L2 = Fraction(1, 4), 4
"""Dependent loads go through so much of the first cache, and of the second through so many times as much as the first
holds: little enough to be there in spite of a second thread on the core, and to lie in pages that are known at once."""
PAGES = (16, 32, 48, 64, 80, 96, 128, 192)
CROWD = 256
"""Lines that are loaded into one set, many more than any has ways."""


@dataclass
class Calibration:
    """The fields of a machine file with their sources, and what was left out and why."""

    computer: Computer
    clock_hz: float = 0.0
    core: dict[str, tuple[str, str]] = field(default_factory=dict)
    levels: dict[str, dict[str, tuple[str, str]]] = field(default_factory=dict)
    clock: tuple[str, str] = ("", "")
    left_out: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class News:
    """A probe that is done: what it looked at, and what it found in words."""

    name: str
    text: str


class Calibrator:
    """Samples all probes at several moments, then says what each found."""

    def __init__(self, computer: Computer, nearest: MachineSpec) -> None:
        self.nearest = nearest
        self.result = Calibration(computer)
        self._stock = {level.name: level for level in nearest.memory}
        self.caches = {f"l{cache.level}": cache for cache in computer.caches if f"l{cache.level}" in self._stock}
        self.line = self.caches["l1"].line_bytes if "l1" in self.caches else 64
        self._readings: dict[str, Reading] = {}

    def run(self) -> Iterator[int | News | None]:
        """The number of samples to come, then None for each, and what was found."""
        makers = dict(self._makers())
        yield MOMENTS * len(makers)
        made: dict[str, Samples] = {}
        for _ in range(MOMENTS):
            for name, make in makers.items():
                if name not in made:
                    made[name] = make()
                self._readings[name] = made[name].sample()
                yield None
        yield News("clock", self._clock())
        for name, step in self._steps():
            yield News(name, step())

    def _makers(self) -> Iterator[tuple[str, Callable[[], Samples]]]:
        """What is sampled, by name; probes of memory far away share their room."""
        yield "clock", probes.clock
        for name in ("add_latency", "mul_latency", "fma_latency", "fma_interval", "exp_interval"):
            yield name, getattr(probes, name)
        for name, cache in self.caches.items():
            nbytes = self._inside(cache)
            yield f"{name}.latency", partial(self._chain, self._chased(name, cache), cache.line_bytes)
            yield f"{name}.bandwidth", partial(self._stream, nbytes, streams=name == "l1")
        if "l1" in self.caches:
            first = self.caches["l1"]
            yield "l1.write_bandwidth", partial(probes.writing, self._inside(first))
            if first.ways:
                yield "l1.set_refill", partial(probes.strided_loads, first.size_bytes // first.ways, CROWD)
        for nbytes in self._parts(self.caches["l3"]) if "l3" in self.caches else ():
            yield f"l3 {nbytes}", partial(self._chain, nbytes, self.line)
        for pages in PAGES:
            yield f"pages {pages}", partial(probes.page_chain, pages, self.line)
        yield "dram.latency", lambda: probes.chain(self._far, self.line)
        yield "dram.jumps", lambda: probes.FarJumps(self._far, self.line)
        yield "dram.alone", lambda: probes.reading(self._far, streams=True)
        yield "dram.bandwidth", lambda: probes.AllCores(np.array_split(self._far, self.result.computer.cores))

    @cached_property
    def _far(self) -> NDArray[np.uint64]:
        return probes.memory(FAR_BYTES)

    def _chain(self, nbytes: int, line: int) -> Samples:
        return probes.chain(probes.memory(nbytes), line)

    def _stream(self, nbytes: int, *, streams: bool) -> Samples:
        return probes.reading(probes.memory(nbytes), streams=streams)

    def _cycles(self, name: str) -> Reading:
        return self._readings[name].scaled(self.result.clock_hz)

    def _steps(self) -> Iterator[tuple[str, Callable[[], str]]]:
        yield "caches", self._known
        for name in ("add", "mul", "fma"):
            yield f"latency of {name}", partial(self._whole, f"latency.{name}", self._cycles(f"{name}_latency"))
        yield "ports", partial(self._whole, "ports.fma", self._cycles("fma_interval").inverse())
        yield "exponentials", self._special
        for name, cache in self.caches.items():
            yield f"latency of {name}", partial(self._latency, name, cache)
            yield f"bandwidth of {name}", partial(self._bandwidth, name, cache)
        if "l1.set_refill" in self._readings:
            yield "crowded sets", self._refill
        yield "pages", self._pages
        yield "latency of dram", self._dram_latency
        yield "bandwidth of dram", self._dram_bandwidth

    def _clock(self) -> str:
        clock = self._readings["clock"].inverse()
        self.result.clock_hz = clock.value
        self.result.clock = (f"{clock.value / 1e9:.3g} GHz", source(clock))
        return f"{clock.value / 1e9:.2f} GHz, spread {clock.spread:.0%}"

    # What the system tells --------------------------------------------------------------------------------------------

    def _known(self) -> str:
        computer = self.result.computer
        told = "as the operating system tells"
        self.result.core["count"] = (str(computer.cores), told)
        stock = getattr(self.nearest.compute[0], "simd", None)
        if stock is None or stock.bits != computer.vector_bits:
            self.result.core["simd"] = (f"{{bits: {computer.vector_bits}}}", told)
        for name, cache in self.caches.items():
            if not isinstance(self._stock.get(name), CacheSpec):
                continue
            self._size(name, cache, told)
            self._set(name, "line", f"{cache.line_bytes} B", told)
            if cache.ways:
                self._set(name, "ways", str(cache.ways), told)
        return f"{computer.model}, {computer.cores} cores, " + ", ".join(
            f"{name} {cache.size_bytes // 1024} KiB" for name, cache in self.caches.items()
        )

    def _size(self, name: str, cache: KnownCache, told: str) -> None:
        """Of a cache that others share, no more than was seen to hold lines: dependent loads come sooner than from
        memory."""
        parts = self._parts(cache) if name == "l3" else []
        far = self._readings["dram.latency"].value
        seen = [nbytes for nbytes in parts if self._readings[f"l3 {nbytes}"].value < far / 2]
        if parts and not seen:
            stock = f"left to {self.nearest.name}"
            self.result.left_out.append(f"{name}.size: nothing of its {cache.size_bytes >> 20} MiB was seen; {stock}")
        elif seen == parts:
            self._set(name, "size", f"{cache.size_bytes // 1024} KiB", told)
        else:
            reading = self._readings[f"l3 {max(seen)}"]
            self._set(name, "size", f"{max(seen) // 1024} KiB", f"{source(reading)}: of more, most came from memory")

    def _parts(self, cache: KnownCache) -> list[int]:
        """A sixteenth of a shared cache, an eighth, up to a half."""
        return [cache.size_bytes // part for part in (16, 8, 4, 2)]

    # What is measured -------------------------------------------------------------------------------------------------

    def _whole(self, path: str, reading: Reading) -> str:
        """A number of cycles or ports: the nearest whole one."""
        if not self._clear(f"core.{path}", reading):
            return _noise(reading)
        self.result.core[path] = (str(max(1, round(reading.value))), source(reading))
        return f"{reading.value:.2f}, spread {reading.spread:.0%}"

    def _special(self) -> str:
        reading = self._cycles("exp_interval")
        if not self._clear("core.special_interval", reading):
            return _noise(reading)
        self.result.core["special_interval"] = (f"{max(1.0, reading.value):.3g}", f"{source(reading)}: exp in fp32")
        return f"{reading.value:.1f} cycles each in a loop, spread {reading.spread:.0%}"

    def _latency(self, name: str, cache: KnownCache) -> str:
        nbytes = self._chased(name, cache)
        reading = self._cycles(f"{name}.latency")
        if not self._clear(f"{name}.latency", reading):
            return _noise(reading)
        if reading.value > self._cycles("dram.latency").value / 2:
            text = f"most of {nbytes >> 10} KiB came from memory, since others use {name}; left to {self.nearest.name}"
            self.result.left_out.append(f"{name}.latency: {text}")
            return f"not seen: {reading.value:.0f} cycles are nearly those of memory"
        self._set(name, "latency", f"{max(1, round(reading.value))} cycles", source(reading, nbytes))
        return f"{reading.value:.1f} cycles, spread {reading.spread:.0%}"

    def _bandwidth(self, name: str, cache: KnownCache) -> str:
        nbytes = self._inside(cache)
        reading = self._cycles(f"{name}.bandwidth").inverse()
        if not self._clear(f"{name}.bandwidth", reading):
            return _noise(reading)
        stock = self._stock[name]
        shared = isinstance(stock, CacheSpec) and stock.shared_by != 1
        field_name = "unit_bandwidth" if shared else "bandwidth"
        self._set(name, field_name, f"{reading.value:.3g} B/cycle", source(reading, nbytes))
        if shared:
            total = reading.scaled(self.result.computer.cores)
            assumed = "assumption: every core gets its share at the same time"
            self._set(name, "bandwidth", f"{total.value:.3g} B/cycle", assumed)
        if name == "l1":
            self._write_bandwidth(nbytes)
        return f"{reading.value:.1f} B/cycle, spread {reading.spread:.0%}"

    def _write_bandwidth(self, nbytes: int) -> None:
        written = self._cycles("l1.write_bandwidth").inverse()
        if self._clear("l1.write_bandwidth", written):
            self._set("l1", "write_bandwidth", f"{written.value:.3g} B/cycle", source(written, nbytes))

    def _inside(self, cache: KnownCache) -> int:
        """Bytes that lie in this cache and not in the one before: half of it, and more than twice the one before."""
        before = [other.size_bytes for other in self.caches.values() if other.level < cache.level]
        return max(min(cache.size_bytes // 2, CLAIMED_L3), 2 * max(before, default=0))

    def _chased(self, name: str, cache: KnownCache) -> int:
        """Bytes of a chain of dependent loads."""
        if name == "l1":
            return int(cache.size_bytes * CHASED_L1)
        nbytes = self._inside(cache)
        first = self.caches.get("l1")
        return min(nbytes, CHASED_L2 * first.size_bytes) if name == "l2" and first else nbytes

    def _refill(self) -> str:
        reading = self._cycles("l1.set_refill")
        if not self._clear("l1.set_refill", reading):
            return _noise(reading)
        self._set("l1", "set_refill", f"{reading.value:.3g} cycles", source(reading))
        return f"{reading.value:.1f} cycles between misses of one set, spread {reading.spread:.0%}"

    def _pages(self) -> str:
        """How many pages are known at once: the largest number before dependent loads get slower by three cycles."""
        found = {pages: self._cycles(f"pages {pages}") for pages in PAGES}
        base = found[PAGES[0]].value
        known = [pages for pages, reading in found.items() if reading.value < base + 3]
        worst = max(reading.spread for reading in found.values())
        if worst > NOISY or len(known) == len(found):
            self.result.left_out.append("core.tlb: no number of pages was seen from which loads get slower")
            return "no limit seen"
        miss = found[PAGES[-1]].value - base
        stock = getattr(self.nearest.compute[0], "tlb", None)
        cost = stock.miss if stock is not None else 2
        samples = found[PAGES[0]].repeats
        where = f"{source(Reading(miss, samples, worst))}: dependent loads take {miss:.0f} cycles more beyond"
        self.result.core["tlb"] = (f"{{entries: {max(known)}, page: 4 KiB, miss: {cost:g}}}", where)
        return f"{max(known)} pages, then {miss:.0f} cycles more"

    def _dram_latency(self) -> str:
        reading = self._readings["dram.latency"].scaled(1e9)
        if not self._clear("dram.latency", reading):
            return _noise(reading)
        self._set("dram", "latency", f"{reading.value:.3g} ns", source(reading, FAR_BYTES))
        self._lines_in_flight(reading)
        return f"{reading.value:.0f} ns, spread {reading.spread:.0%}"

    def _lines_in_flight(self, latency: Reading) -> None:
        """What one core draws from memory is its outstanding misses: bandwidth times latency."""
        alone = self._readings["dram.alone"].inverse()
        last = max((name for name in self.caches if name != "l1"), default=None)
        outer = "l2" if "l2" in self.caches else last
        if outer is None or not self._clear(f"{outer}.mshrs", alone):
            return
        jumps = self._readings["dram.jumps"]
        if last is not None and self._clear(f"{last}.strided_misses", jumps):
            overlap = max(1.0, latency.value / 1e9 / jumps.value)
            text = f"{source(jumps, FAR_BYTES)}: {jumps.value * 1e9:.3g} ns a line, a page and a line apart"
            self._set(last, "strided_misses", f"{overlap:.3g}", text)
        lines = round(alone.value * latency.value / 1e9 / self.caches[outer].line_bytes)
        text = f"{source(alone, FAR_BYTES)}: {alone.value / 1e9:.3g} GB/s of one core times the latency of memory"
        self._set(outer, "mshrs", str(max(1, lines)), text)

    def _dram_bandwidth(self) -> str:
        cores = self.result.computer.cores
        reading = self._readings["dram.bandwidth"].inverse()
        stock = self._stock.get("dram")
        if not isinstance(stock, DramSpec) or not self._clear("dram.bandwidth", reading):
            return _noise(reading)
        self._set("dram", "bandwidth", f"{reading.value / 1e9:.3g} GB/s", source(reading, FAR_BYTES))
        if stock.write_bandwidth is not None:
            half = "assumption: half of what is read"
            self._set("dram", "write_bandwidth", f"{reading.value / 2e9:.3g} GB/s", half)
        return f"{reading.value / 1e9:.1f} GB/s of {cores} cores, spread {reading.spread:.0%}"

    # Notes ------------------------------------------------------------------------------------------------------------

    def _clear(self, path: str, reading: Reading) -> bool:
        if reading.spread <= NOISY:
            return True
        stock = self.nearest.name
        self.result.left_out.append(f"{path}: spread {reading.spread:.0%}, too noisy; left to {stock}")
        return False

    def _set(self, level: str, name: str, value: str, where: str) -> None:
        self.result.levels.setdefault(level, {})[name] = (value, where)


def source(reading: Reading, nbytes: int | None = None) -> str:
    """Where a number comes from, for the machine file."""
    over = f" over {nbytes // 1024:,} KiB" if nbytes else ""
    return f"measured{over}, median of the fastest eighth of {reading.repeats}, spread {reading.spread:.0%}"


def _noise(reading: Reading) -> str:
    return f"too noisy, spread {reading.spread:.0%}"


def machine_file(found: Calibration, name: str) -> str:
    """The machine file as text."""
    nearest = found.computer.nearest
    lines = [f"# {found.computer.model}, measured by hwsim calibrate. What is not said here is as in {nearest}."]
    lines += [f"# Left out: {text}" for text in found.left_out]
    value, where = found.clock
    description = f"{found.computer.model}, {found.computer.cores} cores, as measured."
    lines += [
        "format: 1",
        f"name: {name}",
        f"extends: {found.computer.nearest}",
        f"description: {_quoted(description)}",
        "",
    ]
    lines += ["clocks:", "  - name: core", f"    frequency: {value}", f"    source: {_quoted(where)}", ""]
    lines += ["compute:", "  - name: core", *_fields(found.core), "", "memory:"]
    for level, fields in found.levels.items():
        lines += [f"  - name: {level}", *_fields(fields)]
    return "\n".join(lines) + "\n"


def _fields(fields: dict[str, tuple[str, str]]) -> list[str]:
    groups: dict[str, dict[str, str]] = {}
    lines = []
    for path, (value, _) in fields.items():
        head, _, rest = path.partition(".")
        if rest:
            groups.setdefault(head, {})[rest] = value
        else:
            lines.append(f"    {head}: {value}")
    lines += [f"    {head}: {{{', '.join(f'{k}: {v}' for k, v in inner.items())}}}" for head, inner in groups.items()]
    lines.append("    source:")
    return lines + [f"      {path}: {_quoted(where)}" for path, (_, where) in fields.items()]


def _quoted(text: Any) -> str:
    return '"' + str(text).replace("\\", "").replace('"', "'") + '"'
