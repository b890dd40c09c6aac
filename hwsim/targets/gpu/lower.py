"""From a kernel to launches on a GPU: which library kernel each of its operators becomes, and what that costs.

Convolutions, softmax and norms over rows, rounding to a narrower format, and attention are given to kernels of their
own. Otherwise a product of matrices is one launch, whatever is done with its results in registers, and loops that
follow each other and multiply no matrices are one launch over memory. Loops over tiles keep their scratch space on the
SM.

`hwsim run` and `hwsim validate gpu` both come through `map_launches`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from math import ceil, prod
from typing import TYPE_CHECKING, Any

from hwsim.errors import CapacityError, InputError
from hwsim.program.contraction import GemmView, footprint, gemm_view
from hwsim.program.graph import FusedOperator
from hwsim.program.kernel import Kernel
from hwsim.program.loop_kernel import LoopKernel
from hwsim.program.loops import Item, Loop, Operand, Phase, Ranges, all_loops, flops_of, summed, walk
from hwsim.program.operation import Operator
from hwsim.program.tiling import count_body
from hwsim.spec.workload import ThreadSchedule
from hwsim.targets.gpu.attention import DECODE
from hwsim.targets.gpu.device import KernelCost
from hwsim.targets.gpu.gemm import GemmBytes
from hwsim.targets.gpu.knobs import choose_split, choose_tiles
from hwsim.targets.gpu.model import GpuModel, as_gemm
from hwsim.trace.nest import Instructions
from hwsim.units import data

if TYPE_CHECKING:
    from hwsim.program.contraction import ConvView
    from hwsim.targets.gpu.hand_written import MatmulProblem, ProgramCost


OTHER = "memory_other"
FAMILIES = {
    "gemm_tensor": "products on tensor cores",
    "gemm_8bit": "8-bit products",
    "gemm_4bit": "4-bit products",
    "gemm_fp32": "fp32 products",
    "gemm_weight_only": "products with narrow weights",
    "bmm": "batched products",
    "conv_implicit": "convolutions as products",
    "conv_winograd_fft": "convolutions by transforms",
    "attention_fused": "fused attention",
    "attention_decode": "attention of decoding",
    "attention_unfused": "attention in three kernels",
    "memory_bound": "element-wise kernels, softmax and norms",
    "sgemm_ladder": "products written by hand",
    "gemm_other": "products in other formats",
    OTHER: "other passes over memory",
}
"""Families of measurements, as `hwsim validate gpu` names them, and what they are called."""
MEASURED_FORMATS = {
    "fp16": "gemm_tensor", "bf16": "gemm_tensor", "fp32": "gemm_fp32", "int8": "gemm_8bit", "fp8_e4m3": "gemm_8bit",
    "fp8_e5m2": "gemm_8bit", "fp4_e2m1": "gemm_4bit",
}  # fmt: skip
"""The family of a product by the format of its operands."""


@dataclass(frozen=True)
class Conditions:
    """What is so around a kernel: by default nothing lies in the L2, and the library takes its newest kernels.

    A measurement says otherwise where it repeats a kernel, or names the kernel that ran.
    """

    warm: frozenset[str] = frozenset()
    """Tensors that lie in the L2 when the kernel starts."""
    stored_bytes: Mapping[str, float] = field(default_factory=dict)
    """Bytes of an element of a result, where its kernel stores it in another format than the workload's."""
    attention: str = ""
    """The fused attention kernel of the library, by name; its newest one if empty."""
    split_keys: bool = True
    """Whether the keys of decoding may be split among blocks."""
    backward: bool = False
    """Whether it is the kernel of the gradients."""


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
    passes: Mapping[str, float] = field(default_factory=dict)
    """How often a tensor passes the L2 where that is more than once: A for each column of tiles."""
    family: str = OTHER
    """The family of measurements that tells how far off it is likely to be."""
    note: str = ""
    """What a user should know of the way it is computed."""
    workspace_bytes: int = 0
    """Memory that it needs beside the tensors of the program."""


