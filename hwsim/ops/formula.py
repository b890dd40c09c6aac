"""Operations of your own: statements in a workload file, or in a Python file.

    # my_kernels.py
    import hwsim

    @hwsim.operation("X[m,n] -> Y[m,n]", "Y[i,j] = max(X[i,j], 0) * 0.5", m=64, n=64)
    def half_relu(X):
        return (X + abs(X)) / 4

``hwsim run course_cpu my_kernels.py:half_relu`` runs it. Sizes of the signature that are given as keywords are the
sizes of its workload, with these defaults.

Programs run in float64, statement by statement over whole tensors: the meaning of the text, without loops or
schedules.

It is the reference of formulas, the ground that rewrites are checked on, and what derivatives are compared with. It
shares no code with the evaluation of loops: every statement becomes one sum over explicit coordinates.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from hwsim.errors import InputError
from hwsim.numerics.format import Array, find_format
from hwsim.program import operation as core
from hwsim.program.bind import Program, bind, statement_indices
from hwsim.program.expression import FUNCTIONS, Affine, Apply, Element, Expr, IndexValue, Local, Number, is_cast
from hwsim.program.loop_kernel import vector_lanes
from hwsim.program.loops import LoopPlan, Operand
from hwsim.program.operation import OPERATIONS, Operation, Operator, OwnOperation
from hwsim.program.statement import Line, Statement, TileBlock, all_statements, parse_statements
from hwsim.program.tiling import Group, LoopCuts
from hwsim.spec.base import Extent, IndexName, ParallelSchedule, TensorName
from hwsim.spec.fields import did_you_mean
from hwsim.spec.workload import WorkloadSpec


class FormulaSchedule(ParallelSchedule):
    """Loop order and tiles."""

    order: tuple[IndexName, ...] = Field(
        (), description="Loops, outermost first; in the order of the formula if not given."
    )
    tile: dict[IndexName, Extent] = Field({}, description="Extent of a cache tile along an index.")
    unroll: dict[IndexName, Extent] = Field({}, description="Extent of the register tile along an index.")
    vector: bool = Field(False, description="Use the machine's vector unit on the innermost loop.")
    fused: bool = Field(
        True, description="Statements over the same indices run in the same loops; otherwise each in loops of its own."
    )


class FormulaWorkload(WorkloadSpec):
    """Any operation whose indices are sums of loop counters: one statement, or several."""

    op: Literal["formula"] = Field(description="An operation given as a formula.")
    formula: str = Field(
        description="What is computed for each point of the loops; a statement on each line.",
        examples=["C[i,j] += A[i,k] * B[k,j]"],
    )
    sizes: dict[IndexName, Extent] = Field(description="Extent of each index.", examples=[{"i": 64, "j": 64}])
    tensors: dict[TensorName, tuple[Extent | IndexName, ...]] = Field(
        {},
        description="Shape of a tensor that is read through another, as T of `Y[i,j] = T[I[i],j]`: the indices do not "
        "tell how many rows it has. Numbers, or indices for their extents.",
        examples=[{"T": [1000, "j"]}],
    )
    parameters: dict[IndexName, float] = Field(
        {}, description="Numbers that the formula names.", examples=[{"epsilon": 1e-5}]
    )
    schedule: FormulaSchedule = Field(FormulaSchedule(), description="How the loops run.")

    @model_validator(mode="after")
    def _formula_makes_sense(self) -> Self:
        try:
            check_schedule(self, bound(self))
        except InputError as error:
            raise ValueError(str(error)) from None
        return self


def bound(workload: FormulaWorkload) -> Program:
    """The statements of a file with their extents."""
    lines, sizes, shapes = parse_statements(workload.formula), workload.sizes, {}
    for name, shape in workload.tensors.items():
        unknown = [axis for axis in shape if isinstance(axis, str) and axis not in sizes]
        if unknown:
            raise InputError(f"tensors.{name}: no size {unknown[0]}{did_you_mean(unknown[0], sorted(sizes))}")
        shapes[name] = tuple(sizes[axis] if isinstance(axis, str) else axis for axis in shape)
    program = bind(lines, shapes=shapes, sizes=sizes, parameters=workload.parameters, padded=False)
    for name in shapes:
        if name not in program.inputs:
            raise InputError(f"tensors.{name}: the formula reads {', '.join(program.inputs)}")
    return program


def check_schedule(workload: FormulaWorkload, program: Program) -> None:
    """An order names loops, each once; so do tiles."""
    order, indices = workload.schedule.order, tuple(program.extents)
    if order and sorted(order) != sorted(indices):
        raise InputError(f"schedule.order must name each of {', '.join(indices)} once, found {', '.join(order)}")
    for field, cuts in (("tile", workload.schedule.tile), ("unroll", workload.schedule.unroll)):
        for index in cuts:
            if index not in indices:
                raise InputError(f"schedule.{field}: {index} does not appear in the formula {workload.formula.strip()}")


def formula_layout(operator: Operator, schedule: FormulaSchedule, lanes: int) -> LoopCuts:
    def plan(group: Group, extents: Mapping[str, int], operands: Sequence[Operand]) -> LoopPlan:
        order = tuple(extents)
        inner = order[-1]
        tile = {i: min(size, extents[i]) for i, size in schedule.tile.items() if i in extents}
        width = min(tile.get(inner, extents[inner]), extents[inner])
        chosen = vector_lanes(lanes, inner, width, operands) if schedule.vector else 1
        unroll = {i: min(size, extents[i]) for i, size in schedule.unroll.items() if i in extents and size > 1}
        return LoopPlan(order, tile, unroll, vector=inner if chosen > 1 else None, lanes=chosen)

    return LoopCuts(vector=schedule.vector, fuse=schedule.fused, order=schedule.order, plan=plan)


class FormulaOperation(OwnOperation):
    """The operation of a workload file with a formula."""

    def of(self, workload: FormulaWorkload) -> Operator:
        program = bound(workload)

        def reference(**tensors: Array) -> dict[str, Array]:
            found = interpret(program, {name: np.asarray(tensors[name], np.float64) for name in program.inputs})
            return {name: found[name] for name in program.outputs}

        sums = {each.name for each in program.statements if each.sign == "+="}
        made = Operation(
            "formula",
            workload.formula,
            dict.fromkeys(program.inputs, ()),
            dict.fromkeys(program.outputs, ()),
            reference,
            schedule=FormulaSchedule,
            layout=formula_layout,
            formats={name: "sums" for name in program.outputs if name in sums},
        )
        shapes = {name: program.shapes[name] for name in program.inputs}
        parameters: dict[str, Any] = dict(workload.parameters)
        return Operator(made, shapes, parameters, workload.schedule, sizes=workload.sizes)


FormulaWorkload.operation = FormulaOperation()


# In Python ------------------------------------------------------------------------------------------------------------


def operation(tensors: str, statements: str, **options: Any) -> Callable[[Callable[..., Any]], Operation]:
    """Declares an operation by its statements; the decorated function is its answer in float64, by other means.

    `tensors` is the signature, `X[m,n] W[n] -> Y[m,n]`. A keyword with the name of a size of the signature is its
    default; any other is a parameter that the statements may name. It is scheduled as a formula is: order, tile,
    unroll, vector, fused.
    """
    missing = sorted(name for name in core.sizes_named(tensors) - options.keys() if not name.isdigit())
    if missing:
        raise InputError(
            f"signature '{tensors}': give the sizes {', '.join(missing)} a default, such as {missing[0]}=64"
        )
    declare = core.operation(tensors, statements, **{"schedule": FormulaSchedule, "layout": formula_layout, **options})

    def declare_with_loops(reference: Callable[..., Any]) -> Operation:
        made = declare(reference)
        made.workload.loops = tuple(Operator(made, made.shapes(made.sizes())).program.extents)
        return made

    return declare_with_loops


@cache
def import_operations_of(file: Path, shown: str) -> dict[str, Operation]:
    """Runs a Python file, and gives the operations that it declares; errors of the file are told with their line."""
    if not file.is_file():
        raise InputError(f"there is no file {shown}")
    before = dict(OPERATIONS)
    spec = spec_from_file_location(f"hwsim_own_{file.stem}", file.resolve())
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except InputError:
        raise
    except Exception as error:
        line = _line_of(error, file)
        raise InputError(f"{shown}:{line}: {type(error).__name__}: {error}") from error
    return {name: made for name, made in OPERATIONS.items() if before.get(name) is not made}


def _line_of(error: BaseException, file: Path) -> int:
    """The last line of the file that an error passed."""
    line = getattr(error, "lineno", 1) or 1
    trace = error.__traceback__
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename) == file.resolve():
            line = trace.tb_lineno
        trace = trace.tb_next
    return int(line)


_MOST_POINTS = 1 << 22
"""Points of a statement that are evaluated at once."""

_START = {"+=": 0.0, "max=": -np.inf, "min=": np.inf}
_JOIN: Mapping[str, np.ufunc] = {"+=": np.add, "max=": np.maximum, "min=": np.minimum}


def interpret(program: Program, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Every tensor of a program in float64, from its inputs."""
    values = {name: np.asarray(array, np.float64) for name, array in inputs.items()}
    _Interpreter(program, values).run(program.lines, dict.fromkeys(()))
    return values


