"""GpuModel: one door to what kernels cost on a GPU.

model = GpuModel(load_machine("a100_80").spec)
cost = model.gemm(GemmShape(4096, 4096, 4096), "bf16")
cost.seconds, cost.waves, cost.bound_in_words
model.seconds(cost, timing="graph")     # with its launch
"""

from __future__ import annotations

from hwsim.hardware.gpu import attention, stream
from hwsim.hardware.gpu.attention import AttentionShape
from hwsim.hardware.gpu.conv import ConvShape, conv
from hwsim.hardware.gpu.cost import KernelCost, chained
from hwsim.hardware.gpu.device import Device
from hwsim.hardware.gpu.gemm import GemmBytes, GemmShape, gemm
from hwsim.spec.gpu import TileSpec
from hwsim.spec.machine import MachineSpec


class GpuModel:
    """The library kernels of a GPU: what their blocks cost, how they fill it, and why that takes so long."""

    def __init__(self, machine: MachineSpec) -> None:
        self.device = Device.of(machine)

    def gemm(
        self,
        shape: GemmShape,
        precision: str,
        data: GemmBytes | None = None,
        tile: TileSpec | None = None,
        split: int | None = None,
    ) -> KernelCost:
        """A matrix product, batched or not; with a tile and a split of your own, or the library's best."""
        return gemm(self.device, shape, precision, data, tile, split)

    def conv(self, shape: ConvShape, precision: str, warm: bool = False) -> KernelCost:
        """A convolution as an implicit matrix product."""
        return conv(self.device, shape, precision, warm)

    def attention(self, shape: AttentionShape, precision: str, kernel: str | None = None) -> KernelCost:
        """Fused attention over many queries (prefill)."""
        return attention.fused(self.device, shape, precision, kernel or self._newest())

    def decode(
        self, shape: AttentionShape, precision: str, kernel: str = "flash_decode", split: bool = True
    ) -> KernelCost:
        """Fused attention of a query or a few over many keys."""
        return attention.decode(self.device, shape, precision, kernel, split)

    def attention_unfused(self, shape: AttentionShape, precision: str) -> tuple[KernelCost, ...]:
        """Attention in three kernels: scores, softmax, weighted values."""
        return attention.unfused(self.device, shape, precision)

    def softmax(self, rows: int, columns: int, precision: str) -> KernelCost:
        return stream.softmax(self.device, rows, columns, precision)

    def layernorm(self, rows: int, columns: int, precision: str) -> KernelCost:
        return stream.layernorm(self.device, rows, columns, precision)

    def quantize(self, rows: int, columns: int, precision: str, to: str) -> KernelCost:
        """Rows rounded to a narrower format, each with its own scale."""
        return stream.quantize(self.device, rows, columns, precision, to)

    def elementwise(self, elements: int, precision: str, reads: int = 1, writes: int = 1) -> KernelCost:
        return stream.elementwise(self.device, elements, precision, reads, writes)

    def reduction(self, elements: int, precision: str) -> KernelCost:
        return stream.reduction(self.device, elements, precision)

    def seconds(self, cost: KernelCost | tuple[KernelCost, ...], timing: str = "graph") -> float:
        """With launches: of one kernel, or of a chain of them."""
        return chained(cost if isinstance(cost, tuple) else (cost,), self.device, timing)

    def _newest(self) -> str:
        """The last prefill kernel of the library."""
        names = [kernel.name for kernel in self.device.sm.library.attention if kernel.name != "flash_decode"]
        return names[-1] if names else "flash2"