@dataclass(frozen=True)
class OperatorLoops:
    """The loops of one operator of a kernel, to be given to library kernels."""

    model: GpuModel
    kernel: LoopKernel
    stage: str
    conditions: Conditions
    choices: Mapping[str, int]
    names: Mapping[str, str] = field(default_factory=dict)
    """The tensor behind each port of the operator."""

    def launch(
        self,
        name: str,
        cost: KernelCost,
        loops: Sequence[Loop],
        tensors: dict[str, tuple[int, int]] | None = None,
        passes: Mapping[str, float] | None = None,
        family: str = OTHER,
    ) -> Launch:
        """One kernel that computes some of the loops."""
        moved = tensors_of(self.kernel, loops) if tensors is None else tensors
        flops, macs = flops_of_loops(loops), macs_of_loops(loops)
        return Launch(self.stage, name, cost, flops, macs, moved, passes=passes or {}, family=family)

    def tensor(self, port: str) -> str:
        """The tensor in memory behind a port."""
        return self.kernel.tensor(self.names[port]).name

    def element_bytes(self, tensor: str) -> float:
        return float(self.kernel.tensors[tensor].element_bits / 8)

    def stored_bytes(self, tensor: str) -> float:
        """Bytes of an element of a result."""
        return self.conditions.stored_bytes.get(tensor, self.element_bytes(tensor))


def tensors_of(kernel: LoopKernel, loops: Sequence[Loop]) -> dict[str, tuple[int, int]]:
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


def flops_of_loops(loops: Sequence[Loop]) -> int:
    return sum(loop.flops(loop.ranges({})) for loop in loops)


def macs_of_loops(loops: Sequence[Loop]) -> int:
    return sum(loop.macs(loop.ranges({})) for loop in loops)


# Kernels of their own -------------------------------------------------------------------------------------------------

DECODE_QUERIES = 16
"""Up to so many queries for each head of keys, attention is one of decoding: keys are split among blocks."""


def softmax_launch(task: OperatorLoops, operator: Operator, items: Sequence[Item]) -> Iterator[Launch]:
    *rows, columns = operator.inputs[0].shape
    yield _row_launch(task, operator, items, task.model.softmax(prod(rows), columns, task.kernel.fmt.name))


def norm_launch(task: OperatorLoops, operator: Operator, items: Sequence[Item]) -> Iterator[Launch]:
    *rows, columns = operator.inputs[0].shape
    cost = task.model.layernorm if operator.name == "layernorm" else task.model.rmsnorm
    yield _row_launch(task, operator, items, cost(prod(rows), columns, task.kernel.fmt.name))


def quantize_launch(task: OperatorLoops, operator: Operator, items: Sequence[Item]) -> Iterator[Launch]:
    *rows, columns = operator.inputs[0].shape
    to = operator.outputs[-1].fmt
    warm = task.tensor(operator.inputs[0].name) in task.conditions.warm
    cost = task.model.quantize(prod(rows), columns, task.kernel.fmt.name, to, warm)
    yield replace(_row_launch(task, operator, items, cost), family=OTHER)


def _row_launch(task: OperatorLoops, operator: Operator, items: Sequence[Item], cost: KernelCost) -> Launch:
    """One kernel over rows, which keeps on the SM what it has between its passes."""
    loops = list(all_loops(items))
    return task.launch(operator.name, cost, loops, _ports(task, operator, loops), family="memory_bound")


def _ports(task: OperatorLoops, operator: Operator, loops: Sequence[Loop]) -> dict[str, tuple[int, int]]:
    """Elements of the operator's own tensors; its scratch space never leaves the SM."""
    own = {task.tensor(port.name) for port in (*operator.inputs, *operator.outputs)}
    return {name: moved for name, moved in tensors_of(task.kernel, loops).items() if name in own}


