"""The same array cell by cell and cycle by cycle: slow, and built from wires alone, to prove the formulas.

Every cell has registers and hands values on to its right and lower neighbour. Control knows when a value may enter at
the edge; what happens inside follows from the values that arrive and the marks that travel with them. A mark that
meets the wrong tile, or two sums on one wire, is an error: a schedule that runs through is one that hardware can keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwsim.targets.systolic.spec import Dataflow, Folding

Values = NDArray[Any]
NONE = -1


@dataclass
class CellRun:
    """The product that came out, and what it took."""

    output: Values
    cycles: int = 0
    input_reads: int = 0
    weight_reads: int = 0
    output_writes: int = 0
    starts: list[int] = field(default_factory=list)
    """The cycle in which each fold's first value entered."""
    cells: int = 0
    """Rows and columns: how long a value is on its way at most."""

    def under_way(self, cycle: int, streamed: int) -> list[tuple[int, int]]:
        """Folds that still have values in the array, with their start."""
        oldest = cycle - streamed - self.cells
        return [(number, start) for number, start in enumerate(self.starts) if start > oldest]


def run_cells(a: Values, b: Values, rows: int, columns: int, dataflow: Dataflow, folding: Folding) -> CellRun:
    """``a @ b`` on an array of rows x columns cells."""
    if dataflow == "os":
        return _run_outputs_stay(a, b, rows, columns, folding)
    if dataflow == "ws":
        return _run_weights_stay(a, b, rows, columns, folding)
    turned = _run_weights_stay(b.T, a.T, rows, columns, folding)
    turned.output = turned.output.T
    turned.input_reads, turned.weight_reads = turned.weight_reads, turned.input_reads
    return turned


@dataclass(frozen=True)
class Fold:
    """A piece of the stationary operand, with the ranges of the product that it stands for."""

    number: int
    rows: slice
    columns: slice


def _folds(along_rows: int, along_columns: int, rows: int, columns: int) -> list[Fold]:
    starts = [(r, c) for c in range(0, along_columns, columns) for r in range(0, along_rows, rows)]
    return [
        Fold(number, slice(r, min(r + rows, along_rows)), slice(c, min(c + columns, along_columns)))
        for number, (r, c) in enumerate(starts)
    ]


# Weights stay -------------------------------------------------------------------------------------------------------


class _Shadow:
    """Where the next tile moves in from above while the cells still work with this one.

    Column c starts c cycles after column 0. A value that arrives at a cell pushes the one before it, if it belongs to
    the same tile, on to the cell below; so the first value ends in the last row.
    """

    def __init__(self, rows: int, columns: int, dtype: Any) -> None:
        self.values = np.zeros((rows, columns), dtype)
        self.fold = np.full((rows, columns), NONE)
        self._coming: list[tuple[int, int, Values]] = []
        """Tiles on their way: number, the cycle in which the first value entered, and the tile."""

    def load(self, tile: Values, number: int, cycle: int) -> None:
        whole = np.zeros_like(self.values)
        whole[: tile.shape[0], : tile.shape[1]] = tile
        ended = cycle - sum(self.values.shape)
        self._coming = [*(each for each in self._coming if each[1] > ended), (number, cycle, whole)]

    def step(self, cycle: int) -> None:
        rows, columns = self.values.shape
        for number, start, tile in self._coming:
            for column in range(columns):
                position = cycle - start - column
                if 0 <= position < rows:
                    self._push(tile[rows - 1 - position, column], number, column)

    def _push(self, arriving: Any, number: int, column: int) -> None:
        for row in range(self.values.shape[0]):
            pushed, passes = self.values[row, column], self.fold[row, column] == number
            self.values[row, column], self.fold[row, column] = arriving, number
            if not passes:
                return
            arriving = pushed

    def loaded(self, cycle: int) -> bool:
        """Whether the first column is in; the others follow a cycle apart, as the streamed values do."""
        return bool(self._coming) and cycle >= self._coming[-1][1] + self.values.shape[0]


def _run_weights_stay(a: Values, b: Values, rows: int, columns: int, folding: Folding) -> CellRun:
    streamed = a.shape[0]
    folds = _folds(b.shape[0], b.shape[1], rows, columns)
    run = CellRun(np.zeros((a.shape[0], b.shape[1]), np.result_type(a, b)), cells=rows + columns)
    kind = run.output.dtype
    weights, held = np.zeros((rows, columns), kind), np.full((rows, columns), NONE)
    shadow = _Shadow(rows, columns, kind)
    moving, tag = np.zeros((rows, columns), kind), np.full((rows, columns), NONE)
    sums = np.zeros((rows, columns), kind)
    diagonal = np.add.outer(np.arange(rows), np.arange(columns))
    loading = left = cycle = 0
    while left < len(folds) * streamed * columns:
        done_entering = not run.starts or cycle >= run.starts[-1] + streamed
        if len(run.starts) < loading and done_entering and shadow.loaded(cycle):
            run.starts.append(cycle)
        shadow_free = loading == 0 or (len(run.starts) == loading and folding == "pipelined")
        drained = left == loading * streamed * columns
        if loading < len(folds) and (shadow_free or drained):
            fold = folds[loading]
            tile = b[fold.rows, fold.columns]
            shadow.load(tile, fold.number, cycle)
            run.weight_reads += tile.size
            loading += 1
        # Values move right, sums move down; at the left edge row r lags r cycles behind row 0.
        moving[:, 1:], tag[:, 1:] = moving[:, :-1].copy(), tag[:, :-1].copy()
        above = np.vstack([np.zeros((1, columns), kind), sums[:-1]])
        first = np.zeros((rows, columns), bool)
        _enter(a, folds, run, moving, tag, cycle, streamed)
        for number, start in run.under_way(cycle, streamed):
            first |= (diagonal == cycle - start) & (tag == number)
        if np.any(shadow.fold[first] != tag[first]):
            raise AssertionError("a fold began in a cell whose next tile had not arrived")
        weights[first], held[first] = shadow.values[first], shadow.fold[first]
        if np.any((tag != NONE) & (tag != held)):
            raise AssertionError("a value met the tile of another fold")
        sums = np.where(tag != NONE, above + moving * weights, 0)
        left += _leave(folds, run, sums, tag, cycle, rows)
        shadow.step(cycle)
        cycle += 1
    run.cycles = cycle
    return run


