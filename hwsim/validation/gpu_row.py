"""One measured GPU kernel: its columns read, and the same kernel put together on the model.

The rules of the data (docs/explanation/gpu.md has them in words): what lies in the L2 when the clock starts, which
launch belongs to which way of timing, and which kernels a serving framework runs beside the one that is named.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hwsim.errors import InputError, SpecError
from hwsim.hardware.gpu.attention import AttentionShape
from hwsim.hardware.gpu.conv import ConvShape
from hwsim.hardware.gpu.cost import KernelCost
from hwsim.hardware.gpu.format import element_bytes
from hwsim.hardware.gpu.gemm import GemmBytes, GemmShape
from hwsim.hardware.gpu.model import GpuModel
from hwsim.hardware.gpu.program import program_cost
from hwsim.kernels.matmul.threads import Problem, make_program
from hwsim.spec.threads import ThreadSchedule
from hwsim.validation.table import LINE, Record, integer, table_error

COLUMNS = (
    "family", "machine", "op", "impl", "dtype", "pass", "b", "m", "n", "k", "heads", "kv_heads", "seq_q", "seq_kv",
    "head_dim", "causal", "c_in", "h_in", "w_in", "c_out", "r", "s", "stride", "pad", "rows", "cols", "latency_us",
    "timing",
)  # fmt: skip

PRECISION = {
    "fp16": "fp16", "bf16": "bf16", "fp32": "fp32", "int8": "int8", "int8_smoothquant": "int8", "fp8_e4m3": "fp8_e4m3",
    "fp8_block128": "fp8_e4m3", "w4a16": "fp16", "w8a16": "fp16",
}  # fmt: skip
WEIGHT_BYTES = {"w4a16": 0.5, "w8a16": 1.0}

TIMING = {"cuda_graph": "graph", "cuda_event": "stream", "reported": "graph", "wall_clock": "host"}
HOST_US = {"gemm": 21.0, "softmax": 12.0, "layernorm": 45.0, "gelu": 45.0, "add": 21.0}
"""Host time of one call in the wall-clock rows: LLMCompass, hardware_model/compute_module.py, on A100."""

LAYER_TIMED = "trt_flow_"
"""TensorRT's own profile, whose times come in steps of 1.024 us: events around each layer, also inside a graph."""
QUANTIZES = frozenset(("sglang_sgl_kernel_fp8_scaled_mm",))
"""Implementations that round activations to 8 bits, row by row, before they multiply."""

GRAPH_COPIES = 6
"""Matrix products of the graph rows take turns with so many weights."""
FLASH_FLOOR_US = 300.0
"""Published FlashAttention times below this are those of the host."""
BACKWARD = 3.5
"""Forward and backward of attention over forward alone: seven matrix products against two."""
FLASH_KERNELS = {"FlashAttention-1": "flash1", "FlashAttention-2": "flash2", "FlashAttention-3": "flash3"}
SERVING_LAUNCHES = {"vllm_flash_attn_fa3": 2, "vllm_flash_attn_fa4": 2}
"""Kernels without work of their own that the framework starts beside attention, to plan its blocks."""
SERVING_KERNELS = {"vllm_flash_attn": "flash2", "vllm_flash_attn_fa3": "flash3", "vllm_flash_attn_fa4": "flash3"}