def conv_launches(task: OperatorLoops, found: ConvView, view: GemmView, others: Sequence[Loop]) -> Iterator[Launch]:
    """The products of a convolution as an implicit matrix product; what is done to its results is done on the way.

    Tensor cores take 8-bit images only with channels together: others are brought into that order before.
    """
    shape, loop = found.shape, view.loop
    stored = footprint(view.output, loop.extents, round(8 * task.stored_bytes(view.output.tensor)))
    extras = sum(footprint(late, loop.extents, task.kernel.fmt.bits) for late in loop.operation.late)
    gemm = as_gemm(shape)
    x, w = task.tensor(found.images.tensor), task.tensor(found.filters.tensor)
    channels_last = found.axes[1] == max(found.axes)
    cost = task.model.conv(
        shape,
        task.kernel.fmt.name,
        (x in task.conditions.warm, w in task.conditions.warm),
        stored / (gemm.batch * gemm.m * gemm.n),
        extras / (gemm.batch * gemm.m * gemm.n),
        task.choices,
        channels_last=channels_last,
    )
    passes = {x: shape.depth * ceil(gemm.n / cost.tile[1]) / shape.ci, w: ceil(gemm.m / cost.tile[0])}
    made = task.launch(loop.name, cost, [loop, *others], passes=passes, family="conv_implicit")
    if not channels_last and cost.activity.unit == "tensor" and task.kernel.fmt.bits <= 8:
        elements = shape.batch * shape.ci * prod(shape.image)
        first = task.model.elementwise(elements, task.kernel.fmt.name, name=f"reorder {x}")
        yield Launch(task.stage, first.name, first, 0, 0, {x: (elements, elements)}, family="conv_implicit")
    yield made


def conv_of(task: OperatorLoops, operator: Operator | None, view: GemmView) -> ConvView | None:
    """The convolution whose filters a product multiplies with, if it is one of images."""
    found = operator.convolution if operator is not None else None
    return found if found is not None and task.tensor(found.filters.tensor) == view.weight.tensor else None


def is_depthwise(found: ConvView | None) -> bool:
    """A filter for each channel alone leaves a matrix product nothing to share: the lanes do it in passing."""
    return found is not None and found.shape.ci == found.shape.groups > 1


def is_implicit(task: OperatorLoops, found: ConvView | None, view: GemmView) -> bool:
    """Whether the library gathers the windows of a convolution on the way; where they are written out before, as was
    asked for, it reads them there."""
    if found is None or is_depthwise(found):
        return False
    return view.input.tensor == task.tensor(found.images.tensor) or task.kernel.is_private(view.input.tensor)


KEYS = frozenset(("K", "V"))
"""Tensors of attention that stay in the L2 where a measurement repeats it."""


def attention_launches(task: OperatorLoops, operator: Operator, items: Sequence[Item]) -> Iterator[Launch]:
    """Fused, with keys split where a few queries decode; or in three kernels where that was asked for or is all."""
    from hwsim.ops.attention import is_fused, shape_of

    shape, model, fmt = shape_of(operator), task.model, task.kernel.fmt.name
    loops = list(all_loops(items))
    if not is_fused(operator) or not model.device.sm.library.attention:
        first, *others = _unfused(task, items, model.attention_unfused(shape, fmt))
        if is_fused(operator):
            scores = ceil(2 * shape.batch * shape.heads * shape.queries * shape.keys * task.kernel.fmt.element_bytes)
            note = (
                "the library of this GPU has no fused attention kernel (sm.library.attention): it runs as three "
                f"kernels, with {data(scores)} of scores and weights in memory between them"
            )
            first = replace(first, note=note, workspace_bytes=scores)
        yield from (first, *others)
        return
    conditions = task.conditions
    asked = conditions.attention
    few = shape.queries * shape.repeat <= DECODE_QUERIES
    decoding = asked == DECODE or (not asked and few)
    cost = (
        model.decode(shape, fmt, split=conditions.split_keys, choices=task.choices, warm=conditions.warm >= KEYS)
        if decoding
        else model.attention(
            shape, fmt, asked or None, task.choices, conditions.warm >= KEYS, backward=conditions.backward
        )
    )
    flops, macs = summed(items, {}, Loop.flops), summed(items, {}, Loop.macs)
    name, moved = "decode" if decoding else "attention", _ports(task, operator, loops)
    family = "attention_decode" if decoding else "attention_fused"
    if not isinstance(operator, FusedOperator):
        yield Launch(task.stage, name, cost, flops, macs, moved, family=family)
        return
    tail = _tail_launch(task, operator, moved)
    head = {each: elements for each, elements in moved.items() if each not in tail.tensors or elements[1]}
    yield Launch(task.stage, name, cost, flops - tail.flops, macs - tail.macs, head, family=family)
    yield tail


