"""From a kernel's loops to what units at banks do: products with one operand in the banks, and element-wise loops.

A product C[m, n] += A[m, k] B[k, n] keeps one operand where it lies, cut by its outputs among the banks, and tells all
units the other one, a stretch of k at a time as long as their buffer. Every vector that is told reads the whole
operand once more: nothing is reused but by the lanes. Element-wise loops find all their operands in the same bank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from math import ceil, prod

from hwsim.errors import InputError
from hwsim.program.gemm import GemmView, footprint, gemm_view
from hwsim.program.kernel import Kernel
from hwsim.program.loop_kernel import LoopKernel
from hwsim.program.loops import Loop, TileLoop
from hwsim.targets.pim.model import Banks

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