@dataclass(frozen=True)
class MeasuredKernel:
    """A row of the table."""

    path: Path
    record: Record

    @property
    def family(self) -> str:
        return self.record["family"]

    @property
    def machine(self) -> str:
        return self.record["machine"]

    @property
    def seconds(self) -> float:
        try:
            microseconds = float(self.record["latency_us"])
        except ValueError:
            microseconds = -1.0
        if not 0 < microseconds < float("inf"):
            raise self.wrong("latency_us", f"{self.record['latency_us']!r} is not a time in microseconds")
        return microseconds * 1e-6

    @property
    def name(self) -> str:
        """The id of the row if it has one, or its line."""
        return self.record.get("id") or f"line {self.record[LINE]}"

    @property
    def precision(self) -> str:
        if self.record["dtype"] not in PRECISION:
            raise self.wrong("dtype", f"{self.record['dtype']!r} is not one of {', '.join(PRECISION)}")
        return PRECISION[self.record["dtype"]]

    @property
    def host_bound(self) -> bool:
        """Whether the row measures the host rather than the kernel."""
        return self.record["op"] == "attn_flash" and self.seconds * 1e6 < FLASH_FLOOR_US

    def size(self, column: str, default: int | None = None) -> int:
        if default is not None and not self.record[column]:
            return default
        value = integer(self.path, self.record, column)
        least = 0 if column == "pad" else 1
        if value < least:
            raise self.wrong(column, f"{value} is less than {least}")
        return value

    def wrong(self, column: str, message: str) -> Exception:
        return table_error(self.path, int(self.record[LINE]), column, message)


LADDER = {
    "1_naive": ThreadSchedule(kernel="naive"),
    "2_gmem_coalesce": ThreadSchedule(kernel="coalesced"),
    "3_smem_cache": ThreadSchedule(kernel="shared"),
    "4_1d_blocktile": ThreadSchedule(kernel="register_1d"),
    "5_2d_blocktile": ThreadSchedule(kernel="register_2d"),
    "6_vectorized": ThreadSchedule(kernel="vectorised"),
    "9_autotune": ThreadSchedule(kernel="vectorised", bk=16),
    "10_warptile": ThreadSchedule(kernel="warp_tiled"),
}
"""Hand-written kernels of the ladder that hwsim has as well, by the names of their author."""


def covered(row: MeasuredKernel) -> bool:
    """Whether a library kernel stands behind the row, or a hand-written one that hwsim has too."""
    if row.record["op"] == "sgemm_ladder":
        return row.record["impl"] in LADDER
    return row.record["op"] in _KERNELS and not row.host_bound


def modelled_seconds(model: GpuModel, row: MeasuredKernel) -> float:
    """What the model says about a row, with the launch that fits its timing."""
    try:
        kernels = _KERNELS[row.record["op"]](model, row)
    except SpecError:
        raise
    except InputError as error:
        raise row.wrong("", str(error)) from error
    timing = row.record["timing"]
    if timing not in TIMING:
        raise row.wrong("timing", f"{timing!r} is not one of {', '.join(TIMING)}")
    if row.record["impl"].startswith(LAYER_TIMED):
        timing = "cuda_event"
    if timing == "wall_clock":
        return sum(cost.seconds for cost in kernels) + HOST_US.get(row.record["op"], HOST_US["gemm"]) * 1e-6
    around = SERVING_LAUNCHES.get(row.record["impl"], 0) * model.device.launch_seconds("graph")
    scale = BACKWARD if row.record["pass"] == "fwd_bwd" else 1.0
    return scale * model.seconds(kernels, TIMING[timing]) + around


def _gemm(model: GpuModel, row: MeasuredKernel) -> tuple[KernelCost, ...]:
    shape = GemmShape(row.size("m"), row.size("n"), row.size("k"), row.size("b", 1))
    size = element_bytes(row.precision)
    weights = WEIGHT_BYTES.get(row.record["dtype"], size)
    output = max(size, 2.0)
    held = shape.batch * (shape.m * shape.k * size + shape.n * shape.k * weights + shape.m * shape.n * output)
    fits = held < model.device.l2.size
    graph = row.record["timing"] == "cuda_graph"
    warm_weights = GRAPH_COPIES * shape.n * shape.k * weights < model.device.l2.size if graph else fits
    product = model.gemm(shape, row.precision, GemmBytes(size, weights, output, fits, warm_weights))
    if row.record["impl"] in QUANTIZES:
        return model.quantize(shape.m, shape.k, "bf16", row.precision), product
    return (product,)


def _ladder(model: GpuModel, row: MeasuredKernel) -> tuple[KernelCost, ...]:
    problem = Problem(row.size("m"), row.size("n"), row.size("k"))
    return (program_cost(model.device, make_program(problem, LADDER[row.record["impl"]])).cost,)