def _tail_launch(task: OperatorLoops, operator: FusedOperator, moved: Mapping[str, tuple[int, int]]) -> Launch:
    """Element-wise operations behind a kernel of the library, which takes none in: one kernel for all of them."""
    (port,) = operator.outputs
    result, elements = task.tensor(port.name), prod(port.shape)
    extras = [each for each in operator.inputs if each not in operator.head.inputs]
    body = sum((count_body(member.program.statements) for member in operator.members[1:]), Instructions())
    cost = task.model.elementwise(
        elements,
        task.kernel.fmt.name,
        reads=1 + round(sum(prod(each.shape) for each in extras) / elements),
        operations=body.total - body.special,
        special=body.special,
        name="+".join(member.name for member in operator.members[1:]),
    )
    own = {task.tensor(each.name): moved[task.tensor(each.name)] for each in extras} | {result: (elements, elements)}
    flops = flops_of(body) * elements
    return Launch(task.stage, cost.name, cost, flops, body.fma * elements, own, family="memory_bound")


def _unfused(task: OperatorLoops, items: Sequence[Item], costs: Sequence[KernelCost]) -> Iterator[Launch]:
    """Scores, softmax, weighted values: each with its own loops, and all operations of them together."""
    loops = list(all_loops(items))
    products = [loop for loop in loops if gemm_view(loop) is not None]
    others = [loop for loop in loops if not any(loop is product for product in products)]
    own = (products[0::2], others, products[1::2])  # a causal mask has both products twice: with it, and below it
    for name, cost, part in zip(("scores", "softmax", "weigh"), costs, own, strict=True):
        yield Launch(
            task.stage, name, cost, _of(items, part, Loop.flops), _of(items, part, Loop.macs),
            tensors_of(task.kernel, part), family="attention_unfused",
        )  # fmt: skip


def _of(items: Sequence[Item], part: Sequence[Loop], count: Callable[[Loop, Ranges], int]) -> int:
    """A number of some of the loops, over all their tiles."""
    return summed(items, {}, lambda loop, ranges: count(loop, ranges) if any(loop is each for each in part) else 0)


# All others, loop by loop ---------------------------------------------------------------------------------------------

CONVERT = {8: 1.0, 4: 1.125}
"""Instructions to make a 16-bit number of an integer of so many bits: two byte permutations and two subtractions of
pairs for four of 8 bits; four logical operations, a shift and four operations on pairs for eight of 4 bits (NVIDIA
FasterTransformer, cutlass_extensions/interleaved_numeric_conversion.h)."""
WIDEST_CONVERT = 2.0
"""Of any other width: unpack, then convert."""
SCALE = 0.5
"""Instructions to multiply a weight by its scale, in pairs."""

LIBRARY: Mapping[str, Callable[[OperatorLoops, Any, Sequence[Item]], Iterator[Launch]]] = {
    "attention": attention_launches,
    "softmax": softmax_launch,
    "layernorm": norm_launch,
    "rmsnorm": norm_launch,
    "quantize": quantize_launch,
}
"""What lays out an operation as a whole, by its name; others are seen loop by loop."""


def map_launches(
    model: GpuModel,
    kernel: Kernel,
    threads: ThreadSchedule | None = None,
    choices: Mapping[str, int] | None = None,
    conditions: Conditions | None = None,
) -> list[Launch]:
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
        stage = phases[0].name or kernel.name
        task = OperatorLoops(model, kernel, stage, conditions or Conditions(), choices or {}, phases[0].names)
        whole = _whole(operator)
        launches += launch_loops(task, operator, items) if whole is None else whole(task, operator, items)
    return launches


