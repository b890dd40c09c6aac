"""From a kernel to launches on a GPU: which library kernel each of its loops becomes, and what that costs.

A product of matrices (a convolution among them) is one launch, whatever is done with its results in registers. Loops
that follow each other and multiply no matrices are one launch over memory. Fused attention is one launch, and attention
in three steps is three. Loops over tiles keep their scratch space on the SM.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from math import ceil, prod

from hwsim.errors import CapacityError, InputError
from hwsim.hardware.gpu.attention import AttentionShape
from hwsim.hardware.gpu.cost import KernelCost
from hwsim.hardware.gpu.gemm import GemmBytes, GemmShape
from hwsim.hardware.gpu.model import GpuModel
from hwsim.hardware.gpu.program import ProgramCost, program_cost
from hwsim.hardware.gpu.stream import elementwise
from hwsim.kernels.attention.attention import Attention
from hwsim.kernels.chain.chain import ChainKernel
from hwsim.kernels.kernel import Kernel
from hwsim.kernels.loop.loops import Operand
from hwsim.kernels.loop.program import Item, Loop, Phase, all_loops, summed, walk
from hwsim.kernels.loop_kernel import LoopKernel
from hwsim.kernels.matmul.matmul import Matmul
from hwsim.kernels.matmul.threads import Problem, find_tiles, make_program
from hwsim.kernels.operator import Operator, OperatorKernel
from hwsim.mapping.footprint import footprint
from hwsim.mapping.gemm import GemmView, gemm_view
from hwsim.spec.threads import ThreadSchedule

DECODE_QUERIES = 16
"""Up to so many queries for each head of keys, attention is one of decoding: keys are split among blocks."""


@dataclass(frozen=True)
class Launch:
    """One kernel of a GPU."""

    stage: str
    name: str
    cost: KernelCost
    flops: int
    macs: int
    tensors: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Elements of each tensor that it reads and writes at least."""
    program: ProgramCost | None = None
    """How it was found, for a hand-written kernel."""


def map_launches(model: GpuModel, kernel: Kernel, threads: ThreadSchedule | None = None) -> list[Launch]:
    """Every launch of a kernel, in order; `threads` asks for a hand-written one."""
    if threads is not None and threads.kernel != "library":
        return [_hand_written(model, kernel, threads)]
    if not isinstance(kernel, LoopKernel):
        raise InputError(
            f"{kernel.name} is no sum over tiles that a GPU library has a kernel for; "
            "run it on a machine with a CPU core"
        )
    launches: list[Launch] = []
    for operator, phases in _by_operator(kernel):
        items = [item for phase in phases for item in phase.items]
        name = phases[0].name or kernel.name
        if isinstance(operator, Attention):
            launches += _attention(model, kernel, operator, name, items)
        else:
            launches += _loops(model, kernel, name, items)
    return launches


def _hand_written(model: GpuModel, kernel: Kernel, threads: ThreadSchedule) -> Launch:
    if not isinstance(kernel, Matmul):
        raise InputError(f"threads.kernel={threads.kernel} is a matrix product written by hand; {kernel.name} is none")
    extents, fmt = kernel.extents, kernel.fmt
    problem = Problem(extents["i"], extents["j"], extents["k"], fmt.name, fmt.bits)
    program = make_program(problem, threads)
    try:
        found = program_cost(model.device, program)
    except CapacityError as error:
        raise CapacityError(f"{error}; {_smaller(model, problem, threads)}") from error
    return Launch(
        kernel.name,
        program.name,
        found.cost,
        _flops(kernel.loops),
        _macs(kernel.loops),
        _tensors(kernel, kernel.loops),
        found,
    )


