"""Convolutions as implicit matrix products: the patches of the input are gathered while tiles are loaded.

Rows of A are output pixels, its columns input channels and filter taps. A is never written: it comes from the input,
which is read from DRAM once, while each tile's patches pass through the L2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from hwsim.errors import InputError
from hwsim.hardware.gpu.cost import KernelCost
from hwsim.hardware.gpu.device import Device
from hwsim.hardware.gpu.format import element_bytes
from hwsim.hardware.gpu.gemm import GemmBytes, GemmShape, gemm

VECTOR_BYTES = 16
"""What tensor-core kernels load at a time, along the channels."""
GATHER_OPERATIONS = 9
"""Integer operations to find one vector of the input: which pixel, which tap, whether it lies in the padding."""


@dataclass(frozen=True)
class ConvShape:
    """A convolution of `batch` images."""

    batch: int
    channels_in: int
    height: int
    width: int
    channels_out: int
    filter_height: int
    filter_width: int
    stride: int = 1
    padding: int = 0

    def __post_init__(self) -> None:
        if self.height_out < 1 or self.width_out < 1:
            raise InputError(
                f"a filter of {self.filter_height}x{self.filter_width} does not fit into an image of "
                f"{self.height}x{self.width} with padding {self.padding}"
            )

    @property
    def height_out(self) -> int:
        return (self.height + 2 * self.padding - self.filter_height) // self.stride + 1

    @property
    def width_out(self) -> int:
        return (self.width + 2 * self.padding - self.filter_width) // self.stride + 1

    @property
    def touched(self) -> float:
        """Elements of the input that are read at all: a stride wider than the filter skips some."""
        share = min(1.0, self.filter_height / self.stride) * min(1.0, self.filter_width / self.stride)
        return self.batch * self.channels_in * self.height * self.width * share

    @property
    def as_gemm(self) -> GemmShape:
        return GemmShape(
            self.batch * self.height_out * self.width_out,
            self.channels_out,
            self.channels_in * self.filter_height * self.filter_width,
        )


def conv(device: Device, shape: ConvShape, precision: str, warm: bool = False) -> KernelCost:
    """The cost of a convolution; `warm` where its tensors lie in the L2 already.

    Tensor cores take channels in whole vectors of 16 bytes; fewer are padded with zeros.
    """
    size = element_bytes(precision)
    unit = "tensor" if precision in device.sm.tensor else "lanes"
    vector = ceil(VECTOR_BYTES / size) if unit == "tensor" else 1
    padded = replace(shape, channels_in=ceil(shape.channels_in / vector) * vector)
    data = GemmBytes(size, size, size, warm, warm, padded.touched * size, GATHER_OPERATIONS / vector)
    return gemm(device, padded.as_gemm, precision, data, split=1, unit=unit)
