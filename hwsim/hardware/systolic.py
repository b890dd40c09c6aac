"""How long a systolic array takes for a product of matrices, and what it reads and writes. Exact counts, no clock.

An array of R rows and C columns takes a product C[M,N] += A[M,K] B[K,N] apart into folds. A fold holds one tile of an
operand in the cells while another operand streams through them for T cycles:

    dataflow   along rows   along columns   streamed (T)   stays in the cells
    ws         K            N               M              weights B
    os         M            N               K              sums C
    is         K            M               N              inputs A

`hwsim/hardware/cell_array.py` computes the same cell by cell and cycle by cycle; docs/explanation/systolic.md derives
the formulas from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from hwsim.spec.systolic import Dataflow, Folding

ALONG: dict[Dataflow, tuple[str, str, str]] = {"ws": ("k", "n", "m"), "os": ("m", "n", "k"), "is": ("k", "m", "n")}
"""What lies along the rows, what along the columns, and what streams."""


@dataclass(frozen=True)
class GemmShape:
    """C[m, n] += A[m, k] B[k, n]."""

    m: int
    n: int
    k: int

    @property
    def macs(self) -> int:
        return self.m * self.n * self.k


@dataclass(frozen=True)
class Occupancy:
    """What one product does to an array, alone and never waiting for data."""

    folds: int
    """Stationary tiles, one after the other."""
    stream_cycles: int
    """T: how long the streamed operand takes to enter, for each fold."""
    interval_cycles: int
    """From the start of one fold's stream to the start of the next."""
    fill_cycles: int
    """Before the first stream: the first stationary tile moves in."""
    drain_cycles: int
    """After the last value has entered: it crosses the array, and the last sum leaves."""
    cycles: int
    input_reads: int
    weight_reads: int
    output_writes: int
    output_reads: int
    """Sums of an earlier fold that are added to."""
    hops: int
    """Values handed from one cell to its neighbour."""
    mapping_efficiency: Fraction
    """Share of the cells that a fold uses, on average."""

    @property
    def streaming_cycles(self) -> int:
        """Cycles in which values enter: what is left are fills, drains and gaps between folds."""
        return self.folds * self.stream_cycles


@dataclass(frozen=True)
class SystolicArray:
    """Rows x columns of cells; `rate` is what a cell does in one cycle in the format at hand."""

    rows: int
    columns: int
    dataflow: Dataflow = "ws"
    folding: Folding = "serial"
    rate: Fraction = Fraction(1)

    @property
    def fill_cycles(self) -> int:
        """To move a stationary tile in, row by row; sums need none."""
        return 0 if self.dataflow == "os" else self.rows

    @property
    def drain_cycles(self) -> int:
        """From the last value's entry at the first cell to the last sum's exit from the last one."""
        return self.rows + self.columns - 2

    def stationary(self, shape: GemmShape) -> tuple[int, int, int]:
        """What lies along the rows, along the columns, and what streams."""
        along_rows, along_columns, streamed = ALONG[self.dataflow]
        return getattr(shape, along_rows), getattr(shape, along_columns), getattr(shape, streamed)

    def fold_counts(self, shape: GemmShape) -> tuple[int, int]:
        """Folds along the rows and along the columns."""
        along_rows, along_columns, _ = self.stationary(shape)
        return -(-along_rows // self.rows), -(-along_columns // self.columns)

    def stream_cycles(self, length: int) -> int:
        """Cycles in which `length` values enter each row."""
        exact = length / self.rate
        return -(-exact.numerator // exact.denominator)

    def interval(self, stream_cycles: int) -> int:
        """From one fold's start to the next: the next tile has to be in, or these sums out, which takes R cycles."""
        if self.folding == "serial":
            return self.fill_cycles + stream_cycles + self.drain_cycles
        return max(stream_cycles, self.rows)

    def cycles(self, folds: int, stream_cycles: int) -> int:
        """All folds, from the first value's entry to the last sum's exit."""
        body = (folds - 1) * self.interval(stream_cycles)
        return self.fill_cycles + body + stream_cycles + self.drain_cycles

    def occupy(self, shape: GemmShape) -> Occupancy:
        """What a product takes. Edge folds cost as much as full ones."""
        along_rows, along_columns, streamed = self.stationary(shape)
        fold_rows, fold_columns = self.fold_counts(shape)
        folds = fold_rows * fold_columns
        stream = self.stream_cycles(streamed)
        m, n, k = shape.m, shape.n, shape.k
        reads = {"ws": (fold_columns, 1), "os": (fold_columns, fold_rows), "is": (1, fold_columns)}[self.dataflow]
        sums = 1 if self.dataflow == "os" else fold_rows
        return Occupancy(
            folds=folds,
            stream_cycles=stream,
            interval_cycles=self.interval(stream),
            fill_cycles=self.fill_cycles,
            drain_cycles=self.drain_cycles,
            cycles=self.cycles(folds, stream),
            input_reads=reads[0] * m * k,
            weight_reads=reads[1] * k * n,
            output_writes=sums * m * n,
            output_reads=(sums - 1) * m * n,
            hops=2 * shape.macs,
            mapping_efficiency=Fraction(along_rows * along_columns, folds * self.rows * self.columns),
        )

    def share(self, shape: GemmShape, batch: int, arrays: int) -> tuple[int, int]:
        """Folds and their stream on each of several arrays that work on `batch` such products together.

        They share out columns of folds, or what streams: whichever takes fewer cycles. A sum that stays in its cell is
        not shared out.
        """
        _, _, streamed = self.stationary(shape)
        fold_rows, fold_columns = self.fold_counts(shape)
        best: tuple[int, int, int] | None = None
        for parts in range(1, arrays + 1):
            if arrays % parts:
                continue
            pieces = arrays // parts if self.dataflow != "os" else 1
            if self.dataflow == "os":
                folds = -(-fold_rows * fold_columns * batch // parts)
            else:
                folds = fold_rows * -(-fold_columns * batch // parts)
            stream = self.stream_cycles(-(-streamed // pieces))
            candidate = self.cycles(folds, stream), folds, stream
            best = candidate if best is None or candidate < best else best
        assert best is not None
        return best[1], best[2]
