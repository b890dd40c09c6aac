"""MatmulOperator: the product of two matrices, or of two stacks of them, with an epilogue on each finished value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from hwsim.kernels.kernel import Formula, Setting
from hwsim.kernels.loop.loops import LoopOperation, LoopPlan
from hwsim.kernels.loop.program import Item, Loop
from hwsim.kernels.loop_kernel import LoopKernel, Ranges, TileLoop, at, part
from hwsim.kernels.matmul.plan import count_matmul_registers, cut_sums, make_matmul_plan
from hwsim.kernels.operator import Names, Operator, Port
from hwsim.kernels.rounding import Rounding, sum_pieces
from hwsim.kernels.step import Instructions
from hwsim.kernels.tensor.element import (
    Element,
    check_formats,
    element_body,
    element_operands,
    element_ports,
    reference_elements,
    run_elements,
)
from hwsim.numerics.dot import accumulate
from hwsim.numerics.format import Array, Format, find_format
from hwsim.spec.ops.matmul import MatmulSchedule, ProductSchedule

MULTIPLY_ADD = Instructions(fma=1)


class MatmulOperator(Operator):
    """C[…,i,j] = epilogue(Σ A[…,i,k] B[…,k,j]), for i < m, j < n, k < k and every index of the batch.

    A transposed operand is stored with its last two axes swapped. `b_batched=False` multiplies every matrix of the
    batch by the same B. The axes of an epilogue's extras are those of C: the batch first, then rows and columns.
    """

    reads = frozenset({"accumulate", "chunk"})

    def __init__(
        self,
        m: int,
        n: int,
        k: int,
        *,
        batch: Sequence[int] = (),
        schedule: ProductSchedule | None = None,
        a_transposed: bool = False,
        b_transposed: bool = False,
        b_batched: bool = True,
        epilogue: Sequence[Element] = (),
        ports: tuple[str, str, str] = ("A", "B", "C"),
        name: str = "matmul",
    ) -> None:
        self.name = name
        self.schedule = schedule or ProductSchedule()
        self.a_transposed = a_transposed
        self.b_transposed = b_transposed or (
            isinstance(self.schedule, MatmulSchedule) and self.schedule.b_layout == "jk"
        )
        self.batch = {f"b{axis}": extent for axis, extent in enumerate(batch)}
        self.extents = {**self.batch, "i": m, "j": n, "k": k}
        self.epilogue = tuple(epilogue)
        self.a, self.b, self.c = ports
        self.a_indices = (*self.batch, *("ki" if a_transposed else "ik"))
        self.b_indices = (*(self.batch if b_batched else ()), *("jk" if self.b_transposed else "kj"))
        self.c_indices = (*self.batch, "i", "j")
        shape = self._shape(self.c_indices)
        self.inputs = (
            Port(self.a, self._shape(self.a_indices)),
            Port(self.b, self._shape(self.b_indices)),
            *element_ports(self.epilogue, shape),
        )
        self.outputs = (Port(self.c, shape, wide=True),)

    def plan(self, lanes: int) -> LoopPlan:
        return make_matmul_plan(self.schedule, self.extents, lanes, b_transposed=self.b_transposed)

    def emit(self, kernel: LoopKernel, names: Names) -> None:
        check_formats(self.epilogue, kernel.fmt)
        plan = self.plan(kernel.setting.lanes)
        kernel.registers_needed = max(kernel.registers_needed, count_matmul_registers(plan))
        if not self.epilogue or plan.completes(self._operation(kernel, names)):
            kernel.add(self._product(kernel, names, plan, self.epilogue))
        else:
            self._add_tiles(kernel, names, plan)
        most = max(self.batch, key=lambda index: self.batch[index], default="i")
        kernel.shared_index = most if most != "i" and self.batch[most] >= kernel.setting.cores else "i"

    def reference(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        a, b, c = (self._letters(indices) for indices in (self.a_indices, self.b_indices, self.c_indices))
        product = np.einsum(f"{a},{b}->{c}", tensors[self.a], tensors[self.b], optimize=True)
        return {self.c: reference_elements(self.epilogue, product, tensors)}

    def tolerance(self, rounding: Rounding) -> float:
        """The sum, which is kept at each tile of k, and an epilogue, which may find it in memory."""
        pieces = sum_pieces(self.plan(1), self.extents, "k")
        after = rounding.operations(len(self.epilogue)) + (rounding.kept if self.epilogue else 0.0)
        return rounding.sum(self.extents["k"]) + rounding.kept_sum(pieces) + after

    def formulas(self, setting: Setting, fmt: Format) -> tuple[Formula, ...]:
        """The best that any schedule can reach: each element moved once."""
        wide = find_format(fmt.sum_name)
        moved = sum(int(np.prod(port.shape)) * fmt.element_bytes for port in self.inputs)
        moved += int(np.prod(self.outputs[0].shape)) * wide.element_bytes
        operations = 2 * int(np.prod(list(self.extents.values())))
        return (
            Formula(
                "operations per byte, each element moved once",
                "2mnk/bytes",
                float(operations / moved),
                "flop/B",
                "intensity.byte",
            ),
        )

    def _shape(self, indices: Sequence[str]) -> tuple[int, ...]:
        return tuple(self.extents[index] for index in indices)

    def _letters(self, indices: Sequence[str]) -> str:
        """One letter for each index, as einsum wants them."""
        names = list(self.extents)
        return "".join(chr(ord("a") + names.index(index)) for index in indices)

    def _operation(self, kernel: LoopKernel, names: Names) -> LoopOperation:
        a = at(kernel.tensor(names[self.a]), *self.a_indices)
        b = at(kernel.tensor(names[self.b]), *self.b_indices)
        return LoopOperation((a, b), at(kernel.tensor(names[self.c]), *self.c_indices))

    def _product(self, kernel: LoopKernel, names: Names, plan: LoopPlan, late: Sequence[Element]) -> Loop:
        """The loop over i, j, k, with elements that finish a value in its register."""
        operation = self._operation(kernel, names)
        target = names[self.c]
        wide = kernel.formats[target]

        def compute(ranges: Ranges) -> None:
            here = part(ranges, *self.c_indices)
            if late:
                product = self._dot(kernel, names, ranges)
                values = run_elements(kernel, names, late, self.c_indices, product, ranges)
                kernel.arrays[target][here] = wide.store(values)
                return
            for inner in cut_sums(plan, ranges):
                accumulate(kernel.arrays[target][here], self._dot(kernel, names, inner), wide)

        return kernel.make_loop(
            self.name,
            {index: self.extents[index] for index in plan.order},
            operation.inputs,
            operation.output,
            MULTIPLY_ADD,
            compute,
            plan=plan,
            accumulates=True,
            late=element_operands(kernel, names, late, self.c_indices),
            late_body=element_body(late),
        )

    def _dot(self, kernel: LoopKernel, names: Names, ranges: Ranges) -> Array:
        """The real product over a range."""
        a = kernel.arrays[names[self.a]][part(ranges, *self.a_indices)]
        b = kernel.arrays[names[self.b]][part(ranges, *self.b_indices)]
        a = a.swapaxes(-1, -2) if self.a_transposed else a
        b = b.swapaxes(-1, -2) if self.b_transposed else b
        return kernel.dot(a, b)

    def _add_tiles(self, kernel: LoopKernel, names: Names, plan: LoopPlan) -> None:
        """Where no value is finished in a register: after each tile of C (or each row), a loop over that tile."""
        cuts = self._outer_cuts(plan)
        inside = replace(plan, tile={index: size for index, size in plan.tile.items() if index not in cuts})
        body: tuple[Item, ...] = (self._product(kernel, names, inside, ()), self._finish(kernel, names))
        if not cuts:
            for item in body:
                kernel.add(item)
            return

        def wrapped(items: tuple[Item, ...], index: str) -> tuple[Item, ...]:
            return (TileLoop(index, self.extents[index], cuts[index], items),)

        (item,) = reduce(wrapped, reversed(list(cuts)), body)
        kernel.add(item)

    def _outer_cuts(self, plan: LoopPlan) -> dict[str, int]:
        """The loops over tiles of C that run outside all loops over k, outermost first."""
        cuts = dict.fromkeys(self.batch, 1)
        tiled = [index for index in plan.order if index in plan.tile and index not in self.batch]
        for index in tiled or plan.order[len(self.batch) : len(self.batch) + 1]:
            if index == "k":
                break
            cuts[index] = plan.tile.get(index) or plan.step(index)
        return cuts

    def _finish(self, kernel: LoopKernel, names: Names) -> Loop:
        """The epilogue as a loop over C in memory."""
        target = names[self.c]
        fmt = kernel.formats[target]
        c = at(kernel.tensor(target), *self.c_indices)

        def compute(ranges: Ranges) -> None:
            here = part(ranges, *self.c_indices)
            values = fmt.load(kernel.arrays[target][here])
            values = run_elements(kernel, names, self.epilogue, self.c_indices, values, ranges)
            kernel.arrays[target][here] = fmt.store(values)

        extras = element_operands(kernel, names, self.epilogue, self.c_indices)
        extents = {index: self.extents[index] for index in self.c_indices}
        vector = self.schedule.vector
        return kernel.make_loop(
            "epilogue", extents, [c, *extras], c, element_body(self.epilogue), compute, vector=vector
        )