def _smaller(model: GpuModel, problem: Problem, threads: ThreadSchedule) -> str:
    """The largest block with halved tiles that an SM can hold."""
    tiles = find_tiles(threads)
    while min(tiles.bm, tiles.bn) > max(tiles.tm, tiles.tn, tiles.wm, tiles.wn, 1):
        tiles = replace(tiles, bm=tiles.bm // 2) if tiles.bm >= tiles.bn else replace(tiles, bn=tiles.bn // 2)
        asked = ThreadSchedule(kernel=threads.kernel, **{name: size for name, size in asdict(tiles).items() if size})
        with suppress(CapacityError, InputError):
            program_cost(model.device, make_program(problem, asked), most_sectors=1)
            return f"threads.bm={tiles.bm} threads.bn={tiles.bn} would fit"
    return "no block with these tiles of threads and warps fits"


def compute(kernel: LoopKernel) -> None:
    """The real math, loop by loop."""
    for phase in kernel.program:
        for loop, ranges, _ in walk(phase.items, {}):
            loop.compute(ranges)


def _by_operator(kernel: LoopKernel) -> Iterator[tuple[Operator | None, list[Phase]]]:
    """The phases of each operator; of a kernel that is none, all phases one by one."""
    if isinstance(kernel, ChainKernel):
        found = {node.title: node.operator for node in kernel.nodes}
        for title, phases in groupby(kernel.program, key=lambda phase: phase.name):
            yield found.get(title), list(phases)
    elif isinstance(kernel, OperatorKernel):
        yield kernel.operator, kernel.program
    else:
        for phase in kernel.program:
            yield None, [phase]


def _loops(model: GpuModel, kernel: LoopKernel, stage: str, items: Sequence[Item]) -> Iterator[Launch]:
    """Products one by one, everything between them together."""
    waiting: list[Item] = []
    for item in items:
        if any(gemm_view(loop) is not None for loop in all_loops([item])):
            yield from _pass(model, kernel, stage, waiting)
            waiting = []
            yield from _products(model, kernel, stage, item)
        else:
            waiting.append(item)
    yield from _pass(model, kernel, stage, waiting)


def _products(model: GpuModel, kernel: LoopKernel, stage: str, item: Item) -> Iterator[Launch]:
    """A launch for each product in an item; what else is in its tiles is done on the way."""
    inside = list(all_loops([item]))
    views = [view for loop in inside if (view := gemm_view(loop)) is not None]
    others = [loop for loop in inside if gemm_view(loop) is None]
    for number, view in enumerate(views):
        yield _gemm(model, kernel, stage, view, others if number == len(views) - 1 else [])


def _gemm(model: GpuModel, kernel: LoopKernel, stage: str, view: GemmView, others: Sequence[Loop]) -> Launch:
    loop = view.loop
    whole = loop.ranges({})
    batch, product = view.shape(whole)
    size = kernel.fmt.bits / 8
    stored = kernel.tensors[view.output.tensor].element_bits / 8
    extras = sum(prod(whole[i][1] for i in late.strides) * size for late in loop.operation.late)
    out = stored + extras / (batch * product.m * product.n)
    a_bytes = footprint(view.input, loop.extents, kernel.fmt.bits)
    windows = a_bytes < batch * product.m * product.k * size
    data = GemmBytes(size, size, out, a_bytes=float(a_bytes) if windows else None)
    cost = model.gemm(GemmShape(product.m, product.n, product.k, batch), kernel.fmt.name, data)
    loops = [loop, *others]
    return Launch(stage, loop.name, cost, _flops(loops), _macs(loops), _tensors(kernel, loops))


def _pass(model: GpuModel, kernel: LoopKernel, stage: str, items: Sequence[Item]) -> Iterator[Launch]:
    """Loops over memory as one launch: every tensor goes once through the SMs."""
    loops = list(all_loops(items))
    if not loops:
        return
    tensors = _tensors(kernel, loops)
    moved = sum((read + written) * kernel.tensors[name].element_bits / 8 for name, (read, written) in tensors.items())
    size = kernel.fmt.bits / 8
    elements = max(1, ceil(moved / size))
    special = sum(loop.body.special * prod(loop.extents.values()) for loop in loops) / elements
    others = max(0.0, _flops(loops) / elements - special)
    name = loops[0].name if len(loops) == 1 else f"{stage}: {len(loops)} passes"
    cost = elementwise(
        model.device, elements, kernel.fmt.name, writes=0, operations=others, special=special, name=loops[0].name
    )
    yield Launch(stage, name, cost, _flops(loops), _macs(loops), tensors)


def _attention(
    model: GpuModel, kernel: LoopKernel, operator: Attention, stage: str, items: Sequence[Item]
) -> Iterator[Launch]:
    own = operator.shape
    shape = AttentionShape(own.batch, own.heads, own.kv_heads, own.queries, own.keys, own.d, own.causal)
    loops = list(all_loops(items))
    flops, macs = summed(items, {}, Loop.flops), summed(items, {}, Loop.macs)
    fmt = kernel.fmt.name
    if operator.variant == "naive" or not model.device.sm.library.attention:
        costs = model.attention_unfused(shape, fmt)
        shares = (0.5, 0.0, 0.5)
        names = ("scores", "softmax", "weigh")
        tensors = _tensors(kernel, loops)
        for cost, share, name in zip(costs, shares, names, strict=True):
            yield Launch(stage, name, cost, int(flops * share), int(macs * share), tensors if name == "scores" else {})
        return
    decoding = own.queries * own.heads // own.kv_heads <= DECODE_QUERIES
    cost = model.decode(shape, fmt) if decoding else model.attention(shape, fmt)
    ports = {port.name for port in (*operator.inputs, *operator.outputs)}
    tensors = {name: moved for name, moved in _tensors(kernel, loops).items() if name.rpartition(".")[2] in ports}
    yield Launch(stage, "decode" if decoding else "attention", cost, flops, macs, tensors)


def _tensors(kernel: LoopKernel, loops: Sequence[Loop]) -> dict[str, tuple[int, int]]:
    """Elements of each tensor that loops read and write at least; what stays in the tiles of one launch is left out."""
    read: dict[str, int] = {}
    written: dict[str, int] = {}

    def note(found: dict[str, int], operand: Operand, loop: Loop) -> None:
        if any(operand.is_local(index) for index in operand.far):
            return
        bits = kernel.tensors[operand.tensor].element_bits
        elements = 8 * footprint(operand, loop.extents, bits) // bits
        found[operand.tensor] = max(found.get(operand.tensor, 0), elements)

    for loop in loops:
        for operand in (*loop.operation.inputs, *loop.operation.late):
            if operand.tensor not in written:
                note(read, operand, loop)
        for output in (*([loop.operation.output] if loop.operation.output else []), *loop.operation.stores):
            note(written, output, loop)
    return {name: (read.get(name, 0), written.get(name, 0)) for name in sorted({*read, *written})}


def _flops(loops: Sequence[Loop]) -> int:
    return sum(loop.flops(loop.ranges({})) for loop in loops)


def _macs(loops: Sequence[Loop]) -> int:
    return sum(loop.macs(loop.ranges({})) for loop in loops)