def _conv(model: GpuModel, row: MeasuredKernel) -> tuple[KernelCost, ...]:
    names = ("b", "c_in", "h_in", "w_in", "c_out", "r", "s", "stride", "pad")
    shape = ConvShape(*(row.size(name) for name in names))
    size = element_bytes(row.precision)
    inputs = shape.batch * shape.channels_in * shape.height * shape.width
    outputs = shape.as_gemm.m * shape.as_gemm.n
    held = size * (inputs + shape.as_gemm.n * shape.as_gemm.k + outputs)
    return (model.conv(shape, row.precision, warm=held < model.device.l2.size),)


def _attention_shape(row: MeasuredKernel) -> AttentionShape:
    batch, heads, kv_heads = row.size("b"), row.size("heads"), row.size("kv_heads")
    queries, keys, causal = row.size("seq_q"), row.size("seq_kv"), row.record["causal"] == "1"
    return AttentionShape(batch, heads, kv_heads, queries, keys, row.size("head_dim"), causal)


def _flash(model: GpuModel, row: MeasuredKernel) -> tuple[KernelCost, ...]:
    return (model.attention(_attention_shape(row), row.precision, _named(row, FLASH_KERNELS)),)


def _prefill(model: GpuModel, row: MeasuredKernel) -> tuple[KernelCost, ...]:
    """A serving framework also writes keys and values into its cache and copies the result."""
    shape = _attention_shape(row)
    fused = model.attention(shape, row.precision, _named(row, SERVING_KERNELS))
    cache = model.elementwise(2 * shape.batch * shape.keys * shape.kv_heads * shape.head_dim, row.precision)
    result = model.elementwise(shape.batch * shape.queries * shape.heads * shape.head_dim, row.precision)
    return cache, fused, result


def _decode(model: GpuModel, row: MeasuredKernel) -> tuple[KernelCost, ...]:
    """The framework splits keys among blocks only where heads share keys; then it also copies what it swapped."""
    shape = _attention_shape(row)
    shared = shape.heads > shape.kv_heads
    fused = model.decode(shape, row.precision, split=shared)
    cache = model.elementwise(2 * shape.batch * shape.kv_heads * shape.head_dim, row.precision)
    copies = (model.elementwise(shape.batch * shape.heads * shape.head_dim, row.precision),)
    return (cache, fused, *(copies * 2 if shared and shape.kv_heads > 1 and shape.batch > 1 else copies))


def _unfused(model: GpuModel, row: MeasuredKernel) -> tuple[KernelCost, ...]:
    return model.attention_unfused(_attention_shape(row), row.precision)


def _elementwise(model: GpuModel, row: MeasuredKernel) -> tuple[KernelCost, ...]:
    reads = 2 if row.record["op"] == "add" else 1
    return (model.elementwise(row.size("rows") * row.size("cols"), row.precision, reads),)


def _softmax(model: GpuModel, row: MeasuredKernel) -> tuple[KernelCost, ...]:
    return (model.softmax(row.size("rows"), row.size("cols"), row.precision),)


def _layernorm(model: GpuModel, row: MeasuredKernel) -> tuple[KernelCost, ...]:
    return (model.layernorm(row.size("rows"), row.size("cols"), row.precision),)


def _named(row: MeasuredKernel, names: dict[str, str]) -> str:
    if row.record["impl"] not in names:
        raise row.wrong("impl", f"{row.record['impl']!r} is not one of {', '.join(names)}")
    return names[row.record["impl"]]


_KERNELS: dict[str, Callable[[GpuModel, MeasuredKernel], tuple[KernelCost, ...]]] = {
    "gemm": _gemm,
    "bmm": _gemm,
    "conv2d": _conv,
    "attn_flash": _flash,
    "attn_prefill": _prefill,
    "attn_decode": _decode,
    "attn_std_unfused": _unfused,
    "add": _elementwise,
    "gelu": _elementwise,
    "softmax": _softmax,
    "layernorm": _layernorm,
    "sgemm_ladder": _ladder,
}
