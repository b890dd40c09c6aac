"""Direct convolution: seven loops (eight with groups) over images and filters, in any order, with any tiles."""

from __future__ import annotations

from hwsim.kernels.conv.job import ConvJob
from hwsim.kernels.conv.plan import default_along, loop_order, make_plan
from hwsim.kernels.conv.shape import ConvShape
from hwsim.kernels.loop.loops import LoopOperation


def add_direct(job: ConvJob) -> None:
    """One loop nest; windows overlap, so most of an image is found again in a cache."""
    shape, schedule = job.shape, job.schedule
    extents = shape.extents
    inputs = (shape.input_operand(job.kernel, job.names["x"]), shape.filter_operand(job.kernel, job.names["w"]))
    order = loop_order(schedule, default_order(shape))
    along = schedule.along or default_along(shape, flat=False)
    operation = LoopOperation(inputs, job.output, late=tuple(job.late))
    plan = make_plan(order, extents, schedule, operation, lanes=job.lanes, along=along)
    job.add_sum("conv", extents, inputs, plan, job.convolve)


def default_order(shape: ConvShape) -> tuple[str, ...]:
    """As the output lies in memory, then as the filters do; a loop that runs once is not the innermost one."""
    output = ("n", "g", "co", "h", "w") if shape.layout == "nchw" else ("n", "h", "w", "g", "co")
    summed = sorted(shape.summed, key=lambda index: shape.extents[index] > 1)
    return (*(index for index in output if index in shape.extents), *summed)
