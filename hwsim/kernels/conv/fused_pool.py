"""Convolution and max-pool in one loop nest: of each square of outputs, only the maximum is ever stored."""

from __future__ import annotations

from dataclasses import replace

from hwsim.errors import InputError
from hwsim.kernels.conv.direct import default_order
from hwsim.kernels.conv.job import FMA, ConvJob
from hwsim.kernels.conv.plan import count_registers, default_along, loop_order, make_plan, shared_loop
from hwsim.kernels.conv.shape import spans
from hwsim.kernels.loop.loops import LoopOperation
from hwsim.kernels.loop_kernel import Ranges
from hwsim.kernels.step import Instructions
from hwsim.kernels.tensor.element import element_body


def add_pooled(job: ConvJob, side: int) -> None:
    """Loops h and w run over squares, u and v inside of a square; sums and maximum stay in registers."""
    shape, kernel, schedule = job.shape, job.kernel, job.schedule
    _check(job)
    extents = {**shape.extents, "h": shape.out[0] // side, "w": shape.out[1] // side, "u": side, "v": side}
    x = shape.input_operand(kernel, job.names["x"])
    h, w = x.strides["h"], x.strides["w"]
    x = replace(x, strides={**x.strides, "h": side * h, "w": side * w, "u": h, "v": w})
    inputs = (x, shape.filter_operand(kernel, job.names["w"]))
    output = job.output
    operation = LoopOperation(inputs, output, late=tuple(job.late))
    *outer, first, second, third = default_order(shape)
    order = loop_order(schedule, (*outer, "u", "v", first, second, third))
    schedule = schedule.model_copy(update={"unroll": {"u": side, "v": side, **schedule.unroll}})
    along = schedule.along or default_along(shape, flat=False)
    plan = make_plan(order, extents, schedule, operation, lanes=job.lanes, along=along)
    if not plan.completes(operation):
        inner = ", ".join(("u", "v", *shape.summed))
        raise InputError(
            f"schedule: a fused pool keeps its sums in registers, so the loops {inner} must be the innermost ones, "
            "without tiles; or take fused: false"
        )

    def compute(ranges: Ranges) -> None:
        wide = {index: (first * side, count * side) for index, (first, count) in ranges.items() if index in "hw"}
        values = job.finish(job.convolve({**ranges, **wide}), job.epilogue, ranges)
        n, g, co, rows, columns = values.shape
        squares = values.reshape(n, g, co, rows // side, side, columns // side, side)
        where = spans(ranges, "n", "g", "co", "h", "w")
        shape.outputs(kernel.arrays[job.target])[where] = job.sum_fmt.store(squares.max(axis=(4, 6)))

    late = element_body(job.epilogue).scaled(side * side) + Instructions(add=side * side - 1)
    sums = replace(output, strides={**output.strides, "u": 0, "v": 0})
    registers = count_registers(plan, replace(operation, output=sums))
    kernel.registers_needed = max(kernel.registers_needed, registers)
    kernel.add(
        kernel.make_loop(
            "conv_pool",
            {index: extents[index] for index in order},
            inputs,
            output,
            FMA,
            compute,
            plan=plan,
            accumulates=True,
            late=operation.late,
            late_body=late,
        )
    )
    kernel.shared_index = shared_loop(job.schedule, plan, extents, output)


def _check(job: ConvJob) -> None:
    if job.schedule.algorithm != "direct":
        raise InputError(f"a fused pool needs algorithm: direct, found {job.schedule.algorithm}; or take fused: false")
    squares = {job.shape.output_indices.index(index) for index in ("h", "w")}
    whole = [element.op for element in job.epilogue if any(squares & set(extra.axes_of(4)) for extra in element.extras)]
    if whole:
        raise InputError(
            f"epilogue: {', '.join(whole)} reads a tensor with rows or columns of the map that a fused pool never "
            "stores; take fused: false"
        )
