"""Programs run in float64, statement by statement over whole tensors: the meaning of the text, without loops or
schedules.

It is the reference of formulas, the ground that rewrites are checked on, and what derivatives are compared with. It
shares no code with the evaluation of loops: every statement becomes one sum over explicit coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hwsim.numerics.format import Array, find_format
from hwsim.program.bind import Program, statement_indices
from hwsim.program.expression import FUNCTIONS, Affine, Apply, Element, Expr, IndexValue, Local, Number, is_cast
from hwsim.program.statement import Line, Statement, TileBlock

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
            inside = {each.name for each in _statements(block.body)}
            outside = {name for each in self._others(block) for name in (each.name, *(e.tensor for e in each.reads))}
            self.fresh = known | (self.fresh & (outside | set(self.program.outputs))) | (self.fresh - inside)

    def _others(self, block: TileBlock) -> list[Statement]:
        inside = {id(each) for each in _statements(block.body)}
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


def _statements(lines: Sequence[Line]) -> list[Statement]:
    found: list[Statement] = []
    for line in lines:
        found += [line] if isinstance(line, Statement) else _statements(line.body)
    return found
