"""Units at banks: what they take for a piece of work, in cycles, and what a kernel's loops are to them. No clock.

All units do the same at the same time, each with the columns of its own bank. A column takes a cycle; a row has to be
opened before its first column, and nothing hides that where a unit has one bank: it has one row buffer. Of several
banks, one opens a row while another is read. Refreshes stop them all.

A product C[m, n] += A[m, k] B[k, n] keeps one operand where it lies, cut by its outputs among the banks, and tells all
units the other one, a stretch of k at a time as long as their buffer. Every vector that is told reads the whole
operand once more: nothing is reused but by the lanes. Element-wise loops find all their operands in the same bank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import ceil, prod

from hwsim.errors import CapacityError, InputError
from hwsim.program.contraction import GemmView, footprint, gemm_view
from hwsim.program.kernel import Kernel
from hwsim.program.loop_kernel import LoopKernel
from hwsim.program.loops import Loop, TileLoop
from hwsim.spec.machine import DramSpec, MachineSpec, ScratchpadSpec
from hwsim.targets.pim.spec import PimSpec
from hwsim.units import format_bytes


@dataclass(frozen=True)
class Banks:
    """All units of a machine, with the memory around them."""

    machine: MachineSpec
    unit: PimSpec
    latch: ScratchpadSpec
    """What a unit holds of its bank."""
    buffer: ScratchpadSpec
    """What all units of a channel are told."""
    dram: DramSpec

    @classmethod
    def of(cls, machine: MachineSpec, fmt: str | None = None) -> Banks:
        """The units of a machine; refuses a format that they do not have."""
        unit = machine.compute[0]
        if not isinstance(unit, PimSpec):
            raise InputError(f"machine {machine.name} has no units at its banks: its {unit.name} is a {unit.kind}")
        if fmt is not None and fmt not in unit.formats:
            have = ", ".join(unit.formats)
            raise InputError(
                f"{unit.name} of {machine.name} has no rate for {fmt}; its formats are {have}: "
                f"choose precision={next(iter(unit.formats))}"
            )
        pads = machine.scratchpads
        latch, buffer = (next(pad for pad in pads if role in pad.holds) for role in ("weight", "input"))
        if latch.size < unit.count * unit.width:
            raise CapacityError(
                f"a column of {format_bytes(unit.width)} for each of {unit.count} units needs "
                f"{format_bytes(unit.count * unit.width)} in {latch.name}, which has {format_bytes(latch.size)}"
            )
        return cls(machine, unit, latch, buffer, machine.dram)

    @cached_property
    def clock_hz(self) -> int:
        return self.machine.clock_hz(self.unit.clock)

    @cached_property
    def timing(self) -> Mapping[str, Fraction]:
        """Times of the device in cycles of the units."""
        assert self.dram.timing is not None, "the rules of the class demand one"
        hz = self.machine.clock_hz(self.dram.clock)
        return {name: time.seconds(hz) * self.clock_hz for name, time in self.dram.timing}

    def opening_cycles(self, rows: int, columns: int) -> Fraction:
        """Cycles in which a unit reads nothing because rows of its banks are closed and opened.

        A row stays open as long as the device demands. With several banks for each unit, the others are read meanwhile.
        """
        if not rows:
            return Fraction(0)
        own = self.dram.channels * self.dram.ranks * self.dram.banks // self.unit.count
        read = Fraction(columns, rows)
        closed = max(self.timing["trcd"], self.timing["tras"] - read) + self.timing["trp"]
        return rows * max(Fraction(0), (read + closed) / own - read)

    @cached_property
    def first_cycles(self) -> Fraction:
        """Cycles from a command to the first data of a column."""
        return self.timing["cl"]

    @cached_property
    def refresh_share(self) -> Fraction:
        """Cycles that refreshes add to each cycle of work."""
        busy = self.timing["trfc"] / self.timing["trefi"]
        if busy >= 1:
            raise InputError(f"{self.dram.name}.timing.trfc is no less than trefi: refreshes leave no time for work")
        return busy / (1 - busy)

    @cached_property
    def access_seconds(self) -> Fraction:
        """From the host's read of a result to its arrival."""
        latency = self.dram.latency
        return Fraction(0) if latency is None else latency.seconds(self.machine.clock_hz(self.dram.clock))

    @cached_property
    def channel_bytes_per_second(self) -> Fraction | None:
        """What all channels together carry between the host and the chips."""
        hz = self.machine.clock_hz(self.dram.clock)
        rate = self.dram.bandwidth.bytes_per_cycle(hz) if self.dram.bandwidth is not None else None
        return None if rate is None else rate * hz

    def lanes(self, element_bits: int) -> int:
        return max(1, 8 * self.unit.width // element_bits)

    def columns(self, nbytes: int) -> int:
        """Column accesses for so many bytes of one bank that lie side by side."""
        return -(-nbytes // self.unit.width)

    def rows(self, nbytes: int) -> int:
        """Rows that have to be opened for them."""
        return -(-nbytes // self.dram.row)


SECOND, FIRST = "ws", "is"
"""Which operand of a product stays in the banks."""
MOST_STEPS = 256
"""Vectors that are alike are taken together, so that a pass has about so many steps."""


@dataclass(frozen=True)
class BankStep:
    """Some equal commands to all banks: what is told, what they read, what comes out."""

    repeat: int
    told_bytes: int
    """Of the operand that all units are told; through the channel into the buffers."""
    columns: int
    """Column accesses of the busiest bank."""
    rows: int
    """Rows that it opens."""
    out_bytes: int
    """Results that leave through the channel."""


@dataclass(frozen=True)
class BankPass:
    """One loop of the kernel."""

    stage: str
    name: str
    work: str
    """`mac` or `elementwise`."""
    dataflow: str
    steps: tuple[BankStep, ...]
    flops: int
    macs: int
    bank_bytes: int
    """Read from the cells of all banks."""
    written_bytes: int
    """Written to them: results that stay, and operands that an earlier pass computed."""
    tensors: dict[str, tuple[int, int]]
    """Elements of each tensor that were read or told, and that were written or came out."""
    operations: dict[str, int]


def lower(banks: Banks, kernel: Kernel, dataflow: str | None = None) -> list[BankPass]:
    """Every loop as a pass; refuses what units at banks do not do."""
    if not isinstance(kernel, LoopKernel):
        raise _refusal(banks, kernel.name)
    passes: list[BankPass] = []
    computed: set[str] = set()
    for phase in kernel.program:
        stage = phase.name or kernel.name
        for item in phase.items:
            if isinstance(item, TileLoop):
                raise _refusal(banks, stage)
            view = gemm_view(item)
            if view is not None:
                passes.append(_best_product(banks, kernel, stage, view, dataflow, computed))
            elif _is_elementwise(item):
                passes.append(_elementwise(banks, kernel, stage, item))
            else:
                raise _refusal(banks, item.name)
            computed |= {operand.tensor for operand in item.operation.writes}
    return passes


def _refusal(banks: Banks, what: str) -> InputError:
    return InputError(
        f"{what} is neither a matrix product nor an element-wise loop of additions and multiplications, which is all "
        f"that the units at the banks of {banks.machine.name} compute; run it on a machine with a CPU core"
    )


def _is_elementwise(loop: Loop) -> bool:
    """One result for each point, from values of the same point, without exponentials or divisions."""
    operation = loop.operation
    if operation.output is None or loop.body.special or loop.late_body.total:
        return False
    everywhere = set(loop.extents)
    return set(operation.output.strides) == everywhere and all(not each.gather for each in operation.operands)


def _best_product(
    banks: Banks, kernel: LoopKernel, stage: str, view: GemmView, dataflow: str | None, computed: Set[str]
) -> BankPass:
    """With the operand in the banks that takes less time, where nobody chose."""
    ways = [dataflow] if dataflow is not None else [SECOND, FIRST]
    found = [_product(banks, kernel, stage, view, way, computed) for way in ways]
    return min(found, key=lambda each: _seconds(banks, each))


def _seconds(banks: Banks, each: BankPass) -> float:
    """All commands after each other, or all that goes through the channel."""
    cycles = sum(
        step.repeat * (banks.first_cycles + step.columns + banks.opening_cycles(step.rows, step.columns))
        for step in each.steps
    )
    moved = sum(step.repeat * (step.told_bytes + step.out_bytes) for step in each.steps)
    rate = banks.channel_bytes_per_second
    return max(float(cycles / banks.clock_hz), float(moved / rate) if rate else 0.0)


def _product(
    banks: Banks, kernel: LoopKernel, stage: str, view: GemmView, dataflow: str, computed: Set[str]
) -> BankPass:
    whole = view.loop.ranges({})
    batch, shape = view.shape(whole)
    stays, told = (view.weight, view.input) if dataflow == SECOND else (view.input, view.weight)
    outputs, vectors = (shape.n, shape.m) if dataflow == SECOND else (shape.m, shape.n)
    bits = {operand.tensor: ceil(kernel.tensors[operand.tensor].element_bits) for operand in (stays, told, view.output)}
    room = banks.buffer.size * 8 // (bits[told.tensor] * banks.buffer.buffers)
    written = footprint(stays, view.loop.extents, bits[stays.tensor]) if stays.tensor in computed else 0
    steps = [_put_away(banks, written)] if written else []
    per_bank = -(-outputs // banks.unit.count)
    for length, times in _stretches(shape.k, max(1, room)):
        in_bank = -(-per_bank * length * bits[stays.tensor] // 8)
        step = BankStep(
            repeat=1,
            told_bytes=-(-length * bits[told.tensor] // 8) * banks.dram.channels,
            columns=per_bank * banks.columns(-(-length * bits[stays.tensor] // 8)),
            rows=banks.rows(in_bank),
            out_bytes=-(-outputs * bits[view.output.tensor] // 8),
        )
        steps += _grouped(step, times * vectors * batch)
    late = prod(whole[index][1] for index in view.output.strides) * view.loop.late_body.total
    read = sum(step.repeat * step.columns for step in steps) * banks.unit.width * banks.unit.count
    return BankPass(
        stage,
        view.loop.name,
        "mac",
        dataflow,
        tuple(steps),
        view.loop.flops(whole),
        view.loop.macs(whole),
        read,
        written,
        _tensors(kernel, view.loop),
        {"mac": batch * shape.macs, "late": late},
    )


def _put_away(banks: Banks, nbytes: int) -> BankStep:
    """An operand that came out of an earlier pass goes back into the banks before it can stay there."""
    own = -(-nbytes // banks.unit.count)
    return BankStep(1, nbytes, banks.columns(own), banks.rows(own), 0)


def _elementwise(banks: Banks, kernel: LoopKernel, stage: str, loop: Loop) -> BankPass:
    points = prod(loop.extents.values())
    tensors = _tensors(kernel, loop)
    read, written = (
        sum(-(-count[side] * ceil(kernel.tensors[name].element_bits) // 8) for name, count in tensors.items())
        for side in (0, 1)
    )
    per_bank = -(-(read + written) // banks.unit.count)
    lanes = banks.lanes(kernel.fmt.bits)
    slots = max(1, loop.body.fma + loop.body.add + loop.body.mul)
    columns = max(banks.columns(per_bank), -(-points * slots // (lanes * banks.unit.count)))
    rows = banks.rows(per_bank)
    count = min(MOST_STEPS, rows)
    steps = [BankStep(1, 0, _share(columns, n, count), _share(rows, n, count), 0) for n in range(count)]
    whole = loop.ranges({})
    operations = {"elementwise": points * slots}
    return BankPass(
        stage, loop.name, "elementwise", "", tuple(steps), loop.flops(whole), 0, read, written, tensors, operations
    )


def _share(total: int, number: int, count: int) -> int:
    """The part of a total that falls to one of `count` steps."""
    return (number + 1) * total // count - number * total // count


def _stretches(total: int, most: int) -> Iterator[tuple[int, int]]:
    """Pieces of a length, and how many there are of each."""
    whole, rest = divmod(total, most)
    if whole:
        yield most, whole
    if rest:
        yield rest, 1


def _grouped(step: BankStep, times: int) -> Sequence[BankStep]:
    """Equal commands as a few steps of many."""
    groups = min(MOST_STEPS, times)
    size, more = divmod(times, groups)
    return [replace(step, repeat=size + (n < more)) for n in range(groups)]


def _tensors(kernel: LoopKernel, loop: Loop) -> dict[str, tuple[int, int]]:
    """Elements of each tensor that a loop reads, and that it writes."""
    found: dict[str, list[int]] = {}
    for side, operands in enumerate((loop.operation.reads, loop.operation.writes)):
        for operand in operands:
            bits = kernel.tensors[operand.tensor].element_bits
            elements = int(8 * footprint(operand, loop.extents, bits) // bits)
            found.setdefault(operand.tensor, [0, 0])[side] += elements
    return {name: (read, written) for name, (read, written) in sorted(found.items())}
