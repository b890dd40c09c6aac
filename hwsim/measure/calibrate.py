"""`hwsim calibrate`: from probes of the computer at hand to a machine file.

What the system tells (caches, cores, vectors) is taken as it is; what was measured carries its median, repeats and
spread; what is too noisy is left to the nearest stock machine, and the file says so. Nothing is claimed that was not
seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hwsim.measure.here import Computer, KnownCache
from hwsim.measure.probes import Probes, Reading
from hwsim.spec.machine import CacheSpec, DramSpec, MachineSpec

NOISY = 0.25
"""A spread beyond which a number is not taken."""
FAR_BYTES = 192 << 20
"""Memory far beyond any cache."""
FAR_STEPS, FAR_SAMPLES = 20_000, 20
"""Dependent loads of memory in one sample, a few milliseconds; samples at each of three moments far apart, since what
other programs do to memory comes in bursts."""
CLAIMED_L3 = 2 << 20
"""Of a shared cache at most so much is gone through: others use it too."""


KNOWN_PAGES = 240 << 10
"""Bytes whose pages every core knows at once, for the latency of L2."""


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
    """Measures one thing after the other."""

    def __init__(self, computer: Computer, nearest: MachineSpec) -> None:
        self.nearest = nearest
        self.result = Calibration(computer)
        self.caches = {f"l{cache.level}": cache for cache in computer.caches}
        self._stock = {level.name: level for level in nearest.memory}

    def run(self) -> Iterator[int | News]:
        """The number of probes to come, then each as it is done."""
        steps = list(self._steps())
        yield len(steps) + 1
        self.probes = Probes()
        clock = self.probes.clock
        self.result.clock_hz = clock.value
        self.result.clock = (f"{clock.value / 1e9:.3g} GHz", source(clock))
        yield News("clock", f"{clock.value / 1e9:.2f} GHz, spread {clock.spread:.0%}")
        line = self.caches["l1"].line_bytes if "l1" in self.caches else 64
        self._far = self.probes.chain(FAR_BYTES, line, FAR_STEPS)
        self._drawn: list[Reading] = []
        for number, (name, step) in enumerate(steps):
            if number in (0, len(steps) // 2):
                self._far.sample(FAR_SAMPLES)
                self._draw()
            yield News(name, step())

    def _steps(self) -> Iterator[tuple[str, Callable[[], str]]]:
        yield "caches", self._known
        whole = {"add": "add_latency", "mul": "mul_latency", "fma": "fma_latency"}
        for name, probe in whole.items():
            yield f"latency of {name}", partial(self._whole, f"latency.{name}", probe)
        yield "ports", partial(self._whole, "ports.fma", "fma_ports")
        for name, cache in self.caches.items():
            if name in self._stock:
                yield f"latency of {name}", partial(self._latency, name, cache)
                yield f"bandwidth of {name}", partial(self._bandwidth, name, cache)
        if "l1" in self.caches and self.caches["l1"].ways:
            yield "crowded sets", self._refill
        yield "pages", self._pages
        yield "latency of dram", self._dram_latency
        yield "bandwidth of dram", self._dram_bandwidth

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
            self._set(name, "size", f"{cache.size_bytes // 1024} KiB", told)
            self._set(name, "line", f"{cache.line_bytes} B", told)
            if cache.ways:
                self._set(name, "ways", str(cache.ways), told)
        return f"{computer.model}, {computer.cores} cores, " + ", ".join(
            f"{name} {cache.size_bytes // 1024} KiB" for name, cache in self.caches.items()
        )

    # What is measured -------------------------------------------------------------------------------------------------

    def _whole(self, path: str, probe: str) -> str:
        """A number of cycles or ports: the nearest whole one."""
        reading: Reading = getattr(self.probes, probe)()
        if not self._clear(f"core.{path}", reading):
            return _noise(reading)
        self.result.core[path] = (str(max(1, round(reading.value))), source(reading))
        return f"{reading.value:.2f}, spread {reading.spread:.0%}"

    def _latency(self, name: str, cache: KnownCache) -> str:
        nbytes = self._inside(name, cache)
        if cache.level == 2 and self.caches["l1"].size_bytes * 2 < KNOWN_PAGES < nbytes:
            nbytes = KNOWN_PAGES
        reading = self.probes.cycles(self.probes.latency(nbytes, cache.line_bytes))
        if not self._clear(f"{name}.latency", reading):
            return _noise(reading)
        if reading.value > self.probes.cycles(self._far.sample(1)).value / 2:
            text = f"most of {nbytes >> 10} KiB came from memory, since others use {name}; left to {self.nearest.name}"
            self.result.left_out.append(f"{name}.latency: {text}")
            return f"not seen: {reading.value:.0f} cycles are nearly those of memory"
        self._set(name, "latency", f"{max(1, round(reading.value))} cycles", source(reading, nbytes))
        return f"{reading.value:.1f} cycles, spread {reading.spread:.0%}"

    def _bandwidth(self, name: str, cache: KnownCache) -> str:
        nbytes = self._inside(name, cache)
        reading = self.probes.read_bandwidth(nbytes, near=name == "l1").scaled(1 / self.result.clock_hz)
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
        written = self.probes.write_bandwidth(nbytes).scaled(1 / self.result.clock_hz)
        if self._clear("l1.write_bandwidth", written):
            self._set("l1", "write_bandwidth", f"{written.value:.3g} B/cycle", source(written, nbytes))

    def _inside(self, name: str, cache: KnownCache) -> int:
        """Bytes that lie in this cache and not in the one before: half of it, and more than twice the one before."""
        before = [other.size_bytes for other in self.caches.values() if other.level < cache.level]
        return max(min(cache.size_bytes // 2, CLAIMED_L3), 2 * max(before, default=0))

    def _refill(self) -> str:
        cache = self.caches["l1"]
        assert cache.ways is not None
        reading = self.probes.set_refill(cache.size_bytes // cache.ways)
        if not self._clear("l1.set_refill", reading):
            return _noise(reading)
        self._set("l1", "set_refill", f"{reading.value:.3g} cycles", source(reading))
        return f"{reading.value:.1f} cycles between misses of one set, spread {reading.spread:.0%}"

    def _pages(self) -> str:
        """How many pages are known at once: the largest number before dependent loads get slower by three cycles."""
        line = self.caches["l1"].line_bytes if "l1" in self.caches else 64
        found = {
            pages: self.probes.cycles(self.probes.page_latency(pages, line))
            for pages in (16, 32, 48, 64, 80, 96, 128, 192)
        }
        base = found[16].value
        known = [pages for pages, reading in found.items() if reading.value < base + 3]
        worst = max(reading.spread for reading in found.values())
        if worst > NOISY or len(known) == len(found):
            self.result.left_out.append("core.tlb: no number of pages was seen from which loads get slower")
            return "no limit seen"
        miss = found[max(found)].value - base
        stock = getattr(self.nearest.compute[0], "tlb", None)
        cost = stock.miss if stock is not None else 2
        where = f"{source(Reading(miss, found[16].repeats, worst))}: dependent loads take {miss:.0f} cycles more beyond"
        self.result.core["tlb"] = (f"{{entries: {max(known)}, page: 4 KiB, miss: {cost:g}}}", where)
        return f"{max(known)} pages, then {miss:.0f} cycles more"

    def _dram_latency(self) -> str:
        reading = self._far.sample(FAR_SAMPLES).scaled(1e9)
        if not self._clear("dram.latency", reading):
            return _noise(reading)
        self._set("dram", "latency", f"{reading.value:.3g} ns", source(reading, FAR_BYTES))
        self._lines_in_flight(reading)
        return f"{reading.value:.0f} ns, spread {reading.spread:.0%}"

    def _lines_in_flight(self, latency: Reading) -> None:
        """What one core draws from memory is its outstanding misses: bandwidth times latency."""
        alone = self.probes.read_bandwidth(FAR_BYTES)
        last = max((name for name in self.caches if name in self._stock and name != "l1"), default=None)
        outer = "l2" if "l2" in self.caches and "l2" in self._stock else last
        if outer is None or not self._clear(f"{outer}.mshrs", alone):
            return
        lines = round(alone.value * latency.value / 1e9 / self.caches[outer].line_bytes)
        text = f"{source(alone, FAR_BYTES)}: {alone.value / 1e9:.3g} GB/s of one core times the latency of memory"
        self._set(outer, "mshrs", str(max(1, lines)), text)

    def _dram_bandwidth(self) -> str:
        cores = self.result.computer.cores
        self._draw()
        reading = max(self._drawn, key=lambda drawn: drawn.value)
        stock = self._stock.get("dram")
        if not isinstance(stock, DramSpec) or not self._clear("dram.bandwidth", reading):
            return _noise(reading)
        self._set("dram", "bandwidth", f"{reading.value / 1e9:.3g} GB/s", source(reading, FAR_BYTES))
        if stock.write_bandwidth is not None:
            half = "assumption: half of what is read"
            self._set("dram", "write_bandwidth", f"{reading.value / 2e9:.3g} GB/s", half)
        return f"{reading.value / 1e9:.1f} GB/s of {cores} cores, spread {reading.spread:.0%}"

    def _draw(self) -> None:
        """What all cores draw from memory now; the best of several moments counts."""
        cores = self.result.computer.cores
        self._drawn.append(self.probes.all_cores_bandwidth(cores, FAR_BYTES // cores))

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
    return f"measured{over}, median of the faster half of {reading.repeats}, spread {reading.spread:.0%}"


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