def _whole(operator: Operator | None) -> Callable[[OperatorLoops, Any, Sequence[Item]], Iterator[Launch]] | None:
    """What lays out an operation as a whole, if anything does."""
    if getattr(operator, "transform", None) is not None:
        from hwsim.targets.gpu.transformed import transform_launches

        return transform_launches
    return None if operator is None else LIBRARY.get(operator.name)


def _hand_written(model: GpuModel, kernel: Kernel, threads: ThreadSchedule) -> Launch:
    from hwsim.targets.gpu.hand_written import MatmulProblem, make_program, program_cost

    view = _only_product(kernel)
    if view is None or not isinstance(kernel, LoopKernel):
        raise InputError(f"threads.kernel={threads.kernel} is a matrix product written by hand; {kernel.name} is none")
    if kernel.is_turned(view.weight.tensor):
        raise InputError(
            f"threads.kernel={threads.kernel} multiplies two matrices of one format; weights of their own format need "
            "the library's kernel (threads.kernel=library)"
        )
    (_, shape), fmt = view.shape(view.loop.ranges({})), kernel.fmt
    problem = MatmulProblem(shape.m, shape.n, shape.k, fmt.name, fmt.bits)
    program = make_program(problem, threads)
    try:
        found = program_cost(model.device, program)
    except CapacityError as error:
        raise CapacityError(f"{error}; {_smaller(model, problem, threads)}") from error
    return Launch(
        kernel.name,
        program.name,
        found.cost,
        flops_of_loops(kernel.loops),
        macs_of_loops(kernel.loops),
        tensors_of(kernel, kernel.loops),
        found,
        family="sgemm_ladder" if fmt.name == "fp32" else "gemm_other",
    )


def _only_product(kernel: Kernel) -> GemmView | None:
    """The product of two matrices that a kernel is, and nothing else."""
    loops = kernel.loops if isinstance(kernel, LoopKernel) else []
    view = gemm_view(loops[0]) if len(loops) == 1 else None
    return None if view is None or view.batch or view.loop.late_body.total else view


def _smaller(model: GpuModel, problem: MatmulProblem, threads: ThreadSchedule) -> str:
    """The largest block with halved tiles that an SM can hold."""
    from hwsim.targets.gpu.hand_written import find_tiles, make_program, program_cost

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
    """The phases of an operator that is laid out as a whole; all others one by one."""

    def belongs(phase: Phase) -> int:
        return id(phase if _whole(phase.operator) is None else phase.operator)

    for _, group in groupby(kernel.program, key=belongs):
        phases = list(group)
        yield phases[0].operator, phases


def launch_loops(task: OperatorLoops, operator: Operator | None, items: Sequence[Item]) -> Iterator[Launch]:
    """Products one by one, everything between them together; of element-wise passes, each that was asked for."""
    waiting: list[Item] = []
    alone = is_pointwise(operator, items)
    for item in items:
        views = [view for loop in all_loops([item]) if (view := gemm_view(loop)) is not None]
        if views and not is_depthwise(conv_of(task, operator, views[0])):
            yield from _pass(task, operator, waiting)
            waiting = []
            yield from _products(task, operator, item)
        elif alone:
            yield from _pass(task, operator, [item])
        else:
            waiting.append(item)
    yield from _pass(task, operator, waiting)


def is_pointwise(operator: Operator | None, items: Sequence[Item]) -> bool:
    """Whether all loops are passes over the elements of the result: each is a launch, as it was asked for."""
    if operator is None:
        return False
    loops, points = list(all_loops(items)), prod(operator.outputs[-1].shape)
    return all(not each.operation.accumulates and prod(each.extents.values()) == points for each in loops)


def _products(task: OperatorLoops, operator: Operator | None, item: Item) -> Iterator[Launch]:
    """A launch for each product in an item; what else is in its tiles is done on the way."""
    inside = list(all_loops([item]))
    views = [view for loop in inside if (view := gemm_view(loop)) is not None]
    others = [loop for loop in inside if gemm_view(loop) is None]
    for number, view in enumerate(views):
        last = others if number == len(views) - 1 else []
        conv = conv_of(task, operator, view)
        if conv is not None and is_implicit(task, conv, view):
            yield from conv_launches(task, conv, view, last)
        else:
            yield _gemm(task, view, last)