def _enter(
    a: Values, folds: Sequence[Fold], run: CellRun, moving: Values, tag: Values, cycle: int, streamed: int
) -> None:
    """Row r gets the value of position cycle - start - r; rows beyond the tile get zeros, which nobody reads."""
    moving[:, 0], tag[:, 0] = 0, NONE
    for number, start in run.under_way(cycle, streamed):
        fold = folds[number]
        for row in range(moving.shape[0]):
            position = cycle - start - row
            if not 0 <= position < streamed:
                continue
            tag[row, 0] = number
            if row < fold.rows.stop - fold.rows.start:
                moving[row, 0] = a[position, fold.rows.start + row]
                run.input_reads += 1


def _leave(folds: Sequence[Fold], run: CellRun, sums: Values, tag: Values, cycle: int, rows: int) -> int:
    """Sums at the lower edge are added to the accumulators; returns how many left, empty columns counted in."""
    count = 0
    for column in np.flatnonzero(tag[-1] != NONE):
        number = int(tag[-1, column])
        fold = folds[number]
        position = cycle - run.starts[number] - (rows - 1) - int(column)
        if column < fold.columns.stop - fold.columns.start:
            run.output[position, fold.columns.start + column] += sums[-1, column]
            run.output_writes += 1
        count += 1
    return count


# Outputs stay -------------------------------------------------------------------------------------------------------


def _run_outputs_stay(a: Values, b: Values, rows: int, columns: int, folding: Folding) -> CellRun:
    """Inputs move right, weights move down, and a finished sum leaves by the wire of its column in its last cycle."""
    streamed = a.shape[1]
    folds = _folds(a.shape[0], b.shape[1], rows, columns)
    run = CellRun(np.zeros((a.shape[0], b.shape[1]), np.result_type(a, b)), cells=rows + columns)
    kind = run.output.dtype
    sums = np.zeros((rows, columns), kind)
    diagonal = np.add.outer(np.arange(rows), np.arange(columns))
    right, down = np.zeros((rows, columns), kind), np.zeros((rows, columns), kind)
    position = np.full((rows, columns), NONE)
    number = np.full((rows, columns), NONE)
    cycle = finished = 0
    while finished < len(folds) * rows * columns:
        if len(run.starts) < len(folds) and _may_start(run, streamed, rows, cycle, folding, finished, columns):
            run.starts.append(cycle)
        right[:, 1:], down[1:] = right[:, :-1].copy(), down[:-1].copy()
        right[:, 0], down[0] = 0, 0
        position[...], number[...] = NONE, NONE
        for which, start in run.under_way(cycle, streamed):
            fold = folds[which]
            here = cycle - start - diagonal
            active = (here >= 0) & (here < streamed)
            position[active], number[active] = here[active], fold.number
            _feed(a, b, fold, run, right, down, cycle - start, streamed)
        sums = np.where(position == 0, 0, sums)
        sums = np.where(position != NONE, sums + right * down, sums)
        done = position == streamed - 1
        if np.any(done.sum(axis=0) > 1):
            raise AssertionError("two finished sums on the wire of one column")
        for row, column in zip(*np.nonzero(done), strict=True):
            fold = folds[number[row, column]]
            m, n = fold.rows.start + row, fold.columns.start + column
            if m < fold.rows.stop and n < fold.columns.stop:
                run.output[m, n] = sums[row, column]
                run.output_writes += 1
            finished += 1
        cycle += 1
    run.cycles = cycle
    return run


def _may_start(
    run: CellRun, streamed: int, rows: int, cycle: int, folding: Folding, finished: int, columns: int
) -> bool:
    """Serial: all sums are out. Pipelined: the edges are free, and the wires will be when these sums are ready."""
    if not run.starts:
        return True
    if folding == "serial":
        return finished == len(run.starts) * rows * columns
    return cycle >= run.starts[-1] + max(streamed, rows)


def _feed(
    a: Values, b: Values, fold: Fold, run: CellRun, right: Values, down: Values, since: int, streamed: int
) -> None:
    """Row r and column c lag r and c cycles behind the first."""
    for row in range(fold.rows.stop - fold.rows.start):
        if 0 <= since - row < streamed:
            right[row, 0] = a[fold.rows.start + row, since - row]
            run.input_reads += 1
    for column in range(fold.columns.stop - fold.columns.start):
        if 0 <= since - column < streamed:
            down[0, column] = b[since - column, fold.columns.start + column]
            run.weight_reads += 1
