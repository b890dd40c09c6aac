"""Reading a tensor through a strided view, or through a contiguous copy of it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hwsim.kernels.kernel import Formula, Setting
from hwsim.kernels.loop_kernel import LoopKernel, Ranges, at, part
from hwsim.kernels.step import Instructions
from hwsim.numerics.format import Array, find_format
from hwsim.spec.ops.layout import ViewSchedule, ViewWorkload
from hwsim.trace.view import TensorView


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
            self.add_loop("contiguous copy", extents, [read], write, Instructions(), self._copy, vector=vector)
            source = copy
        self._sum = np.zeros(1, np.float64)
        self.add_loop(
            "read",
            {"r": self.schedule.reuses, "i": height, "j": width},
            [at(source, "i", "j")],
            None,
            Instructions(add=1),
            self._read,
            vector=self.schedule.vector,
            accumulates=True,
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