def _gemm(task: OperatorLoops, view: GemmView, others: Sequence[Loop]) -> Launch:
    loop, kernel, warm = view.loop, task.kernel, task.conditions.warm
    whole = loop.ranges({})
    batch, product = view.shape(whole)
    a, b, out = (operand.tensor for operand in (view.input, view.weight, view.output))
    size = task.element_bytes(a)
    stored = prod(whole[index][1] for index in view.output.strides) * task.stored_bytes(out)
    extras = sum(
        prod(whole[i][1] for i in late.strides) * task.element_bytes(late.tensor) for late in loop.operation.late
    )
    a_bytes = footprint(view.input, loop.extents, kernel.tensors[a].element_bits)
    windows = a_bytes < batch * product.m * product.k * size
    data = GemmBytes(
        size, task.element_bytes(b), stored / (batch * product.m * product.n), a in warm, b in warm,
        a_bytes=float(a_bytes) if windows else None, convert=_conversion(kernel, b),
        late=extras / (batch * product.m * product.n), kept_out=out in warm,
    )  # fmt: skip
    device, fmt = task.model.device, kernel.fmt.name
    tiles = choose_tiles(device, fmt, device.unit_for(fmt), data, task.choices)
    split = choose_split(task.choices, product.k, tiles)
    cost = task.model.gemm(replace(product, batch=batch), fmt, data, tiles, split)
    passes = {a: ceil(product.n / cost.tile[1]), b: ceil(product.m / cost.tile[0])}
    family = "gemm_weight_only" if kernel.is_turned(b) else MEASURED_FORMATS.get(fmt, "gemm_other")
    family = "bmm" if batch > 1 and family in ("gemm_tensor", "gemm_fp32") else family
    return task.launch(loop.name, cost, [loop, *others], passes=passes, family=family)


def _conversion(kernel: LoopKernel, weight: str) -> float:
    """Instructions of the lanes for each weight that is stored more narrowly than it is multiplied."""
    return CONVERT.get(kernel.formats[weight].bits, WIDEST_CONVERT) + SCALE if kernel.is_turned(weight) else 0.0


def _pass(task: OperatorLoops, operator: Operator | None, items: Sequence[Item]) -> Iterator[Launch]:
    """Loops over memory as one launch: every tensor goes once through the SMs."""
    loops, kernel = list(all_loops(items)), task.kernel
    if not loops:
        return
    tensors = tensors_of(kernel, loops)
    moved = sum(
        read * task.element_bytes(name) + written * task.stored_bytes(name) for name, (read, written) in tensors.items()
    )
    results = sum(written * task.stored_bytes(name) for name, (_, written) in tensors.items())
    size = kernel.fmt.bits / 8
    elements = max(1, ceil(moved / size))
    special = sum(_instructions(loop, special=True) for loop in loops) / elements
    others = sum(_instructions(loop, special=False) for loop in loops) / elements
    name = loops[0].name if len(loops) == 1 else f"{task.stage}: {len(loops)} passes"
    cost = task.model.elementwise(
        elements, kernel.fmt.name, writes=0, operations=others, special=special, name=loops[0].name,
        written=results, warm=tensors.keys() <= task.conditions.warm,
    )  # fmt: skip
    family = "memory_bound" if is_pointwise(operator, items) else OTHER
    yield task.launch(name, cost, loops, tensors, family=family)


def _instructions(loop: Loop, *, special: bool) -> int:
    """Instructions of the lanes (a multiply-add is one) or of the special-function units that a loop takes."""
    points, results = prod(loop.extents.values()), loop.results(loop.ranges({}))
    body, late = loop.body, loop.late_body
    if special:
        return points * body.special + results * late.special
    return points * (body.fma + body.add + body.mul) + results * (late.fma + late.add + late.mul)
