"""Kernels of convolutions, pools and batch norms by themselves, from workload files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from hwsim.kernels.conv.batch_norm import NORM_PORTS, BatchNorm, folded_weights
from hwsim.kernels.conv.conv2d import Conv2d
from hwsim.kernels.conv.pool import Pool, PoolKind, PoolShape
from hwsim.kernels.conv.shape import FILTER_AXES, ConvShape
from hwsim.kernels.data import make_input
from hwsim.kernels.kernel import Setting
from hwsim.kernels.operator import OperatorKernel, OperatorRun, need_floats, run_of
from hwsim.kernels.rounding import MOST
from hwsim.numerics.format import Array, find_format
from hwsim.numerics.scaled import with_scales
from hwsim.spec.ops.conv import BatchNormWorkload, ConvWorkload, PoolWorkload

Given = Mapping[str, Array] | None


def make_conv(workload: ConvWorkload, setting: Setting, given: Given) -> OperatorKernel:
    schedule = workload.schedule
    shape = ConvShape.of(workload.sizes, schedule.layout, schedule.w_layout)
    operator = Conv2d(shape, schedule, workload.epilogue, workload.pool)
    run = run_of(workload, schedule, given)
    return FoldedConv(operator, run, setting) if schedule.fold else OperatorKernel(operator, run, setting)


def make_pool(workload: PoolWorkload, setting: Setting, given: Given) -> OperatorKernel:
    sizes, schedule = workload.sizes, workload.schedule
    whole = workload.op == "global_avg_pool"
    window = sizes.image if whole else (sizes.window, sizes.window)
    step = sizes.stride or sizes.window
    stride = window if whole else (step, step)
    shape = PoolShape(sizes.batch, sizes.channels, sizes.image, window, stride, schedule.layout)
    kind: PoolKind = "max_pool" if workload.op == "max_pool" else "avg_pool"
    return OperatorKernel(Pool(shape, kind, schedule.vector), run_of(workload, schedule, given), setting)


def make_batch_norm(workload: BatchNormWorkload, setting: Setting, given: Given) -> OperatorKernel:
    sizes, schedule = workload.sizes, workload.schedule
    operator = BatchNorm(sizes.batch, sizes.channels, sizes.image, schedule.layout, schedule.vector)
    return OperatorKernel(operator, run_of(workload, schedule, given), setting)


class FoldedConv(OperatorKernel):
    """A convolution whose weights and bias hold a batch norm too; they are folded before the run, as a compiler does.

    Inputs are those of the convolution with its batch norm, and so is the reference: only folded tensors have memory.
    """

    def __init__(self, unfolded: Conv2d, run: OperatorRun, setting: Setting) -> None:
        self.unfolded = unfolded
        self.original: dict[str, Array] = {}
        fmt = with_scales(find_format(run.precision), setting.numbers.scale, setting.numbers.scale_block)
        need_floats("batch norm", fmt)
        names = unfolded.epilogue.names
        self._behind = names.index("batch_norm") + 1
        rest = names[self._behind :]
        folded = Conv2d(unfolded.shape, unfolded.schedule, ("bias", *rest), unfolded.pool)
        if setting.math:
            sums = find_format(setting.numbers.accumulate or fmt.sum_name)
            for number, port in enumerate(unfolded.inputs):
                self.original[port.name] = make_input(
                    setting.seed, number, port.name, port.shape, sums if port.wide else fmt,
                    run.given.get(port.name), port.positive, distribution=setting.numbers.distribution,
                )  # fmt: skip
            run = replace(run, given=self._folded_inputs(folded))
        super().__init__(folded, run, setting)

    @property
    def tolerance(self) -> float:
        """Folded filters are rounded once more when they are stored."""
        return min(MOST, super().tolerance + 2 * self.rounding.stored)

    def _folded_inputs(self, folded: Conv2d) -> dict[str, Array]:
        wide = {name: array.astype(np.float64) for name, array in self.original.items()}
        axes = FILTER_AXES[folded.shape.w_layout]
        gamma, beta, mean, var = (wide[port] for port in NORM_PORTS)
        bias = wide["b"] if self.unfolded.epilogue.names[0] == "bias" else None
        w, b = folded_weights(wide["w"].transpose(axes), bias, gamma, beta, mean, var)
        found = {"x": self.original["x"], "w": w.transpose(np.argsort(axes)), "b": b}
        for number in range(1, len(folded.epilogue.elements)):
            old = self.unfolded.epilogue.given(self._behind + number - 1)
            found |= {port: self.original[was] for port, was in zip(folded.epilogue.given(number), old, strict=True)}
        return found

    def _references(self) -> dict[str, Array]:
        return self.unfolded.reference({name: array.astype(np.float64) for name, array in self.original.items()})
