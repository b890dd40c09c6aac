"""From a kernel to the layers of a grid, and from a layer to its mapping: which fit, and which one is taken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, NoReturn

import numpy as np

from hwsim.errors import CapacityError, InputError
from hwsim.program.bind import reduced_indices
from hwsim.program.contraction import ConvShape, ConvView, gemm_view
from hwsim.program.expression import Apply, walk
from hwsim.program.kernel import Kernel
from hwsim.program.loop_kernel import LoopKernel, OperatorKernel
from hwsim.program.loops import Item, Loop
from hwsim.program.operation import Operator
from hwsim.program.tiling import all_groups, count_body, make_groups
from hwsim.spec.machine import MachineSpec
from hwsim.targets.grid.agent import play_mapping
from hwsim.targets.grid.mapping import LETTERS, ORDERS, RowStationary, limits, mappings, most_of, problems
from hwsim.targets.grid.model import Drain, GridCost, PeGrid, gated_share
from hwsim.trace.nest import Instructions

ELSEWHERE = "run it on a machine with a CPU core"
SPECIAL = {"/": "a division", "sqrt": "a square root", "rsqrt": "a square root", "exp": "an exponential"}
"""What a grid has no unit for, in words."""
Goal = Literal["time", "energy"]
NEARLY = 1.05
"""For energy, mappings that take at most so many times the cycles of the fastest are looked at."""
ORDER = "order"
_HOPELESS = 1.1
_TRIED = 6
"""Mappings that are played at most before one is taken, in the order of their estimates."""
_TRY_PASSES = 100
MEANINGS = {
    "n": "Images whose sums stay in the buffer together",
    "m": "Output channels whose sums stay in the buffer together",
    "e": "Output rows of a pass: columns of a set of elements",
    "p": "Output channels that an element interleaves",
    "q": "Input channels that an element interleaves",
    "r": "Sets of elements with other input channels",
    "t": "Sets of elements with other output channels",
    ORDER: "Loops around the sums in the buffer, from the outside in: m output channels, n images, p rows",
}


@dataclass(frozen=True)
class GridLayer:
    """One convolution or product; matrices are images of one row, and products side by side are groups."""

    name: str
    shape: ConvShape
    drain: Drain
    input: str
    weight: str
    output: str
    operands: tuple[tuple[str, bool], ...] = ()
    """Tensors that meet the outputs on their way out, with a value for each output or else for each channel."""
    conv: ConvView | None = None
    whole_input: bool = True
    """Whether it uses every value of its input equally often; otherwise zeros are not skipped."""

    @property
    def flops(self) -> int:
        """Multiply-adds count twice; what is fused to them once for each operation."""
        return 2 * self.shape.macs + self.shape.outputs * (self.drain.operations + (self.drain.pool > 1))

    def zero_share(self, kernel: Kernel) -> float:
        """The share of multiplications whose input is zero, in the real data."""
        if not kernel.setting.math or self.input not in kernel.arrays:
            return 0.0
        values = kernel.arrays[self.input]
        if self.conv is not None:
            return gated_share(self.conv.as_images(values), self.shape)
        return float(np.mean(np.asarray(values) == 0)) if self.whole_input else 0.0


def layers_of(machine: MachineSpec, kernel: Kernel) -> list[GridLayer]:
    """The layers of a kernel, in order; refuses a kernel of which a part is neither convolution nor product."""
    operator = kernel.operator if isinstance(kernel, OperatorKernel) else None
    if isinstance(operator, Operator) and operator.convolution is not None:
        return [_convolution(machine, kernel, operator, operator.convolution)]
    if not isinstance(kernel, LoopKernel):
        raise _refuse(machine, kernel, f"{kernel.name} is no sum of products")
    return [_product(machine, kernel, item) for phase in kernel.program for item in phase.items]


def _convolution(machine: MachineSpec, kernel: Kernel, operator: Operator, found: ConvView) -> GridLayer:
    """The product with all that is done to its sums; nothing may come before it, and nothing go over them again."""
    groups = all_groups(make_groups(operator.program))
    place = next(number for number, group in enumerate(groups) if found.images in group.reads)
    group = groups[place]
    for other in groups[:place]:
        used = {part.function for part in walk(other.main.value) if isinstance(part, Apply)}
        needs = [name for function, name in SPECIAL.items() if function in used]
        what = f"takes {' and '.join(needs)}" if needs else "is no sum of products"
        raise _refuse(machine, kernel, f"'{other.main.text}' {what}")
    if groups[place + 1 :]:
        raise InputError(
            f"{kernel.name} stores the sums and goes over them again (fused=false); {machine.name} has no unit "
            "for that and does what follows a convolution while its sums leave: give fused=true"
        )
    each = [statement for statement in group.late if not statement.accumulates]
    pooled = [statement for statement in group.late if statement.accumulates]
    if len(pooled) > 1 or any(statement.sign != "max=" for statement in pooled):
        raise _refuse(machine, kernel, f"'{pooled[-1].text}' is no maximum of sums")
    sides = [operator.program.extents[index] for statement in pooled for index in reduced_indices(statement)]
    rows = {index for index in found.images.indices if index in group.target.indices} - set(found.filters.indices)
    late = tuple((element.tensor, bool(rows & set(element.indices))) for element in group.late_reads)
    drain = _drain(_operations(machine, kernel, count_body(each)), late, max(sides, default=1))
    names = (found.images.tensor, found.filters.tensor, group.result.tensor)
    return GridLayer(kernel.name, found.shape, drain, *names, late, found)


def _product(machine: MachineSpec, kernel: LoopKernel, item: Item) -> GridLayer:
    """A loop as products C[m, n] += A[m, k] B[k, n]: m columns of an image, k input and n output channels."""
    view = gemm_view(item) if isinstance(item, Loop) else None
    if view is None:
        name = item.name if isinstance(item, Loop) else kernel.name
        raise _refuse(machine, kernel, f"{name or kernel.name} is no convolution and no matrix product")
    loop = view.loop
    batch, size = view.shape(loop.ranges({}))
    rows = {*view.m, *view.batch}
    late = tuple((each.tensor, bool(rows & set(each.strides))) for each in loop.operation.late)
    drain = _drain(_operations(machine, kernel, loop.late_body), late)
    shape = ConvShape(batch * size.k, batch * size.n, (1, size.m), (1, 1), groups=batch)
    names = (view.input.tensor, view.weight.tensor, view.output.tensor)
    once = kernel.tensors[view.input.tensor].size == batch * size.m * size.k
    return GridLayer(loop.name or kernel.name, shape, drain, *names, late, whole_input=once)


def _drain(operations: int, operands: Sequence[tuple[str, bool]], pool: int = 1) -> Drain:
    maps = sum(whole for _, whole in operands)
    return Drain(operations, maps, len(operands) - maps, pool)


def _operations(machine: MachineSpec, kernel: Kernel, body: Instructions) -> int:
    """Operations for each output; what needs more than a multiplier, an adder and a comparison is refused."""
    if body.special:
        raise _refuse(machine, kernel, "what is fused to it takes exponentials, divisions or roots")
    return 2 * body.fma + body.add + body.mul


def _refuse(machine: MachineSpec, kernel: Kernel, reason: str) -> InputError:
    return InputError(
        f"{kernel.name}: {reason}; the grid of {machine.name} computes convolutions and matrix products, with "
        f"additions, multiplications, comparisons and max-pooling fused to them, and nothing else: {ELSEWHERE}"
    )


def names_of(layers: list[GridLayer]) -> Iterable[str]:
    """Every tensor once, in order."""
    late = [[name for name, _ in each.operands] for each in layers]
    own = zip(layers, late, strict=True)
    return dict.fromkeys(name for each, more in own for name in (each.input, each.output, each.weight, *more))


def find_mapping(
    grid: PeGrid,
    shape: ConvShape,
    zero_share: float = 0.0,
    drain: Drain | None = None,
    *,
    asked: Mapping[str, object] | None = None,
    goal: Goal = "time",
) -> GridCost:
    """The mapping that is asked for, what it leaves open chosen: the least time, then energy, then bytes.

    With the goal energy: of those that are nearly as fast as the fastest, the one with the least energy.
    """
    given = _checked(grid, asked or {})
    found = list(_candidates(grid, shape, given))
    if not found:
        _refuse_mapping(grid, shape, given)
    costs = list(_worth_it(grid, found, zero_share, drain))
    if goal == "energy":
        fastest = min(_busy(grid, cost) for cost in costs)
        costs = [cost for cost in costs if _busy(grid, cost) <= NEARLY * fastest]
        return min(costs, key=lambda cost: (_joules(grid, cost), cost.moved_bytes))
    costs.sort(key=lambda cost: (cost.estimate_cycles, _joules(grid, cost), cost.moved_bytes))
    return _fastest(grid, costs, zero_share, drain)


def _worth_it(grid: PeGrid, found: list[RowStationary], zero_share: float, drain: Drain | None) -> Iterator[GridCost]:
    """The costs of mappings, but for those whose elements alone take much longer than the best one in all."""
    best = float("inf")
    for mapping in sorted(found, key=lambda each: -each.active):
        if mapping.shape.macs / mapping.active > _HOPELESS * best:
            return
        cost = grid.cost(mapping, zero_share, drain)
        best = min(best, cost.estimate_cycles)
        yield cost


def _fastest(grid: PeGrid, costs: list[GridCost], zero_share: float, drain: Drain | None) -> GridCost:
    """The first few are played: an estimate leaves out how transfers get into each other's way."""
    best: tuple[float, float, int] | None = None
    found = costs[0]
    for cost in costs[:_TRIED] if len(costs) > 1 else ():
        if best is not None and cost.estimate_cycles >= best[0]:
            break
        key = (
            play_mapping(grid, cost, zero_share, drain, most=_TRY_PASSES).cycles,
            _joules(grid, cost),
            cost.moved_bytes,
        )
        if best is None or key < best:
            best, found = key, cost
    return found


