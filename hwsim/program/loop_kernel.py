"""LoopKernel: a kernel that is one loop nest after another, each with its math beside it.

This is what most kernels are made of, and what a kernel of your own starts from: allocate tensors with
`add_input` and `add_result`, say with `at` which index moves along which axis, describe each loop with `make_loop` and
`add` it. Loops that run tile by tile, one after the other in each tile, are put into a `TileLoop` first; where a loop
needs what all cores have computed before, `begin_phase` lets them wait for each other.

From a workload to its kernel: the ports of an operator, and the kernel of one operator alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from hwsim.errors import InputError, ShapeError
from hwsim.numerics.datapath import WEIGHT_ONLY, Datapath, SumRule, find_datapath
from hwsim.numerics.format import FORMATS, Array, Format, find_format
from hwsim.numerics.quantize import ScaledFormat, can_be_scaled_integers, with_scales
from hwsim.program.kernel import MOST, Formula, Kernel, Numbers, OutputBlock, Setting, Stage, Step, storing_error
from hwsim.program.loops import (
    Compute,
    Item,
    Loop,
    LoopOperation,
    LoopPlan,
    Operand,
    Phase,
    Piece,
    Range,
    Ranges,
    all_loops,
    cut_steps,
    extent_and_unit,
    is_resumed,
    most_shares,
    split_work,
    summed,
    walk,
)
from hwsim.program.tensors import PLAIN, Storage, TensorKernel, load_inputs
from hwsim.spec.base import FormatSpec, ParallelSchedule
from hwsim.spec.workload import WorkloadSpec
from hwsim.trace.nest import MAX_ACCESSES, Chain, Instructions, Nest, Size, Work
from hwsim.trace.view import TensorView
from hwsim.units import listed

if TYPE_CHECKING:
    from hwsim.program.operation import Operator

NOTHING = Instructions()


class LoopKernel(TensorKernel):
    """Loops run one after the other; with several cores, each takes its share of one index through all loops of a
    phase."""

    def __init__(
        self,
        name: str,
        fmt: Format,
        setting: Setting,
        parallel: ParallelSchedule | None = None,
        given: Mapping[str, Array] | None = None,
    ) -> None:
        super().__init__(name, fmt, setting, given)
        self.program: list[Phase] = [Phase()]
        self.expected: Callable[[], Array] | None = None
        """The answer by other means, for a kernel of your own: NumPy in float64 on `arrays`."""
        self._parallel = parallel or ParallelSchedule()
        self._templates: dict[tuple[object, ...], Template] = {}
        self._private: dict[str, Size] = {}
        """Bytes of the tensors of which each share has its own."""

    @property
    def loops(self) -> list[Loop]:
        """Every loop once, in program order."""
        return [loop for phase in self.program for loop in all_loops(phase.items)]

    @property
    def shared_index(self) -> str:
        """The index of the present phase that is shared out among cores."""
        return self.program[-1].shared_index

    @shared_index.setter
    def shared_index(self, index: str) -> None:
        self.program[-1].shared_index = index

    @property
    def workers(self) -> int:
        """How many cores share the work."""
        if self._parallel.parallel == "none" or not any(phase.shared_index for phase in self.program):
            return 1
        return self._parallel.cores or self.setting.cores

    @property
    def useful_flops(self) -> int:
        return sum(summed(phase.items, {}, Loop.flops) for phase in self.program)

    def bytes_of(self, tensor: str) -> int | None:
        return ceil(self._private.get(tensor, 0)) or super().bytes_of(tensor)

    def begin_phase(self, name: str = "") -> None:
        """What follows needs what all cores have done before."""
        if self.program[-1].items:
            self.program.append(Phase())
        self.program[-1].name = name

    def add(self, item: Item) -> None:
        """One more loop, or loop over tiles."""
        phase = self.program[-1]
        phase.items.append(item)
        phase.shared_index = phase.shared_index or (next(iter(item.extents)) if isinstance(item, Loop) else item.index)

    def make_loop(
        self,
        name: str,
        extents: Mapping[str, int],
        reads: Sequence[Operand],
        write: Operand | None,
        body: Instructions,
        compute: Compute,
        *,
        plan: LoopPlan | None = None,
        vector: bool = False,
        accumulates: bool = False,
        late: Sequence[Operand] = (),
        late_body: Instructions = NOTHING,
        stores: Sequence[Operand] = (),
        continues: bool | None = None,
        follows: Mapping[str, tuple[str, int]] | None = None,
    ) -> Loop:
        """A loop nest to be added, or to be put into a loop over tiles.

        `late` operands and `late_body` finish an output value in its register before it is stored: this needs an order
        in which a sum is completed there. `stores` are further results of the loop; with `continues` the output already
        holds a sum to which the loop adds, also in the first tile; without (False) it never does.
        """
        operation = LoopOperation(tuple(reads), write, accumulates, tuple(late), tuple(stores), continues)
        if plan is None:
            order = tuple(extents)
            operands = operation.operands
            lanes = vector_lanes(self.setting.lanes, order[-1], extents[order[-1]], operands) if vector else 1
            plan = LoopPlan(order, vector=order[-1] if lanes > 1 else None, lanes=lanes)
        sums_lanes = accumulates and write is not None and plan.vector not in (None, *write.strides)
        assert not (late or late_body.total) or plan.completes(operation), f"{name}: no value is finished in a register"
        return Loop(name, extents, operation, plan, body, compute, sums_lanes, late_body, follows or {})

    def warnings(self) -> tuple[str, ...]:
        """What was asked for and cannot have an effect here."""
        found = []
        for phase in self.program:
            if self._parallel.parallel != "none" and phase.shared_index:
                shares = len(self.shares(phase))
                if shares < self.workers:
                    word = "share" if shares == 1 else "shares"
                    found.append(f"only {shares} {word} for {self.workers} cores: the rest stay idle")
        found += _gathered(self.loops)
        covered: dict[int, dict[str, None]] = {}
        for loop in self.loops:
            for index, size in loop.plan.tile.items():
                if size == loop.extents[index] > 1:
                    covered.setdefault(size, {})[index] = None
        for size, indices in covered.items():
            words = f"a tile covers all {size} iterations of {listed(indices)}: there is nothing to cut"
            asked = self.asked_tile
            found.append(f"tile={asked} is cut to {size}, and {words}" if asked is not None and asked > size else words)
        return tuple(dict.fromkeys(found))

    @property
    def asked_tile(self) -> int | None:
        """The side of a square tile as the schedule asks for it, which may be more than the extents."""
        return None

    def stages(self) -> Sequence[Stage]:
        self._check_given()
        return [Stage(phase.name or self.name, tuple(self._blocks(phase))) for phase in self.program]

    def compute_loops(self) -> None:
        """The real math of all loops, in order. Refuses given tensors that the kernel does not have."""
        self._check_given()
        for phase in self.program:
            for loop, ranges, _ in walk(phase.items, {}):
                loop.compute(ranges)

    def add_private(self, name: str, *shape: int, fmt: Format | None = None) -> TensorView:
        """Scratch space that no two cores share: a copy for each Block. Its values are up to the loops that use it."""
        cores = 1 if self._parallel.parallel == "none" else self._parallel.cores or self.setting.cores
        copies = most_shares(cores, self._parallel.split)
        view = self.space.allocate(name, (copies, *shape), fmt or self.fmt)
        self.tensors[name] = view
        self._private[name] = view.byte_stride(0)
        return view.slice(0)

    def is_private(self, tensor: str) -> bool:
        """Whether each core has a tensor of its own."""
        return tensor in self._private

    def _blocks(self, phase: Phase) -> list[OutputBlock]:
        if self.workers == 1 or not phase.shared_index:
            return [OutputBlock(0, lambda: self._steps(phase, {}, 0))]
        index = phase.shared_index
        assert all(item.moves_with(index) for item in phase.items), f"{index} does not move all of {phase.name}"

        def block(number: int, share: Range) -> OutputBlock:
            return OutputBlock(number, lambda: self._steps(phase, {index: share}, number))

        return [block(number, share) for number, share in enumerate(self.shares(phase))]

    def shares(self, phase: Phase) -> list[Range]:
        """The ranges of the shared index, one for each Block."""
        extent, unit = extent_and_unit(phase.items, phase.shared_index)
        return split_work(extent, self.workers, unit, self._parallel.split)

    def _steps(self, phase: Phase, share: Ranges, number: int) -> Iterator[Step]:
        shared = self.workers > 1 and bool(phase.shared_index)
        private = {name: number * copy_bytes for name, copy_bytes in self._private.items()} if number else {}
        for loop, ranges, tiled in walk(phase.items, share):
            for cut in cut_steps(loop.plan, ranges, fine=shared and not tiled):
                if self.setting.math:
                    loop.compute(cut)
                yield self._step(loop, cut, private)

    def _step(self, loop: Loop, ranges: Ranges, private: Mapping[str, Size]) -> Step:
        key = template_key(loop, ranges)
        template = self._templates.get(key)
        if template is None:
            template = self._templates[key] = make_template(loop, ranges, self.fmt.name, sketch=self.sketch)
        return template.at(ranges, private)

    def _reference(self) -> Array:
        if self.expected is None:
            raise InputError(f"{self.name} does not say what its answer should be: set kernel.expected")
        return np.asarray(self.expected(), np.float64)


def _gathered(loops: Sequence[Loop]) -> list[str]:
    """Tensors that do not lie along the vectors of a loop, of those loops that do most of the work."""
    most = max((prod(loop.extents.values()) for loop in loops), default=0)
    found: dict[str, list[str]] = {}
    for loop in loops:
        index, lanes = loop.plan.vector, loop.plan.lanes
        if index is None or lanes == 1 or prod(loop.extents.values()) * 2 < most or loop.extents[index] < lanes:
            continue
        for operand in loop.operation.operands:
            if operand.strides.get(index, 0) not in (0, operand.element_bytes):
                found.setdefault(index, []).append(operand.tensor)
    return [
        f"vectors along {index} do little for {' and '.join(dict.fromkeys(names))}: neighbours along {index} do not "
        "lie side by side in memory, so that each vector is put together from single elements (a gather)"
        for index, names in found.items()
    ]


def vector_lanes(lanes: int, index: str, extent: int, operands: Sequence[Operand]) -> int:
    """The widest vector whose body can be described: one that is gathered takes an access for each of its lanes."""

    def accesses(width: int) -> int:
        count = 0
        for operand in operands:
            if index in operand.strides:
                rest = extent % width
                gathered = width > 1 and not operand.has_neighbours(index, width)
                count += width + rest if gathered else 1 + rest.bit_count()
        return count

    while lanes > 1 and accesses(lanes) > MAX_ACCESSES:
        lanes //= 2
    return lanes


def at(view: TensorView, *indices: str | None, tiles: Mapping[str, int] | None = None) -> Operand:
    """A tensor as a loop sees it: the index that moves along each of its axes (None where none does).

    `tiles` gives the extent of a tile of an index for scratch space that holds one tile at a time.
    """
    if len(indices) != len(view.shape):
        raise ShapeError(f"{view.name} of shape {view.shape} needs {len(view.shape)} indices, found {indices}")
    strides: dict[str, Size] = {}
    for axis, index in enumerate(indices):
        if index is not None:
            strides[index] = strides.get(index, 0) + view.byte_stride(axis)
    local = {index: (tile, 0) for index, tile in (tiles or {}).items() if index in strides}
    return Operand(view.name, view.start, view.element_bytes, strides, local)


def part(ranges: Ranges, *indices: str) -> tuple[slice, ...]:
    """The slices that a range of a loop means for an array."""
    return tuple(slice(ranges[index][0], sum(ranges[index])) for index in indices)


LOOP_OVERHEAD = 2
"""Instructions for one iteration of a loop: advance the counter, compare and branch."""


def count_work(
    pieces: Sequence[Piece],
    body: Instructions,
    *,
    flops: int,
    macs: int = 0,
    late: Instructions | None = None,
    lanes: int = 1,
    fmt: str = "fp32",
    sums_lanes: bool = False,
) -> Work:
    """What the Nests compute. `body` is the arithmetic of one point of the loops, `late` that of one stored value.

    `sums_lanes` says that the lanes of a vector hold partial sums, to be added up after the loop.
    """
    runs = sum(piece.body_runs for piece in pieces)
    starts = sum(piece.starts for piece in pieces)
    moved = Instructions(
        load=sum(piece.loads for piece in pieces),
        store=sum(piece.stores for piece in pieces),
        other=sum(LOOP_OVERHEAD * piece.iterations + piece.gathered for piece in pieces),
    )
    if sums_lanes and lanes > 1:
        folds = sum(piece.starts * piece.parallel for piece in pieces) * (lanes.bit_length() - 1)
        moved += Instructions(add=folds, other=folds)
    if late is not None:
        moved += late.scaled(sum(piece.results for piece in pieces))
    return Work(
        flops=flops,
        macs=macs,
        instructions=body.scaled(runs) + moved,
        lanes=lanes,
        fmt=fmt,
        chain=_chain(pieces, body),
        loop_starts=starts,
    )


def _chain(pieces: Sequence[Piece], body: Instructions) -> Chain | None:
    """The chain of an average sum."""
    carrying = [piece for piece in pieces if piece.chain]
    if not carrying:
        return None
    sums = sum(piece.sums for piece in carrying)
    length = -(-sum(piece.sums * piece.chain for piece in carrying) // sums)
    widest = max(carrying, key=lambda piece: piece.sums * piece.chain * piece.parallel)
    return Chain("fma" if body.fma else "add", length, widest.parallel, sums)


NOWHERE: Mapping[str, Size] = {}


@dataclass(frozen=True)
class Template:
    """What a loop does over ranges of a certain shape, at the place where it was lowered."""

    loop: Loop
    starts: Mapping[str, int]
    nests: tuple[Nest, ...]
    operands: tuple[tuple[Operand, ...], ...]
    """The operand behind each access of each nest."""
    work: Work

    def at(self, ranges: Ranges, private: Mapping[str, Size] = NOWHERE) -> Step:
        """The same at another place; `private` tensors lie so many bytes further on."""
        if not private and all(ranges[index][0] == start for index, start in self.starts.items()):
            return Step(self.loop.name, self.work, self.nests)
        shifts: dict[int, Size] = {}
        for operand in (each for operands in self.operands for each in operands):
            if id(operand) not in shifts:
                shifts[id(operand)] = self._shift(operand, ranges) + private.get(operand.tensor, 0)
        nests = (
            nest.moved([shifts[id(operand)] for operand in operands])
            for nest, operands in zip(self.nests, self.operands, strict=True)
        )
        return Step(self.loop.name, self.work, tuple(nests))

    def _shift(self, operand: Operand, ranges: Ranges) -> Size:
        return sum(
            operand.distance(index, ranges[index][0]) - operand.distance(index, start)
            for index, start in self.starts.items()
        )


def make_template(loop: Loop, ranges: Ranges, fmt: str, *, sketch: bool = False) -> Template:
    """Lower a loop over ranges."""
    from hwsim.program.lower import lower  # only where accesses are walked

    pieces = list(lower(loop.operation, loop.plan, ranges, sketch=sketch))
    work = count_work(
        pieces,
        loop.body,
        flops=loop.flops(ranges),
        macs=loop.macs(ranges),
        late=loop.late_body,
        lanes=loop.plan.lanes,
        fmt=fmt,
        sums_lanes=loop.sums_lanes,
    )
    return Template(
        loop,
        {index: start for index, (start, _) in ranges.items()},
        tuple(piece.nest for piece in pieces),
        tuple(piece.operands for piece in pieces),
        work,
    )


def template_key(loop: Loop, ranges: Ranges) -> tuple[object, ...]:
    """Ranges with the same key are shifted copies of each other: equal extents, places within blocks and in tables,
    and sums that all begin or all go on."""
    operands = loop.operation.operands
    places = (ranges[index][0] % block for operand in operands for index, (block, _) in operand.far.items())
    looked_up = (ranges[operand.gather.index][0] for operand in operands if operand.gather is not None)
    resumed = is_resumed(loop.operation, ranges)
    return (id(loop), resumed, *(extent for _, extent in ranges.values()), *places, *looked_up)


Names = Mapping[str, str]
"""The tensor of the kernel behind each port of an operator."""


@dataclass(frozen=True)
class Port:
    """A tensor that an operator reads or writes."""

    name: str
    shape: tuple[int, ...]
    halo: tuple[int, ...] = ()
    """Zeros around it that the operator reads too, so many on each side of each axis: the padding of a convolution."""
    wide: bool = False
    """Whether it holds sums, in the format that a sum of products is kept in."""
    positive: bool = False
    """Whether random values must not be negative: variances, and sums that must not cancel."""
    below: int = 0
    """For positions in a table: they are whole numbers from 0 up to this."""
    over: str = ""
    """The input whose memory an output takes when the operator runs alone: an update in place."""
    fmt: str = ""
    """Its number format, where that is neither the format of the tensors nor that of sums."""


@dataclass(frozen=True)
class OperatorRun:
    """How an operator runs alone: name, precision, cores, and the values that the user gives."""

    name: str
    precision: str | FormatSpec
    parallel: ParallelSchedule
    given: Mapping[str, Array] = field(default_factory=dict)


class OperatorKernel(LoopKernel):
    """A kernel of one operator, whose tensors are called as its ports are."""

    def __init__(self, operator: Operator, run: OperatorRun, setting: Setting) -> None:
        super().__init__(run.name, tensor_format(run.precision, operator.weights), setting, run.parallel, run.given)
        self.operator = operator
        self._factors, self._weights = operator.factors, operator.weights
        self.reads = operator.reads
        self.sum_fmt = self.find_sum_format()
        if isinstance(self.fmt, ScaledFormat) and self._factors:
            base, numbers = self.fmt.base, setting.numbers
            Datapath(base, base, find_format(numbers.accumulate or base.sum_name), numbers.chunk)  # or an error
        self.weight_fmt = weight_format(run.precision, setting.numbers)
        """The format of weights, where it is not that of the tensors."""
        _check_given(operator.inputs, run.given)
        storage = operator.storage(setting.lanes)
        for port in operator.inputs:
            self.add_input(
                port.name, *port.shape, halo=port.halo, positive=port.positive, fmt=self._format_of(port),
                below=port.below, storage=self._stored_as(port, storage.get(port.name, PLAIN)),
            )  # fmt: skip
        if setting.math:
            for name, values in operator.follow(self.arrays).items():
                if name not in run.given:
                    self.arrays[name][...] = self.formats[name].store(values)
        self._names = {port.name: port.over or port.name for port in (*operator.inputs, *operator.outputs)}
        for name, shape in operator.before_results.items():
            self.add_scratch(name, *shape)
        for port in operator.outputs:
            if not port.over:
                kept = storage.get(port.name, PLAIN)
                self.add_result(port.name, *port.shape, fmt=self._format_of(port), halo=port.halo, storage=kept)
        updated = [port.over for port in operator.outputs if port.over] if setting.math else []
        self._before = {name: self.arrays[name].copy() for name in updated}
        self.results = [self._names[port.name] for port in operator.outputs]
        self.registers_needed = operator.registers_needed
        operator.emit(self, self._names)
        for phase in self.program:
            phase.operator, phase.names = operator, self._names

    @property
    def tolerance(self) -> float:
        turned = storing_error(self.fmt) if self.turned else 0.0
        return min(MOST, self.operator.tolerance(self.rounding) + turned)

    @property
    def asked_tile(self) -> int | None:
        tile = getattr(self.operator.schedule, "tile", None)
        return tile if isinstance(tile, int) else None

    def formulas(self) -> tuple[Formula, ...]:
        return self.operator.formulas(self.setting, self.fmt)

    def answers(self) -> Iterator[tuple[str, Array, Array]]:
        self._need_math("answer")
        references = self._references()
        for port in self.operator.outputs:
            yield port.name, self.arrays[self._names[port.name]], references[port.name]

    def _format_of(self, port: Port) -> Format:
        if port.fmt:
            return find_format(port.fmt)
        if self.weight_fmt is not None and port.name in self._weights:
            return self.weight_fmt
        return self.sum_fmt if port.wide else self.fmt

    def _stored_as(self, port: Port, storage: Storage) -> Storage:
        """With the axis along which scales run: that of the products which read the tensor."""
        if self.weight_fmt is not None and port.name in self._weights:
            return replace(storage, along=self._weights[port.name], apart=True)
        if port.name not in self._factors or port.wide or port.fmt:
            return storage
        return replace(storage, along=self._factors[port.name], apart=isinstance(self.fmt, ScaledFormat))

    def _reference(self) -> Array:
        return self._references()[self.operator.outputs[-1].name]

    def _references(self) -> dict[str, Array]:
        inputs = {port.name: self.arrays[port.name] for port in self.operator.inputs} | self._before
        if not self.operator.widens:
            inputs = {name: values.astype(np.float64, copy=False) for name, values in inputs.items()}
        return self.operator.reference(inputs)


def _check_given(ports: Sequence[Port], given: Mapping[str, Array]) -> None:
    """Several tensors that do not fit are named together: which of them is wrong, the user knows."""
    own = [port for port in ports if port.name in given]
    if len(own) > 1 and any(np.shape(given[port.name]) != port.shape for port in own):
        found = " and ".join(f"{port.name} has shape {np.shape(given[port.name])}" for port in own)
        raise ShapeError(f"{found}; the sizes of the workload need {' and '.join(str(port.shape) for port in own)}")


def tensor_format(precision: str | FormatSpec, weights: Collection[str]) -> Format:
    """The format of tensors in a precision: of activations, where it is one for weights and there are some."""
    found = WEIGHT_ONLY.get(precision) if isinstance(precision, str) else None
    return find_format(precision if found is None or not weights else found.activations)


def weight_format(precision: str | FormatSpec, numbers: Numbers) -> Format | None:
    """The format of weights in a precision that stores them more narrowly than the rest; None in any other."""
    found = WEIGHT_ONLY.get(precision) if isinstance(precision, str) else None
    if found is None:
        return None
    if numbers.scale != "none":
        raise InputError(f"scale: {precision} has its own scales, one per {found.scale} of weights; leave it out")
    return with_scales(find_format(found.weights), found.scale, found.block)


def need_floats(name: str, fmt: Format) -> None:
    """Roots, quotients and means have no meaning in whole numbers."""
    if fmt.is_integer:
        usable = ", ".join(each.name for each in FORMATS.values() if not each.is_integer)
        raise InputError(
            f"{name} cannot be computed in {fmt.name}: precision must be one of {usable}; or whole numbers stand for "
            "fractions by a scale: scale=tensor"
        )


Inputs = Mapping[str, Array] | None


def build_kernel(
    workload: WorkloadSpec,
    *,
    seed: int = 0,
    lanes: int = 1,
    cores: int = 1,
    math: bool = True,
    line_bytes: int = 64,
    inputs: Inputs = None,
    compute: str = "",
    sums: SumRule | None = None,
    align: int | None = None,
) -> Kernel:
    """The kernel of a workload, for a machine with `lanes` elements in a vector and `cores` cores.

    `inputs` replaces random tensors by given ones, by name. `compute` is the format that arithmetic runs in, where that
    is not the format of the tensors; `sums` is how the machine keeps sums in it, where the workload does not say;
    with `align` every tensor begins at a multiple of so many bytes.
    """
    if workload.operation is None:
        raise InputError(f"there is no kernel for op '{workload.op}'")
    given: dict[str, Any] = {"seed": seed, "lanes": lanes, "cores": cores, "math": math, "line_bytes": line_bytes}
    given |= {"compute": compute, "sums": sums, "align": align}
    if inputs is None and workload.inputs:
        inputs = load_inputs(workload.inputs)
    if workload.scale is None:
        return build_kernel(with_usual_scale(workload, inputs), **given, inputs=inputs)
    if workload.scale == "auto":
        tried = workload.model_copy(update={"scale": "tensor"})
        with suppress(InputError):
            return build_kernel(tried, **given, inputs=inputs)
        return build_kernel(workload.model_copy(update={"scale": "none"}), **given, inputs=inputs)
    own = Numbers(workload.accumulate, workload.chunk, workload.scale, workload.scale_block, workload.distribution)
    numbers = own
    if sums is not None:
        accumulate, chunk = own.accumulate or sums.accumulate, own.chunk or sums.chunk
        numbers = replace(own, accumulate=accumulate, chunk=chunk, at_tiles=sums.at_tiles)
    kernel: Kernel = workload.operation.kernel(
        workload, Setting(seed, lanes, cores, math, line_bytes, numbers, compute, align), inputs
    )
    unread = [name for name in own.asked() if name not in kernel.reads]
    if unread:
        raise InputError(f"{unread[0]} means nothing to op '{workload.op}'; leave it out")
    return kernel


def with_usual_scale(workload: WorkloadSpec, inputs: Inputs = None) -> WorkloadSpec:
    """Where nobody chose: integers stand for fractions by a scale for each tensor, if the operation can have scales.

    What an operation does not compute in whole numbers stays refused: then another format is the better choice.
    """
    if workload.scale is not None:
        return workload
    plain = workload.model_copy(update={"scale": "none"})
    if inputs or workload.inputs or not can_be_scaled_integers(find_datapath(workload.precision).a):
        return plain
    scaled = workload.model_copy(update={"scale": "tensor"})
    key = (type(workload), repr(workload))
    if key not in _SCALED:
        if len(_SCALED) >= MOST_SCALED:
            _SCALED.clear()
        try:
            build_kernel(plain, math=False)
            build_kernel(scaled, math=False)
            _SCALED[key] = True
        except InputError:
            _SCALED[key] = False
    return scaled if _SCALED[key] else plain


MOST_SCALED = 1024
_SCALED: dict[tuple[type[WorkloadSpec], str], bool] = {}
"""Whether integers of a workload stand for fractions, where nobody chose: it takes two kernels to see."""


def exact_kernel(workload: WorkloadSpec, *, seed: int = 0, inputs: Inputs = None) -> Kernel:
    """The same workload in float64, with its inputs as they were before any rounding: for its reference."""
    plain = {"precision": "fp64", "accumulate": None, "chunk": None, "scale": "none"}
    return build_kernel(workload.model_copy(update=plain), seed=seed, inputs=inputs)
