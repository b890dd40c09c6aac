"""Folding: a batch norm behind a convolution goes into its weights and its bias before the run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hwsim.numerics.format import Array, find_format
from hwsim.numerics.quantize import with_scales
from hwsim.ops.conv_operator import Conv2d
from hwsim.ops.epilogue import EPSILON, NORM_PORTS
from hwsim.program.kernel import Setting
from hwsim.program.operator import OperatorKernel, OperatorRun, need_floats
from hwsim.program.rounding import MOST
from hwsim.program.tensors import make_input


def folded_weights(
    w: Array, b: Array | None, gamma: Array, beta: Array, mean: Array, var: Array, eps: float = EPSILON
) -> tuple[Array, Array]:
    """Weights and bias of a convolution that does what one with w and b and a batch norm after it do.

    Output channels are the first axis of w. With R = gamma / sqrt(var + eps) and P = beta - mean R, the outputs
    Y R + P are those of the weights W R and the bias B R + P.
    """
    scale = gamma / np.sqrt(var + eps)
    shift = beta - mean * scale
    folded = w * scale.reshape(-1, *(1,) * (w.ndim - 1))
    return folded, shift if b is None else b * scale + shift


class FoldedConv(OperatorKernel):
    """A convolution whose weights and bias hold a batch norm too; they are folded before the run, as a compiler does.

    Inputs are those of the convolution with its batch norm, and so is the reference: only folded tensors have memory.
    """

    def __init__(self, unfolded: Conv2d, run: OperatorRun, setting: Setting) -> None:
        self.unfolded = unfolded
        self.original: dict[str, Array] = {}
        fmt = with_scales(find_format(run.precision), setting.numbers.scale, setting.numbers.scale_block)
        need_floats("batch norm", fmt)
        names = [each.name for each in unfolded.after]
        self._behind = names.index("batch_norm") + 1
        folded = Conv2d(unfolded.shape, unfolded.schedule, ("bias", *names[self._behind :]), unfolded.pool)
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
        axes = [folded.schedule.w_layout.index(axis) for axis in "oihw"]
        gamma, beta, mean, var = (wide[port] for port in NORM_PORTS)
        bias = wide["b"] if self.unfolded.after[0].name == "bias" else None
        w, b = folded_weights(wide["w"].transpose(axes), bias, gamma, beta, mean, var)
        found = {"x": self.original["x"], "w": w.transpose(np.argsort(axes)), "b": b}
        for new, old in zip(folded.after[1:], self.unfolded.after[self._behind :], strict=True):
            found |= {port: self.original[was] for port, was in zip(new.given, old.given, strict=True)}
        return found

    def _references(self) -> dict[str, Array]:
        return self.unfolded.reference({name: array.astype(np.float64) for name, array in self.original.items()})