def knob_names(grid: PeGrid) -> dict[str, str]:
    """How each choice is typed, with the machine's own names of where its values lie."""
    buffer, unit = grid.buffer.name, grid.unit.name
    inputs, sums = grid.pads["input"].name, grid.pads["output"].name
    levels = {"n": buffer, "m": buffer, "e": unit, "p": sums, "q": inputs, "r": unit, "t": unit}
    return {letter: f"tile.{level}.{letter}" for letter, level in levels.items()} | {ORDER: ORDER}


def choices(grid: PeGrid, shape: ConvShape, asked: Mapping[str, object] | None = None) -> dict[str, tuple[str, ...]]:
    """The values that each choice may have, the others as asked for or as small as they can be."""
    given = {name: value for name, value in _checked(grid, asked or {}).items() if isinstance(value, int)}
    most = limits(shape, grid.sizes, given)
    names = knob_names(grid)
    return {**{names[letter]: _steps(most[letter]) for letter in LETTERS}, ORDER: ORDERS}


def _steps(most: int) -> tuple[str, ...]:
    """1, 2, 4, … and the largest."""
    powers = [1 << bit for bit in range(most.bit_length())]
    return tuple(str(value) for value in sorted({*powers, most} - {0}))


def _checked(grid: PeGrid, asked: Mapping[str, object]) -> dict[str, int | str]:
    """Choices by letter, from names such as ``tile.sums.p`` or ``p``."""
    names = {name: letter for letter, name in knob_names(grid).items()}
    found: dict[str, int | str] = {}
    for name, value in asked.items():
        letter = names.get(name, name)
        if letter == ORDER:
            if value not in ORDERS:
                raise InputError(f"{ORDER}: '{value}' is not one of {', '.join(ORDERS)}")
            found[ORDER] = str(value)
        elif letter not in LETTERS:
            raise InputError(f"'{name}' is no choice of a grid's mapping; those are {', '.join(names)}")
        elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{name}: give a whole number from 1, found {value!r}")
        else:
            found[letter] = value
    return found


