"""Workloads that measure a machine: latencies, bandwidths, and what reading through a strided view costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from hwsim.numerics.format import Array, find_format
from hwsim.ops.reduce import ArraySizes
from hwsim.program.kernel import Formula, Kernel, OutputBlock, Setting, Stage, Step
from hwsim.program.loop_kernel import LoopKernel, at, part
from hwsim.program.loops import LoopPlan, Ranges
from hwsim.spec.base import Bytes, Extent, NoSchedule, ParallelSchedule, Spec
from hwsim.spec.workload import WorkloadSpec
from hwsim.trace.nest import Access, Chain, Instructions, Nest, OffsetTable, Work
from hwsim.trace.view import TensorView

POINTER_BYTES = 8

UNROLL = 8
"""Loads in one pass through the loop of `stream_read`, each for a sum of its own, so that none waits for another."""


class Probe:
    """The operation of a workload whose kernel is written as loops over memory, and not as statements."""

    def __init__(self, kernel: type[Kernel]) -> None:
        self.made = kernel

    def kernel(self, workload: Any, setting: Setting, given: Mapping[str, Array] | None) -> Kernel:
        made: Any = self.made
        return made(workload, setting, given)  # type: ignore[no-any-return]


class ChaseSizes(Spec):
    """A ring of pointers."""

    bytes: Bytes = Field(64 * 1024, description="Memory that the ring covers.", examples=["64 KiB"])
    stride: Bytes = Field(64, description="Distance between pointers in memory.", examples=["64 B"])
    steps: Extent = Field(100_000, description="How many pointers are followed.")


class ChaseWorkload(WorkloadSpec):
    """Follows pointers around a ring in random order: each load waits for the one before."""

    op: Literal["pointer_chase"] = Field(description="Dependent loads in random order.")
    sizes: ChaseSizes = Field(ChaseSizes(), description="The ring.")
    schedule: NoSchedule = Field(NoSchedule(), description="Nothing to choose.")

    @model_validator(mode="after")
    def _ring_fits(self) -> Self:
        if self.sizes.stride > self.sizes.bytes or self.sizes.stride < 8:
            raise ValueError(f"stride must be between 8 B and the {self.sizes.bytes} B of the ring")
        return self


class StreamSizes(Spec):
    """A stretch of memory."""

    bytes: Bytes = Field(1024 * 1024, description="Memory that is read.", examples=["1 MiB"])
    passes: Extent = Field(4, description="How often it is read from end to end.")


class StreamSchedule(ParallelSchedule):
    """A single loop."""

    vector: bool = Field(True, description="Use the machine's vector unit.")


class StreamWorkload(WorkloadSpec):
    """Reads a stretch of memory again and again in unit stride."""

    op: Literal["stream_read"] = Field(description="Unit-stride reads.")
    sizes: StreamSizes = Field(StreamSizes(), description="What is read.")
    schedule: StreamSchedule = Field(StreamSchedule(), description="How the loop runs.")


class ViewSchedule(Spec):
    """Which view of the array is read, and how often."""

    view: Literal["whole", "slice", "transpose", "broadcast"] = Field(
        "whole",
        description="slice: every `step`-th column from `offset` on; transpose: rows as columns; "
        "broadcast: one row of n elements seen as m rows.",
    )
    offset: int = Field(1, ge=0, description="First column of a slice.")
    step: Extent = Field(2, description="Columns from one element of a slice to the next.")
    contiguous: bool = Field(False, description="Copy the view into contiguous memory, and read the copy.")
    reuses: Extent = Field(1, description="How often all elements are read.")
    vector: bool = Field(False, description="Use the machine's vector unit.")


class ViewWorkload(WorkloadSpec):
    """Reads all elements of a strided view, row by row of the view, and adds them up."""

    op: Literal["view"] = Field(description="Reading through a strided view.")
    sizes: ArraySizes = Field(ArraySizes(), description="Extents of the array.")
    schedule: ViewSchedule = Field(ViewSchedule(), description="Which view is read.")

    @model_validator(mode="after")
    def _slice_fits(self) -> Self:
        if self.schedule.view == "slice" and self.schedule.offset >= self.sizes.n:
            raise ValueError(f"offset {self.schedule.offset} is outside a row of {self.sizes.n} elements")
        return self


class PointerChase(Kernel):
    """The ring visits each of its entries once before it returns to the first."""

    def __init__(self, workload: ChaseWorkload, setting: Setting, given: Mapping[str, Array] | None = None) -> None:
        super().__init__(workload.name, find_format("fp64"), setting)
        self.sizes = workload.sizes
        self.entries = self.sizes.bytes // self.sizes.stride
        words = self.entries * self.sizes.stride // POINTER_BYTES
        self.tensors["ring"] = self.space.allocate("ring", [max(1, words)], self.fmt)
        self.take(self.entries)
        random = np.random.default_rng([setting.seed, 0])
        self._visits: NDArray[np.int64] = np.concatenate([[0], 1 + random.permutation(self.entries - 1)])
        self._found = np.zeros(1, np.int64)

    @property
    def useful_flops(self) -> int:
        return 0

    @property
    def tolerance(self) -> float:
        return 0.0

    def stages(self) -> Sequence[Stage]:
        return [Stage(self.name, (OutputBlock(0, self._steps),))]

    def _steps(self) -> Iterator[Step]:
        if self.setting.math:
            self._found[0] = self._follow()
        hops = self.sizes.steps
        work = Work(0, 0, Instructions(load=hops), fmt=self.fmt.name, chain=Chain("load", hops), loop_starts=1)
        yield Step("chase", work, tuple(self._nests()))

    def _nests(self) -> Iterator[Nest]:
        """Whole rounds of the ring, then the part of a round that is left."""
        offsets = self._visits * self.sizes.stride
        rounds, rest = divmod(self.sizes.steps, self.entries)
        base = self.tensors["ring"].base
        if rounds:
            access = Access(base, (0, 0), POINTER_BYTES, tensor="ring", table=OffsetTable(offsets, (0, 1)))
            yield Nest((rounds, self.entries), (access,))
        if rest:
            access = Access(base, (0,), POINTER_BYTES, tensor="ring", table=OffsetTable(offsets, (1,)))
            yield Nest((rest,), (access,))

    def _follow(self) -> int:
        """Really follow the pointers: where the walk stands at the end."""
        following = np.empty(self.entries, np.int64)
        following[self._visits] = np.roll(self._visits, -1)
        pointers = following.tolist()
        here = 0
        for _ in range(self.sizes.steps):
            here = pointers[here]
        return int(here)

    def _output(self) -> Array:
        return self._found

    def _reference(self) -> Array:
        return np.array([self._visits[self.sizes.steps % self.entries]], np.float64)


class StreamRead(LoopKernel):
    """Adds up a vector, `passes` times."""

    def __init__(self, workload: StreamWorkload, setting: Setting, given: Mapping[str, Array] | None = None) -> None:
        super().__init__(workload.name, find_format(workload.precision), setting, workload.schedule, given)
        self.passes = workload.sizes.passes
        self.n = max(1, workload.sizes.bytes // self.fmt.element_bytes)
        a = self.add_input("A", self.n, positive=True)
        lanes = setting.lanes if workload.schedule.vector else 1
        unroll = {"i": UNROLL * lanes} if self.n >= UNROLL * lanes else {}
        plan = LoopPlan(("r", "i"), unroll=unroll, vector="i" if lanes > 1 else None, lanes=lanes)
        extents = {"r": self.passes, "i": self.n}
        self.add(self.make_loop("read", extents, [at(a, "i")], None, Instructions(add=1), self._read, plan=plan))
        self.shared_index = "i"
        self.registers_needed = UNROLL + 1
        self._sum = np.zeros(1, np.float64)

    @property
    def tolerance(self) -> float:
        """Nothing is stored; NumPy adds in pairs."""
        return self.rounding.operations(2 + (self.n * self.passes).bit_length())

    def _read(self, ranges: Ranges) -> None:
        here = self.arrays["A"][part(ranges, "i")]
        self._sum += float(self.fmt.load(here).sum()) * ranges["r"][1]

    def _output(self) -> Array:
        return self._sum.astype(self.fmt.computed)

    def _reference(self) -> Array:
        return np.array([self.arrays["A"].astype(np.float64).sum() * self.passes])


class ViewReader(LoopKernel):
    """Adds up all elements of a view, row by row of the view, `reuses` times.

    With ``contiguous`` the view is copied first, and the copy is read: that pays if it is read often enough.
    """

    def __init__(self, workload: ViewWorkload, setting: Setting, given: Mapping[str, Array] | None = None) -> None:
        super().__init__(workload.name, find_format(workload.precision), setting, None, given)
        self.schedule = workload.schedule
        columns = workload.sizes.n
        rows = workload.sizes.m or columns
        stored_rows = 1 if self.schedule.view == "broadcast" else rows
        stored = self.add_input("A", stored_rows, columns, positive=True)
        self.view = make_view(stored, self.schedule, rows)
        source = self.view
        height, width = source.shape
        if self.schedule.contiguous:
            copy = self.add_result("copy", height, width)
            extents = {"i": height, "j": width}
            read, write = at(self.view, "i", "j"), at(copy, "i", "j")
            vector = self.schedule.vector
            self.add(
                self.make_loop("contiguous copy", extents, [read], write, Instructions(), self._copy, vector=vector)
            )
            source = copy
        self._sum = np.zeros(1, np.float64)
        self.add(
            self.make_loop(
                "read",
                {"r": self.schedule.reuses, "i": height, "j": width},
                [at(source, "i", "j")],
                None,
                Instructions(add=1),
                self._read,
                vector=self.schedule.vector,
                accumulates=True,
            )
        )
        self.shared_index = ""
        self.registers_needed = 2

    @property
    def tolerance(self) -> float:
        """A copy is exact, and nothing else is stored; NumPy adds in pairs."""
        return self.rounding.operations(2 + (self.view.size * self.schedule.reuses).bit_length())

    def formulas(self) -> tuple[Formula, ...]:
        """A stored element is read once into the cache, however often a broadcast shows it."""
        if self.schedule.view != "broadcast":
            return ()
        distinct = self.view.shape[1] * self.fmt.element_bytes / self.setting.line_bytes
        return (Formula("lines of a broadcast row", "n/L", -(-distinct // 1), "lines", "l1.fills"),)

    def _seen(self) -> Array:
        """The view as NumPy sees it: a view of the stored array, with no copy."""
        array = self.arrays["A"]
        match self.schedule.view:
            case "slice":
                return array[:, self.schedule.offset :: self.schedule.step]
            case "transpose":
                return array.T
            case "broadcast":
                return np.broadcast_to(array, self.view.shape)
            case _:
                return array

    def _copy(self, ranges: Ranges) -> None:
        here = part(ranges, "i", "j")
        self.arrays["copy"][here] = self._seen()[here]

    def _read(self, ranges: Ranges) -> None:
        source = self.arrays["copy"] if self.schedule.contiguous else self._seen()
        here = source[part(ranges, "i", "j")]
        self._sum += float(self.fmt.load(here).sum()) * ranges["r"][1]

    def _output(self) -> Array:
        return self._sum.astype(self.fmt.computed)

    def _reference(self) -> Array:
        return np.array([self._seen().astype(np.float64).sum() * self.schedule.reuses])


def make_view(stored: TensorView, schedule: ViewSchedule, rows: int) -> TensorView:
    match schedule.view:
        case "slice":
            return stored.slice(slice(None), slice(schedule.offset, None, schedule.step))
        case "transpose":
            return stored.permute(1, 0)
        case "broadcast":
            return stored.broadcast_to((rows, stored.shape[1]))
        case _:
            return stored


ChaseWorkload.operation = Probe(PointerChase)
StreamWorkload.operation = Probe(StreamRead)
ViewWorkload.operation = Probe(ViewReader)