class _Interpreter:
    def __init__(self, program: Program, values: dict[str, Array]) -> None:
        self.program = program
        self.values = values
        self.locals: dict[str, tuple[Statement, dict[str, Array]]] = {}
        """What a value in a register was made of, as it was at that time."""
        self.fresh: set[str] = set(values)

    def run(self, lines: Sequence[Line], around: Mapping[str, range | None]) -> None:
        for line in lines:
            if isinstance(line, TileBlock):
                self._tiles(line, around)
            elif isinstance(line.target, Local):
                kept = {
                    each.tensor: self.values[each.tensor].copy() for each in line.reads if each.tensor in self.values
                }
                self.locals[line.target.name] = line, kept
            else:
                self._statement(line, around)

    def _tiles(self, block: TileBlock, around: Mapping[str, range | None]) -> None:
        """Tile after tile; what only the block knows begins anew in each."""
        extent, size = self.program.extents[block.index], self.program.size(block)
        for first in range(0, extent, size):
            known = set(self.fresh)
            self.run(block.body, {**around, block.index: range(first, min(first + size, extent))})
            inside = {each.name for each in all_statements(block.body)}
            outside = {name for each in self._others(block) for name in (each.name, *(e.tensor for e in each.reads))}
            self.fresh = known | (self.fresh & (outside | set(self.program.outputs))) | (self.fresh - inside)

    def _others(self, block: TileBlock) -> list[Statement]:
        inside = {id(each) for each in all_statements(block.body)}
        return [each for each in self.program.statements if id(each) not in inside]

    def _statement(self, statement: Statement, around: Mapping[str, range | None]) -> None:
        target = statement.target
        assert isinstance(target, Element)
        whole = {i: around.get(i) or range(self.program.extents[i]) for i in statement_indices(statement)}
        if target.tensor not in self.values:
            self.values[target.tensor] = np.zeros(self.program.shapes[target.tensor])
        begins = statement.accumulates and target.tensor not in self.fresh
        outer = next(iter(whole), None)
        points = int(np.prod([len(each) for each in whole.values()])) if whole else 1
        pieces = [whole[outer]] if outer is None or points <= _MOST_POINTS else [range(i, i + 1) for i in whole[outer]]  # type: ignore[index]
        if outer is None:
            self._assign(statement, {}, begins)
        seen: set[int] = set()
        for piece in pieces if outer is not None else ():
            assert outer is not None
            first = begins and (outer in target.indices or not seen)
            seen.add(piece.start)
            self._assign(statement, {**whole, outer: piece}, first)
        self.fresh.add(target.tensor)

    def _assign(self, statement: Statement, ranges: Mapping[str, range], begins: bool) -> None:
        target = statement.target
        assert isinstance(target, Element)
        indices = [*target.indices, *(index for index in ranges if index not in target.indices)]
        grid = {
            index: np.arange(ranges[index].start, ranges[index].stop).reshape(
                [-1 if i == index else 1 for i in indices]
            )
            for index in indices
        }
        value = np.broadcast_to(self._value(statement.value, grid), [len(ranges[index]) for index in indices])
        away = tuple(range(len(target.indices), len(indices)))
        shape = [len(ranges[index]) for index in target.indices]
        where = tuple(
            np.broadcast_to(self._place(p, grid), [*shape, *(1 for _ in away)]).reshape(shape) for p in target.positions
        )
        array = self.values[target.tensor]
        if not statement.accumulates:
            array[where] = value
            return
        join = _JOIN[statement.sign]
        before = _START[statement.sign] if begins else array[where]
        array[where] = join(before, join.reduce(value, axis=away))

    def _value(self, expr: Expr, grid: Mapping[str, Array]) -> Array:
        match expr:
            case Number(value):
                return np.asarray(value, np.float64)
            case Local(name):
                statement, kept = self.locals[name]
                now, self.values = self.values, {**self.values, **kept}
                found = self._value(statement.value, grid)
                self.values = now
                return found
            case IndexValue(position):
                return self._place(position, grid)
            case Element():
                return self._read(expr, grid)
            case Apply(name, arguments) if is_cast(name):
                return np.asarray(find_format(name).store(self._value(arguments[0], grid)), np.float64)
            case Apply(name, arguments):
                return np.asarray(FUNCTIONS[name].compute(*(self._value(each, grid) for each in arguments)))
        raise AssertionError(f"{expr} is not bound")

    def _place(self, position: Affine, grid: Mapping[str, Array]) -> Array:
        total: Array = np.asarray(position.constant)
        for index, factor in position.factors:
            total = total + factor * grid[index]
        if position.lookup is not None:
            total = total + self._read(position.lookup, grid).astype(np.int64)
        return total

    def _read(self, element: Element, grid: Mapping[str, Array]) -> Array:
        """Elements by their coordinates; zero beyond the edges."""
        array = self.values[element.tensor]
        places = np.broadcast_arrays(*(self._place(position, grid) for position in element.positions))
        inside = np.ones(places[0].shape, bool)
        clipped = []
        for place, extent in zip(places, array.shape, strict=True):
            inside &= (place >= 0) & (place < extent)
            clipped.append(np.clip(place, 0, extent - 1))
        return np.where(inside, array[tuple(clipped)], 0.0)