def _candidates(grid: PeGrid, shape: ConvShape, given: Mapping[str, int | str]) -> Iterator[RowStationary]:
    """What is worth a look, with the given letters put in, as long as it fits."""
    whole = most_of(shape)
    letters = {letter: value for letter, value in given.items() if isinstance(value, int)}
    for letter, value in letters.items():
        if value > whole[letter]:
            raise InputError(f"{letter}={value}: the layer has {whole[letter]}")
    seen = set()
    for base in _bases(grid, shape, bool(letters)):
        changed = RowStationary.of(shape, {**base.letters(), **letters})
        if "m" not in letters:
            changed = _most_channels(grid, changed)
        deep = whole["q"] > changed.q * changed.r  # then nothing stays from one tile to the next, in any order
        for order in [str(given[ORDER])] if ORDER in given else ["mnp"] if deep else ["mnp", "npm"]:
            mapping = replace(changed, order=order)
            if (
                mapping not in seen
                and mapping.m >= min(whole["m"], mapping.p * mapping.t)
                and not problems(mapping, grid.sizes)
            ):
                seen.add(mapping)
                yield mapping


def _bases(grid: PeGrid, shape: ConvShape, some_given: bool) -> Iterator[RowStationary]:
    yield from mappings(shape, grid.sizes)
    if some_given:
        yield RowStationary.of(shape, {})


