"""Epilogue: what is done with each output of a convolution, in registers before it is stored or in its own pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hwsim.errors import InputError
from hwsim.kernels.conv_shape import ConvShape, spans
from hwsim.kernels.loop_kernel import LoopKernel, Ranges
from hwsim.kernels.loops import Operand
from hwsim.kernels.operator import Names, Port
from hwsim.kernels.pointwise import POINTWISE
from hwsim.kernels.pool import refuse_integers
from hwsim.kernels.step import Instructions
from hwsim.numerics.format import Array, Format

EPSILON = 1e-5
"""Added to a variance before its root is taken: the default of PyTorch's BatchNorm2d."""

CHANNEL_PORTS: Mapping[str, tuple[str, ...]] = {
    "bias": ("b",),
    "scale_shift": ("scale", "shift"),
    "batch_norm": ("gamma", "beta", "mean", "var"),
}
"""Operations with a value for each channel; all others have tensors of the output's shape."""

WHOLE_NUMBERS = ("bias", "add", "sub", "mul", "relu", "square", "copy")
"""Operations that turn whole numbers into whole numbers."""


@dataclass(frozen=True)
class Stage:
    """One operation and the ports of its operands."""

    name: str
    ports: tuple[str, ...]

    @property
    def per_channel(self) -> bool:
        return self.name in CHANNEL_PORTS

    @property
    def tensors(self) -> tuple[str, ...]:
        """What it reads for each output: of a batch norm, the scale and the shift that were made of its ports."""
        if self.name != "batch_norm":
            return self.ports
        number = self.ports[0].removeprefix("gamma")
        return f"norm_scale{number}", f"norm_shift{number}"

    @property
    def body(self) -> Instructions:
        return POINTWISE[_POINTWISE_NAME.get(self.name, self.name)].body

    @property
    def function(self) -> Callable[..., Array]:
        return POINTWISE[_POINTWISE_NAME.get(self.name, self.name)].function


_POINTWISE_NAME = {"bias": "add", "batch_norm": "scale_shift"}


@dataclass(frozen=True)
class Epilogue:
    """Stages, one after the other."""

    shape: ConvShape
    stages: tuple[Stage, ...]

    @classmethod
    def of(cls, shape: ConvShape, names: Sequence[str]) -> Epilogue:
        """A port that occurs again has the number of its operation behind it."""
        stages: list[Stage] = []
        taken: set[str] = set()
        for number, name in enumerate(names, 1):
            if name not in POINTWISE and name not in CHANNEL_PORTS:
                known = ", ".join(dict.fromkeys((*CHANNEL_PORTS, *POINTWISE)))
                raise InputError(f"epilogue: '{name}' is not one of {known}")
            extras = 0 if name in CHANNEL_PORTS else POINTWISE[name].extras
            asked = CHANNEL_PORTS.get(name, ("residual", "residual_more")[:extras])
            ports = tuple(f"{port}_{number}" if port in taken else port for port in asked)
            taken.update(ports)
            stages.append(Stage(name, ports))
        return cls(shape, tuple(stages))

    def __bool__(self) -> bool:
        return bool(self.stages)

    @property
    def ports(self) -> tuple[Port, ...]:
        found = []
        for stage in self.stages:
            shape = (self.shape.co,) if stage.per_channel else self.shape.image_shape(self.shape.co, self.shape.out)
            found += [
                Port(port, shape, wide=True, positive=stage.name == "batch_norm" and port.startswith("var"))
                for port in stage.ports
            ]
        return tuple(found)

    @property
    def body(self) -> Instructions:
        total = Instructions()
        for stage in self.stages:
            total += stage.body
        return total

    def check(self, fmt: Format) -> None:
        """Whole numbers stay whole."""
        wrong = [stage.name for stage in self.stages if stage.name not in WHOLE_NUMBERS]
        if wrong:
            refuse_integers(f"epilogue: {', '.join(wrong)}", fmt)

    def operands(self, kernel: LoopKernel, names: Names, stage: Stage) -> list[Operand]:
        """What a stage reads, as the loops of the output see it."""
        make = self.shape.channel_operand if stage.per_channel else self.shape.output_operand
        return [make(kernel, names[port]) for port in stage.tensors]

    def all_operands(self, kernel: LoopKernel, names: Names) -> list[Operand]:
        return [operand for stage in self.stages for operand in self.operands(kernel, names, stage)]

    def apply(self, kernel: LoopKernel, names: Names, stages: Sequence[Stage], values: Array, ranges: Ranges) -> Array:
        """Values [n, g, co, h, w] of a range after some of the stages, in the type that arithmetic runs in."""
        for stage in stages:
            values = stage.function(values, *(self._extra(kernel, names[p], stage, ranges) for p in stage.tensors))
        return values

    def reference(self, y: Array, tensors: Mapping[str, Array]) -> Array:
        """The same in float64 on whole tensors as they lie in memory, batch norm by its definition."""
        for stage in self.stages:
            extras = [tensors[port] for port in stage.ports]
            if stage.per_channel and self.shape.layout == "nchw":
                extras = [extra[:, None, None] for extra in extras]
            if stage.name == "batch_norm":
                gamma, beta, mean, var = extras
                y = gamma * (y - mean) / np.sqrt(var + EPSILON) + beta
            else:
                y = stage.function(y, *extras)
        return y

    def _extra(self, kernel: LoopKernel, name: str, stage: Stage, ranges: Ranges) -> Array:
        stored = kernel.arrays[name]
        if stage.per_channel:
            here = self.shape.channels(stored)[(slice(None), *spans(ranges, "g", "co"))]
        else:
            here = self.shape.outputs(stored)[spans(ranges, "n", "g", "co", "h", "w")]
        return kernel.find_sum_format().load(here)
