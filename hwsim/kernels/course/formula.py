"""An operation given as a formula: any sum of products whose indices are sums of loop counters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod

import numpy as np

from hwsim.errors import InputError
from hwsim.kernels.course.formula_text import FormulaText, Reference, Term, formula_error, parse_formula
from hwsim.kernels.kernel import Setting
from hwsim.kernels.loop.grain import first_shared
from hwsim.kernels.loop.loops import LoopPlan, Operand
from hwsim.kernels.loop_kernel import LoopKernel, Ranges, vector_lanes
from hwsim.kernels.rounding import MOST, sum_pieces
from hwsim.kernels.step import Instructions
from hwsim.numerics.dot import accumulate
from hwsim.numerics.format import Array, find_format
from hwsim.spec.ops.own import FormulaSchedule, FormulaWorkload
from hwsim.trace.nest import Size
from hwsim.trace.view import TensorView


class FormulaKernel(LoopKernel):
    """The loops of a formula; a sum keeps its order at the tiles of the schedule."""

    reads = frozenset({"accumulate"})

    def __init__(self, workload: FormulaWorkload, setting: Setting, given: Mapping[str, Array] | None = None) -> None:
        super().__init__(workload.name, find_format(workload.precision), setting, workload.schedule, given)
        self.formula = parse_formula(workload.formula)
        self.sizes = _checked_sizes(self.formula, workload.sizes)
        self.sum_fmt = self.find_sum_format()
        _check_schedule(self.formula, workload.schedule)
        for name, shape in _shapes(self.formula, self.sizes).items():
            self.add_input(name, *shape)
        target = self.formula.output
        self.add_result(target.tensor, *(self.sizes[index] for index in target.indices), fmt=self.sum_fmt)
        reads = [_operand(self.tensors[ref.tensor], ref) for ref in self.formula.references]
        write = _operand(self.tensors[target.tensor], target)
        plan = _make_plan(self.formula, self.sizes, workload.schedule, setting, [*reads, write])
        extents = {index: self.sizes[index] for index in plan.order}
        body = _body(self.formula)
        summed = self.formula.accumulates
        self.add_loop("formula", extents, reads, write, body, self._compute, plan=plan, accumulates=summed)
        self.shared_index = first_shared(extents, [index for index in plan.order if index in target.indices])
        copies = {index: plan.unroll.get(index, 1) for index in plan.order}
        self.registers_needed = sum(
            int(np.prod([copies[index] for index in ref.indices])) for ref in (*self.formula.references, target)
        )
        self.plan = plan

    @property
    def tolerance(self) -> float:
        summed = [index for index in self.formula.indices if index not in self.formula.output.indices]
        terms = prod(self.sizes[index] for index in summed) * len(self.formula.terms)
        kept = self.rounding.kept_sum(sum_pieces(self.plan, self.sizes, summed))
        return min(MOST, self.rounding.sum(terms) + kept)

    def _compute(self, ranges: Ranges) -> None:
        target = self.formula.output
        here = tuple(slice(ranges[index][0], sum(ranges[index])) for index in target.indices)
        for cut in self._summed_tiles(ranges):
            values = self._value(cut, {name: self.fmt.load(array) for name, array in self._read_arrays().items()})
            if self.formula.accumulates:
                accumulate(self.arrays[target.tensor][here], values, self.sum_fmt)
            else:
                self.arrays[target.tensor][here] = self.sum_fmt.store(values)

    def _summed_tiles(self, ranges: Ranges) -> Iterator[Ranges]:
        """The range, cut at the tiles of the indices that are summed over, in loop order."""
        cuts = []
        for index in self.plan.order:
            first, extent = ranges[index]
            tile = extent if index in self.formula.output.indices else self.plan.tile.get(index, extent)
            starts = range(first, first + extent, tile)
            cuts.append([(index, (start, min(tile, first + extent - start))) for start in starts])
        for combination in product(*cuts):
            yield dict(combination)

    def _read_arrays(self) -> dict[str, Array]:
        return {name: array for name, array in self.arrays.items() if name != self.formula.output.tensor}

    def _value(self, ranges: Ranges, inputs: Mapping[str, Array]) -> Array:
        """The right-hand side over a range, in the shape of the output."""
        target = self.formula.output.indices
        total: Array | None = None
        for term in self.formula.terms:
            value = _term_value(term, target, self.formula.indices, ranges, inputs)
            total = value if total is None else total + value
        assert total is not None, "a formula has at least one term"
        return total

    def _output(self) -> Array:
        return self.arrays[self.formula.output.tensor]

    def _reference(self) -> Array:
        whole = {index: (0, size) for index, size in self.sizes.items()}
        return self._value(whole, {name: array.astype(np.float64) for name, array in self._read_arrays().items()})


def _term_value(
    term: Term, target: Sequence[str], every: Sequence[str], ranges: Ranges, inputs: Mapping[str, Array]
) -> Array:
    """A product of strided windows, summed by einsum over the indices that the output does not have.

    An index of the output that the term lacks is repeated; a summed index that it lacks counts as often as
    it runs.
    """
    letters = {index: chr(ord("a") + number) for number, index in enumerate(every)}
    shape = tuple(ranges[index][1] for index in target)
    own = [index for index in target if any(index in ref.indices for ref in term.references)]
    scale = term.scale
    for index in every:
        if index not in target and not any(index in ref.indices for ref in term.references):
            scale *= ranges[index][1]
    if not term.references:
        return np.full(shape, scale, next(iter(inputs.values())).dtype)
    windows = [_window(inputs[ref.tensor], ref, ranges) for ref in term.references]
    script = ",".join("".join(letters[index] for index in ref.indices) for ref in term.references)
    value = np.einsum(f"{script}->{''.join(letters[index] for index in own)}", *windows, optimize=True)
    if scale != 1:
        value = value * value.dtype.type(scale)
    spread = tuple(ranges[index][1] if index in own else 1 for index in target)
    return np.broadcast_to(value.reshape(spread), shape)


def _window(array: Array, ref: Reference, ranges: Ranges) -> Array:
    """The elements that a reference sees, with one axis for each of its indices: a view, never a copy."""
    strides = dict.fromkeys(ref.indices, 0)
    first = []
    for axis, position in enumerate(ref.positions):
        start = position.constant
        for index, factor in position.factors:
            strides[index] += factor * array.strides[axis]
            start += factor * ranges[index][0]
        first.append(slice(start, None))
    shape = [ranges[index][1] for index in ref.indices]
    return np.lib.stride_tricks.as_strided(
        array[tuple(first)], shape, [strides[index] for index in ref.indices], writeable=False
    )


def _checked_sizes(formula: FormulaText, sizes: Mapping[str, int]) -> dict[str, int]:
    missing = [index for index in formula.indices if index not in sizes]
    if missing:
        raise InputError(f"sizes: no extent for {', '.join(missing)} of the formula {formula.text}")
    unknown = [index for index in sizes if index not in formula.indices]
    if unknown:
        raise InputError(f"sizes: {', '.join(unknown)} does not appear in the formula {formula.text}")
    return {index: sizes[index] for index in formula.indices}


def _shapes(formula: FormulaText, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Each input is as large as the farthest element that is read."""
    shapes: dict[str, tuple[int, ...]] = {}
    for ref in formula.references:
        if any(position.constant < 0 for position in ref.positions):
            raise formula_error(formula.text, ref.column, f"{ref.tensor} is read before its first element")
        ends = tuple(position.last(sizes) + 1 for position in ref.positions)
        known = shapes.get(ref.tensor, ends)
        shapes[ref.tensor] = tuple(max(pair) for pair in zip(ends, known, strict=True))
    return shapes


