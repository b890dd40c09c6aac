"""A machine with systolic arrays: what a product of matrices takes, what moves how fast, where tensors lie. No clock.

An array of R rows and C columns takes a product C[M,N] += A[M,K] B[K,N] apart into folds. A fold holds one tile of an
operand in the cells while another operand streams through them for T cycles:

    dataflow   along rows   along columns   streamed (T)   stays in the cells
    ws         K            N               M              weights B
    os         M            N               K              sums C
    is         K            M               N              inputs A

`tests/cell_array.py` computes the same cell by cell and cycle by cycle; docs/explanation/systolic.md derives
the formulas from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import ceil, inf
from typing import Any, Literal

from hwsim.engine import seconds_to_fs
from hwsim.errors import InputError
from hwsim.program.contraction import GemmShape, gemm_view
from hwsim.program.kernel import Kernel
from hwsim.program.loops import Item, Loop, all_loops
from hwsim.spec.machine import DramSpec, Level, MachineSpec, ScratchpadSpec
from hwsim.targets.systolic.spec import Dataflow, Folding, SystolicSpec
from hwsim.units import Bandwidth

ALONG: dict[Dataflow, tuple[str, str, str]] = {"ws": ("k", "n", "m"), "os": ("m", "n", "k"), "is": ("k", "m", "n")}
"""What lies along the rows, what along the columns, and what streams."""
Role = Literal["input", "weight", "output"]
ROLES: tuple[Role, ...] = ("input", "weight", "output")
ACCESSES: tuple[tuple[Role, str], ...] = (
    ("input", "read"),
    ("weight", "read"),
    ("output", "write"),
    ("output", "read"),
)
"""Whose values an array reads and writes, in the order of `SystolicArray.accesses`."""
SHARED, ALONE = (1, 2), (7, 8)
"""Of a scratchpad that also takes tiles of weights, tensors may fill a half; of another one, seven eighths."""


@dataclass(frozen=True)
class ArrayOccupancy:
    """What one product does to an array, alone and never waiting for data."""

    folds: int
    """Stationary tiles, one after the other."""
    stream_cycles: int
    """T: how long the streamed operand takes to enter, for each fold."""
    cycles: int
    input_reads: int
    weight_reads: int
    output_writes: int
    output_reads: int
    """Sums of an earlier fold that are added to."""
    hops: int
    """Values handed from one cell to its neighbour."""
    mapping_efficiency: Fraction
    """Share of the cells that a fold uses, on average."""


@dataclass(frozen=True)
class SystolicArray:
    """Rows x columns of cells; `rate` is what a cell does in one cycle in the format at hand."""

    rows: int
    columns: int
    dataflow: Dataflow = "ws"
    folding: Folding = "serial"
    rate: Fraction = Fraction(1)

    @property
    def fill_cycles(self) -> int:
        """To move a stationary tile in, row by row; sums need none."""
        return 0 if self.dataflow == "os" else self.rows

    @property
    def drain_cycles(self) -> int:
        """From the last value's entry at the first cell to the last sum's exit from the last one."""
        return self.rows + self.columns - 2

    def stationary(self, shape: GemmShape) -> tuple[Any, Any, Any]:
        """What lies along the rows, along the columns, and what streams."""
        along_rows, along_columns, streamed = ALONG[self.dataflow]
        return getattr(shape, along_rows), getattr(shape, along_columns), getattr(shape, streamed)

    def fold_counts(self, shape: GemmShape) -> tuple[Any, Any]:
        """Folds along the rows and along the columns."""
        along_rows, along_columns, _ = self.stationary(shape)
        return -(-along_rows // self.rows), -(-along_columns // self.columns)

    def stream_cycles(self, length: Any) -> Any:
        """Cycles in which `length` values enter each row."""
        return -(-length * self.rate.denominator // self.rate.numerator)

    def interval(self, stream_cycles: int) -> int:
        """From one fold's start to the next: the next tile has to be in, or these sums out, which takes R cycles."""
        if self.folding == "serial":
            return self.fill_cycles + stream_cycles + self.drain_cycles
        return max(stream_cycles, self.rows)

    def cycles(self, folds: int, stream_cycles: int) -> int:
        """All folds, from the first value's entry to the last sum's exit."""
        body = (folds - 1) * self.interval(stream_cycles)
        return self.fill_cycles + body + stream_cycles + self.drain_cycles

    def occupy(self, shape: GemmShape) -> ArrayOccupancy:
        """What a product takes. Edge folds cost as much as full ones."""
        along_rows, along_columns, streamed = self.stationary(shape)
        fold_rows, fold_columns = self.fold_counts(shape)
        folds = fold_rows * fold_columns
        stream = self.stream_cycles(streamed)
        mapped = Fraction(along_rows * along_columns, folds * self.rows * self.columns)
        cycles = self.cycles(folds, stream)
        return ArrayOccupancy(folds, stream, cycles, *self.accesses(shape), self.hops(shape), mapped)

    def hops(self, shape: GemmShape) -> int:
        """Values handed from one cell to its neighbour: an operand and a sum for each product of two numbers."""
        return 2 * shape.macs

    def accesses(self, shape: GemmShape) -> tuple[Any, Any, Any, Any]:
        """Inputs and weights that are read, sums that are written, and sums of an earlier fold that are added to."""
        m, n, k = shape.m, shape.n, shape.k
        fold_rows, fold_columns = self.fold_counts(shape)
        reads = {"ws": (fold_columns, 1), "os": (fold_columns, fold_rows), "is": (1, fold_columns)}[self.dataflow]
        sums = 1 if self.dataflow == "os" else fold_rows
        return reads[0] * m * k, reads[1] * k * n, sums * m * n, (sums - 1) * m * n

    def share(self, shape: GemmShape, batch: int, arrays: int) -> tuple[int, int]:
        """Folds and their stream on each of several arrays that work on `batch` such products, in the fewest cycles."""
        if arrays == 1:
            return next(self.shares(shape, batch, 1))
        return min(self.shares(shape, batch, arrays), key=lambda each: (self.cycles(*each), *each))

    def shares(self, shape: GemmShape, batch: int, arrays: int) -> Iterator[tuple[Any, Any]]:
        """Folds and their stream on each array, in every way to share out columns of folds and what streams.

        A sum that stays in its cell is not shared out. Extents are numbers, or arrays of them.
        """
        _, _, streamed = self.stationary(shape)
        fold_rows, fold_columns = self.fold_counts(shape)
        for parts in (each for each in range(1, arrays + 1) if arrays % each == 0):
            if self.dataflow == "os":
                yield -(-fold_rows * fold_columns * batch // parts), self.stream_cycles(streamed)
            else:
                stream = self.stream_cycles(-(-streamed // (arrays // parts)))
                yield fold_rows * -(-fold_columns * batch // parts), stream


@dataclass(frozen=True)
class BitPrices:
    """What a choice of tiles changes the energy by: joules of a bit by part and action, and watts at all times."""

    bits: Mapping[str, float]
    static_watts: float

    def per_bit(self, part: str, action: str = "read") -> float:
        return self.bits.get(f"{part}.{action}", 0.0)


@dataclass(frozen=True)
class Chip:
    """Arrays, the scratchpad next to them for each operand, and main memory."""

    machine: MachineSpec
    unit: SystolicSpec
    array: SystolicArray
    pads: dict[Role, ScratchpadSpec]
    """The scratchpad nearest to the array that holds each operand."""
    dram: DramSpec
    sum_format: str
    known: dict[tuple[object, ...], Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The tiles of products, by all that the choice depends on: layers that are alike are decided once."""

    @cached_property
    def clock_hz(self) -> int:
        return self.machine.clock_hz(self.unit.clock)

    @property
    def home(self) -> str:
        """Where inputs come from and outputs go to, as long as they fit."""
        return self.unit.activations or self.dram.name

    @cached_property
    def keeper(self) -> ScratchpadSpec | None:
        """Where something that one loop leaves for the next can stay: the largest that holds inputs and outputs."""
        found = [pad for pad in self.scratchpads if {"input", "output"} <= set(pad.holds)]
        return max(found, key=lambda pad: pad.size, default=None)

    @cached_property
    def scratchpads(self) -> list[ScratchpadSpec]:
        return [level for level in self.machine.memory if isinstance(level, ScratchpadSpec)]

    @cached_property
    def worktop(self) -> ScratchpadSpec:
        """Where the vector unit finds its operands and leaves its results."""
        return self.keeper or self.pads["output"]

    def holds(self, level: str) -> bool:
        """Whether a level is on the chip."""
        return level in self._names

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(pad.name for pad in self.scratchpads)

    @cached_property
    def peak_macs_per_cycle(self) -> Fraction:
        return self.unit.count * self.unit.rows * self.unit.columns * self.array.rate

    @cached_property
    def start_cycles(self) -> float:
        """Cycles before the first byte of a transfer from or to main memory comes."""
        return float(self.setup_cycles) + float(self.latency_s * self.clock_hz)

    @cached_property
    def setup_cycles(self) -> Fraction:
        """To set up a DMA engine for a request."""
        setup = self.unit.dma.setup
        return Fraction(0) if setup is None else setup.cycles(self.clock_hz)

    @cached_property
    def latency_s(self) -> Fraction:
        """Of main memory."""
        latency = self.dram.latency
        return Fraction(0) if latency is None else latency.seconds(self.machine.clock_hz(self.dram.clock))

    @cached_property
    def latency_fs(self) -> int:
        return seconds_to_fs(self.latency_s)

    @cached_property
    def handover_cycles(self) -> int:
        """From the end of a pass to the start of one that reads its results where they lie."""
        handover = self.unit.handover
        return 0 if handover is None else ceil(handover.cycles(self.clock_hz))

    @cached_property
    def engine_rate(self) -> Fraction | None:
        """Bytes of a DMA engine in a cycle; None without a limit."""
        given = self.unit.dma.bandwidth
        return None if given is None else given.bytes_per_cycle(self.clock_hz)

    @cached_property
    def writing_rate(self) -> Fraction | None:
        """Bytes in a cycle of an engine that stores results, where these have their own."""
        given = self.unit.dma.writing
        return None if given is None else given.bytes_per_cycle(self.clock_hz)

    @cached_property
    def store_weight(self) -> Fraction:
        """How much longer than a byte that is read a byte takes that is written."""
        given = self.dram.write_bandwidth
        reading, writing = self.rates[self.dram.name], None if given is None else self.bytes_per_cycle(self.dram, given)
        return Fraction(1) if reading is None or writing is None else reading / writing

    @cached_property
    def rates(self) -> dict[str, Fraction | None]:
        """What each level delivers in a cycle of the array; None without a limit."""
        return {level.name: self.bytes_per_cycle(level) for level in self.machine.memory}

    @cached_property
    def bytes_per_second(self) -> dict[str, Fraction | None]:
        return {name: None if rate is None else rate * self.clock_hz for name, rate in self.rates.items()}

    @cached_property
    def dram_speed(self) -> float:
        """Bytes of main memory in a cycle."""
        rate = self.rates[self.dram.name]
        return float(rate) if rate is not None else inf

    @cached_property
    def page_bytes(self) -> float:
        """What a DMA engine could move while it waits for the address of a page."""
        rate, wait = self.engine_rate, self.unit.dma.translation
        return 0.0 if rate is None or wait is None else float(wait.cycles(self.clock_hz) * rate)

    @cached_property
    def move_speed(self) -> float:
        """Bytes in a cycle that main memory and the DMA engines together can move."""
        rate = self.engine_rate
        return self.dram_speed if rate is None else min(self.dram_speed, float(rate) * self.unit.dma.engines)

    @cached_property
    def prices(self) -> BitPrices | None:
        """None where the machine has no energies."""
        table = self.machine.energy
        if table is None:
            return None
        bits = {
            name: float(price.energy.picojoules) * 1e-12
            for name, price in table.actions.items()
            if price.energy.per == "bit"
        }
        return BitPrices(bits, sum(float(each.power) + float(each.clock or 0) for each in table.static.values()))

    def bytes_per_cycle(self, level: Level, bandwidth: Bandwidth | None = None) -> Fraction | None:
        """What a level delivers in a cycle of the array; None without a limit."""
        limit = bandwidth or level.bandwidth
        hz = self.machine.clock_hz(level.clock)
        rate = None if limit is None else limit.bytes_per_cycle(hz)
        return None if rate is None else rate * hz / self.clock_hz

    def feed_cycles(self, moved: Mapping[str, int]) -> int:
        """Cycles in which the scratchpads can deliver and take so many bits each, all at the same time."""
        return max(
            (
                -(-moved.get(name, 0) * rate.denominator // (8 * rate.numerator))
                for name, rate in self.pad_rates.items()
            ),
            default=0,
        )

    @cached_property
    def pad_rates(self) -> dict[str, Fraction]:
        """Bytes per cycle of the scratchpads that have a limit: of bandwidth, or of all their banks at once."""
        limits = {
            pad.name: [self.rates[pad.name], Fraction(pad.bank_count * pad.bank_bytes) if pad.banked else None]
            for pad in self.scratchpads
        }
        found = {name: [rate for rate in rates if rate is not None] for name, rates in limits.items()}
        return {name: min(rates) for name, rates in found.items() if rates}


def array_spec(machine: MachineSpec) -> SystolicSpec:
    """The array that a machine computes with, which has to have one."""
    unit = machine.compute[0]
    if not isinstance(unit, SystolicSpec):
        raise InputError(f"machine {machine.name} has no systolic array; its {unit.name} is none")
    return unit


MOST_CHIPS = 64
_CHIPS: dict[tuple[int, str, Dataflow | None], Chip] = {}
"""Chips by the identity of their machines, which they keep: runs one after the other are mostly on one machine."""


def build_chip(machine: MachineSpec, fmt: str, dataflow: Dataflow | None = None) -> Chip:
    """The chip for a run in one number format; refuses formats and dataflows that the array does not have."""
    key = (id(machine), fmt, dataflow)
    if key not in _CHIPS:
        if len(_CHIPS) >= MOST_CHIPS:
            _CHIPS.clear()
        _CHIPS[key] = _build_chip(machine, fmt, dataflow)
    return _CHIPS[key]


def _build_chip(machine: MachineSpec, fmt: str, dataflow: Dataflow | None) -> Chip:
    unit = array_spec(machine)
    if fmt not in unit.formats:
        have = ", ".join(unit.formats)
        raise InputError(
            f"{unit.name} of {machine.name} has no rate for {fmt}; its formats are {have}: "
            f"choose precision={next(iter(unit.formats))}, or add {unit.name}.formats.{fmt} to the machine"
        )
    can = (unit.dataflow, *(each for each in unit.dataflows if each != unit.dataflow))
    if dataflow is not None and dataflow not in can:
        raise InputError(
            f"dataflow={dataflow}: {unit.name} of {machine.name} has {', '.join(can)} alone; choose one of these, or "
            f"change the array itself: --set {unit.name}.dataflow={dataflow}"
        )
    spec = unit.formats[fmt]
    rate = Fraction(spec.rate).limit_denominator(4096)
    array = SystolicArray(unit.rows, unit.columns, dataflow or unit.dataflow, unit.folding, rate)
    scratchpads = [level for level in machine.memory if isinstance(level, ScratchpadSpec)]
    pads = {role: next(pad for pad in scratchpads if role in pad.holds) for role in ROLES}
    dram = next(level for level in machine.memory if isinstance(level, DramSpec))
    return Chip(machine, unit, array, pads, dram, spec.accumulate)


@dataclass
class Allocation:
    """The level of each tensor, and the room that tensors leave in each scratchpad."""

    level: dict[str, str] = field(default_factory=dict)
    nbytes: dict[str, int] = field(default_factory=dict)
    bits: dict[str, int] = field(default_factory=dict)
    lives: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The passes from the first to the last that need a tensor."""
    written: dict[str, list[int]] = field(default_factory=dict)
    """The passes that write a tensor."""
    local: dict[str, int] = field(default_factory=dict)
    """Tensors that only one pass uses, which never leave the chip."""
    away: set[str] = field(default_factory=set)
    """Tensors that would lie on the chip if they had room there."""

    def producer(self, tensor: str, number: int) -> int:
        """The last pass before this one that wrote a tensor; -1 for an input."""
        return max((writer for writer in self.written.get(tensor, ()) if writer < number), default=-1)

    def producers(self, tensors: Iterable[str], number: int) -> tuple[int, ...]:
        """The passes before this one that wrote some tensors, in order."""
        return tuple(sorted({self.producer(tensor, number) for tensor in tensors} - {-1}))

    def taken(self, level: str, number: int) -> int:
        """Bytes of a level that tensors take during a pass."""
        return sum(
            self.nbytes[name]
            for name, where in self.level.items()
            if where == level and self.lives[name][0] <= number <= self.lives[name][1]
        )


def find_places(chip: Chip, kernel: Kernel, items: Sequence[Item], keep: bool) -> Allocation:
    """Activations stay at home as long as they fit, weights in main memory, what lies between on the chip if asked.

    A home on the chip is where one layer leaves what the next one reads. A kernel without a product is no layer: its
    tensors come from main memory and go there.
    """
    places = Allocation()
    uses = [_uses(item) for item in items]
    named = set(getattr(kernel, "results", ()))
    results = named | (_unread(uses) - (_scratch(items, uses) if named else set()))
    for number, (reads, writes) in enumerate(uses):
        for name in sorted(reads | writes):
            places.lives[name] = (places.lives.get(name, (number, 0))[0], number)
        for name in writes:
            places.written.setdefault(name, []).append(number)
    for name, (first, final) in places.lives.items():
        view = kernel.tensors[name]
        places.bits[name] = ceil(view.element_bits)  # an array moves whole bits: the scale of an MX block counts as one
        places.nbytes[name] = -(-view.size * view.element_bits // 8)
        places.level[name] = chip.dram.name
        if name in results:
            places.lives[name] = (first, len(items) - 1)
        elif name not in places.written:
            places.lives[name] = (0, final)
    products = [loop for loop in all_loops(items) if gemm_view(loop) is not None]
    weights, layered = _weights(products) - places.written.keys(), bool(products)
    for name in sorted(places.lives, key=lambda name: places.lives[name]):
        if name in places.written and name not in results and chip.keeper is not None:
            writer = places.written[name][0]
            users = {*places.written[name], *(number for number, (reads, _) in enumerate(uses) if name in reads)}
            if users == {writer} and not isinstance(items[writer], Loop):
                places.local[name] = writer
                places.level[name] = chip.keeper.name
                continue
            if keep:
                _stay(places, name, chip.keeper)
                continue
        if layered and name not in weights and chip.home != chip.dram.name:
            _stay(places, name, next(pad for pad in chip.scratchpads if pad.name == chip.home))
            if places.level[name] == chip.dram.name:
                places.away.add(name)
    return places


def _stay(places: Allocation, name: str, pad: ScratchpadSpec) -> None:
    """Leave a tensor on the chip if there is room during its whole life."""
    parts, of = SHARED if "weight" in pad.holds else ALONE
    first, last = places.lives[name]
    most = max(places.taken(pad.name, number) for number in range(first, last + 1))
    if most + places.nbytes[name] <= pad.size * parts // of:
        places.level[name] = pad.name


def _uses(item: Item) -> tuple[set[str], set[str]]:
    """The tensors that an item reads and writes."""
    reads: set[str] = set()
    writes: set[str] = set()
    for loop in all_loops([item]):
        operation = loop.operation
        reads |= {operand.tensor for operand in operation.reads}
        writes |= {operand.tensor for operand in operation.writes}
        if operation.output is not None and operation.continues:
            reads.add(operation.output.tensor)
    return reads, writes


def _unread(uses: Sequence[tuple[set[str], set[str]]]) -> set[str]:
    """What is written and then read by no later item: an answer, whatever it is called."""
    found: set[str] = set()
    for reads, writes in uses:
        found = (found - reads) | writes
    return found


def _scratch(items: Sequence[Item], uses: Sequence[tuple[set[str], set[str]]]) -> set[str]:
    """What loops inside one loop over tiles leave for each other."""
    fused = [use for item, use in zip(items, uses, strict=True) if not isinstance(item, Loop)]
    return {name for reads, writes in fused for name in reads & writes}


def _weights(products: Sequence[Loop]) -> set[str]:
    """Tensors that are the second operand of products and never the first; a step of training also adds to them."""
    multiplied = [loop.operation.reads for loop in products]
    return {reads[1].tensor for reads in multiplied} - {reads[0].tensor for reads in multiplied}


def room(chip: Chip, places: Allocation, number: int) -> Mapping[str, int]:
    """What tensors leave free in each scratchpad during a pass."""
    return {pad.name: pad.size - places.taken(pad.name, number) for pad in chip.scratchpads}