def _most_channels(grid: PeGrid, mapping: RowStationary) -> RowStationary:
    """Where p or t were changed, the sums of as many output channels as the buffer has room for."""
    together = mapping.p * mapping.t
    if (mapping.m % together == 0 or mapping.m == mapping.sizes["m"]) and not problems(mapping, grid.sizes):
        return mapping
    room = (grid.sizes.buffer - mapping.input_tile) // (mapping.n * mapping.e * mapping.shape.out[1] * together)
    chunks = -(-mapping.sizes["m"] // together)
    return replace(mapping, m=min(mapping.sizes["m"], together * max(1, min(room, chunks))))


def _refuse_mapping(grid: PeGrid, shape: ConvShape, given: Mapping[str, int | str]) -> NoReturn:
    sizes = grid.sizes
    letters = {letter: value for letter, value in given.items() if isinstance(value, int)}
    if not letters:
        raise CapacityError(
            f"no row-stationary mapping of a {shape.window[0]}x{shape.window[1]} kernel over {shape.image[1]} columns "
            f"fits {grid.machine.name}: it has {sizes.rows} rows, {sizes.inputs} inputs, {sizes.weights} "
            f"weights and {sizes.sums} sums in an element, and {sizes.buffer} values in its buffer"
        )
    wrong = problems(RowStationary.of(shape, letters), sizes)
    largest = []
    for letter in letters:
        most = limits(shape, sizes, {name: value for name, value in letters.items() if name != letter})[letter]
        largest.append(f"{letter}={most}" if most else f"no {letter}")
    raise CapacityError(
        f"{'; '.join(wrong) or 'the mapping does not fit'} on {grid.machine.name}; "
        f"the largest that fits, the others as they are: {', '.join(largest)}"
    )


def _busy(grid: PeGrid, cost: GridCost) -> Fraction:
    """Cycles in which the grid computes or takes weights in."""
    return cost.compute_cycles + Fraction(
        sum(each.weights * count for each, count in cost.passes.items()), grid.unit.weight_words
    )


def _joules(grid: PeGrid, cost: GridCost) -> float:
    """Energy at the machine's prices; the traffic of the buffer where it has none."""
    return grid.picojoules(cost.actions) if grid.machine.energy is not None else float(cost.traffic(grid.buffer.name))