def _check_schedule(formula: FormulaText, schedule: FormulaSchedule) -> None:
    order = schedule.order or formula.indices
    if sorted(order) != sorted(formula.indices):
        needed = ", ".join(formula.indices)
        raise InputError(f"schedule.order must name each of {needed} once, found {', '.join(order)}")
    for field, cuts in (("tile", schedule.tile), ("unroll", schedule.unroll)):
        for index in cuts:
            if index not in formula.indices:
                raise InputError(f"schedule.{field}: {index} does not appear in the formula {formula.text}")


def _make_plan(
    formula: FormulaText,
    sizes: Mapping[str, int],
    schedule: FormulaSchedule,
    setting: Setting,
    operands: Sequence[Operand],
) -> LoopPlan:
    order = schedule.order or formula.indices
    inner = order[-1]
    extent = min(schedule.tile.get(inner, sizes[inner]), sizes[inner])
    lanes = vector_lanes(setting.lanes, inner, extent, operands) if schedule.vector else 1
    return LoopPlan(
        order=tuple(order),
        tile={index: min(size, sizes[index]) for index, size in schedule.tile.items()},
        unroll={index: min(size, sizes[index]) for index, size in schedule.unroll.items() if size > 1},
        vector=inner if lanes > 1 else None,
        lanes=lanes,
    )


def _operand(view: TensorView, ref: Reference) -> Operand:
    strides: dict[str, Size] = dict.fromkeys(ref.indices, 0)
    base = view.start
    for axis, position in enumerate(ref.positions):
        base += position.constant * view.byte_stride(axis)
        for index, factor in position.factors:
            strides[index] += factor * view.byte_stride(axis)
    return Operand(view.name, base, view.element_bytes, strides)


def _body(formula: FormulaText) -> Instructions:
    """Arithmetic of one point: a product that is added to a sum is one multiply-add."""
    total = Instructions()
    for number, term in enumerate(formula.terms):
        factors = len(term.references) + (abs(term.scale) != 1 and bool(term.references))
        products = max(0, factors - 1)
        added = number > 0 or formula.accumulates
        fused = int(added and products > 0)
        total += Instructions(fma=fused, add=int(added) - fused, mul=products - fused)
    return total
