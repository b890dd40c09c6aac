"""A measured GPU kernel as workloads of hwsim, with the conditions under which it was measured.

Each goes the way that `hwsim run` goes: the target prepares its kernel and lays it out, and the engine plays it.

A row knows how it was timed, which launch belongs to that, and whether it measures the host: docs/explanation/gpu.md
has the rules in words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod
from pathlib import Path

from hwsim.engine import play
from hwsim.numerics.datapath import find_datapath
from hwsim.ops.attention_shape import AttentionShape
from hwsim.ops.conv import ConvWorkload
from hwsim.ops.layout import quantize
from hwsim.program.kernel import Kernel, Setting
from hwsim.program.loop_kernel import OperatorKernel, OperatorRun
from hwsim.spec.base import ParallelSchedule
from hwsim.spec.workload import ThreadSchedule, WorkloadSpec
from hwsim.targets.gpu.device import LAUNCH, Device
from hwsim.targets.gpu.lower import KEYS, Conditions
from hwsim.targets.gpu.target import GpuTarget
from hwsim.validation.residual import FIT, Purpose, purpose_of, unfitted_half
from hwsim.validation.table import LINE, Record, integer, one_of, row_error

COLUMNS = (
    "family", "machine", "op", "impl", "dtype", "pass", "b", "m", "n", "k", "heads", "kv_heads", "seq_q", "seq_kv",
    "head_dim", "causal", "c_in", "h_in", "w_in", "c_out", "r", "s", "stride", "pad", "rows", "cols", "latency_us",
    "timing",
)  # fmt: skip

SHAPE = COLUMNS[COLUMNS.index("b") : COLUMNS.index("cols") + 1]
"""The columns that say how large a kernel is: with its family they decide what a row is used for."""

PRECISION = {
    "fp16": "fp16", "bf16": "bf16", "fp32": "fp32", "int8": "int8", "int8_smoothquant": "int8", "fp8_e4m3": "fp8_e4m3",
    "fp8": "fp8_e4m3", "fp8_block": "fp8_e4m3", "fp8_block128": "fp8_e4m3", "nvfp4": "fp4_e2m1", "w4a16": "w4a16",
    "w8a16": "w8a16",
}  # fmt: skip

TIMING = {"cuda_graph": "graph", "cuda_event": "stream", "reported": "graph", "wall_clock": "host"}
HOST_US = {"gemm": 21.0, "softmax": 12.0, "layernorm": 45.0, "gelu": 45.0, "add": 21.0}
"""Host time of one call in the wall-clock rows: LLMCompass, hardware_model/compute_module.py, on A100."""

LAYER_TIMED = "trt_flow_"
"""TensorRT's own profile, whose times come in steps of 1.024 us: events around each layer, also inside a graph."""
LAYER_US = 9.4
"""What such events add to a kernel (fitted on the shortest layers on A100)."""
CONV_TIMED, CONV_US = "cudnn8.9:", 150.0
"""Events around a call of a framework that looks up its plan for a convolution: what the host adds (fitted on 3x3
convolutions on V100 and A100 PCIe)."""
CALL_US, LIBRARY_TIMED = 20.0, "cuBLAS"
"""Events around a call of a framework for a layer: what its host adds to a launch (fitted on fp32 products on H100,
A100, V100, T4, MI100 and MI210). Batches and times of the library itself do not show it."""
PLUGIN, PLUGIN_US = "PLUGIN_V2_WeightOnly", 8.5
"""The same for its products with weights of fewer bits, which are extensions (fitted on the shortest of them)."""
QUEUED_US, QUEUED_GAP_US = {("arc_b60", "bf16"): 32.0, ("arc_b60", "fp8"): 22.0}, 8.0
"""Where a recorded graph is sent kernel by kernel, the host takes so long for each product, by its format, while the
GPU works on the one before; and what lies between two (fitted on products on Arc B60)."""
QUEUED_CALL_US, QUEUED_KERNEL_US = 16.0, 16.0
"""The same for attention, whose call starts several kernels: for the call, and for each (fitted on the shortest prompts
and steps there, of two and three kernels; a product, one kernel, takes as long)."""
FLASH_FLOOR_US = 300.0
"""Published times of attention below this are those of the host; with a backward pass three times as many calls."""
BLOCK_SCALED, BLOCK_FLOOR_US = "fp8_block", 1000.0
"""Products with a scale for each block of 128 numbers take the serving framework 160 to 330 us whatever their size, on
GB200 up to 680 us and on L40S up to 870."""
FIRST_BACKWARD = 3.5
"""Forward and backward of FlashAttention-1 over forward alone, seven products against two: its warps share keys and
exchange all sums through shared memory, which hides the softmax."""
MASK_OPERATIONS, GRADIENT_OPERATIONS = 43.0, 72.0
"""Instructions of a lane for each score that a mask is added to, number by number: the mask is stretched over batch and
heads, so that no kernel takes vectors (as many as QUANTIZE_OPERATIONS, which is such a kernel too). And for each score
whose gradient a softmax finds: twice as many as forward, for two numbers that are unpacked (fitted on A100)."""
SERVING_LAUNCHES = {
    "vllm_flash_attn_fa3": 2, "vllm_flash_attn_fa4": 2, "vllm_flashinfer_trtllmprefill": 3,
    "vllm_flashinfer_trtllmdecode": 3, "FlashInferCuteDslNvFp4LinearKernel": 2, "FlashInferCutlassNvFp4LinearKernel": 2,
    "CutlassFP8ScaledMMLinearKernel": 1,
}  # fmt: skip
"""Kernels without work of their own that the framework starts: beside attention to plan its blocks, beside products of
4 bits to bring scales into the order that tensor cores take, beside those of 8 bits to find one scale for all rows."""
ONE_SCALE, ROW_SECONDS = "CutlassFP8Scaled", {"rtx_pro_6000": 3e-9, "l40s": 6e-9}
ROW_SECONDS_OF_OTHERS = 5e-9
"""Products whose activations share one scale: a block for each row finds its largest number and then raises that of all
rows, at one address, one after the other (vLLM, csrc/quantization/w8a8/fp8/common.cu; the time of one is fitted on
such products of few columns on B200, GB200, L40S and RTX PRO 6000)."""

LONE_ROW_US, LONE_ROW_MACHINES = 13.0, ("b200", "b300", "gb200")
"""Such a product of one row alone takes the framework so much more than one of two rows there, whatever its size:
kernels that are not known (fitted on 16 such products)."""


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
    def words(self) -> str:
        """What was measured: ``gemm fp16 m=64 n=64 k=64``."""
        sizes = [f"{column}={self.record[column]}" for column in SHAPE if self.record[column]]
        return " ".join([self.record["op"], self.record["dtype"], *sizes])

    @property
    def purpose(self) -> Purpose:
        """Whether constants may be fitted on rows of this shape, on any machine. To the rungs of a ladder, which have
        one shape, nothing is fitted: each counts by its name."""
        if self.record["op"] == "sgemm_ladder":
            return unfitted_half(self.family, self.record["impl"])
        return purpose_of(self.family, *(self.record[column] for column in SHAPE))

    @property
    def precision(self) -> str:
        return self.named("dtype", PRECISION)

    @property
    def host_bound(self) -> bool:
        """Whether the row measures the host rather than the kernel."""
        microseconds = self.seconds * 1e6
        if self.record["dtype"] == BLOCK_SCALED:
            return microseconds < BLOCK_FLOOR_US
        calls = 3 if self.record["pass"] == "fwd_bwd" else 1
        return self.record["op"] in ("attn_flash", "attn_std_unfused") and microseconds < calls * FLASH_FLOOR_US

    @property
    def held_out(self) -> bool:
        """Whether the row is for reporting: no constant is fitted on it."""
        return self.purpose != FIT

    @property
    def other_attention(self) -> bool:
        """Whether attention slid a window over the keys, or kept them in another format: no workload says so yet."""
        note = self.record.get("note") or ""
        return note.startswith("kv ") and note != "kv bfloat16; window 0"

    def size(self, column: str, default: int | None = None) -> int:
        if default is not None and not self.record[column]:
            return default
        value = integer(self.path, self.record, column)
        least = 0 if column == "pad" else 1
        if value < least:
            raise self.wrong(column, f"{value} is less than {least}")
        return value

    def check_sizes(self) -> None:
        """Refuses a size that is none, whichever half the row is in."""
        for column in SHAPE:
            if self.record[column] and column != "causal":
                self.size(column)

    def named(self, column: str, names: dict[str, str]) -> str:
        return names[one_of(self.path, self.record, column, names)]

    def wrong(self, column: str, message: str) -> Exception:
        return row_error(self.path, self.record, column, message)


def stored_bytes(precision: str) -> tuple[float, float]:
    """Bytes of one element of activations and of weights."""
    path = find_datapath(precision)
    return float(path.stored_bits_a / 8), float(path.stored_bits_b / 8)


QUANTIZES = ("sglang_sgl_kernel_fp8_scaled_mm", "Cutlass", "DeepGemm", "Triton", "FlashInfer")
"""Implementations, by how their names begin, that round activations to 8 or 4 bits before they multiply."""
TURNS_WITH_ALL = ("sglang", LAYER_TIMED)
"""Frameworks whose graph rows take turns with activations and results as well as with weights."""
GRAPH_COPIES = 6
"""Products of the graph rows take turns: an operand is found again if so many products fit what the L2 keeps."""
ALL_FOUND, NONE_FOUND = 0.5, 1.2
"""Of the L2's size: up to how much touched in between all is found again, and from how much on nothing; sets fill
unevenly, and not what was used longest ago leaves first (fitted on products on L40S and RTX PRO 6000)."""
FLASH_KERNELS = {"FlashAttention-1": "flash1", "FlashAttention-2": "flash2", "FlashAttention-3": "flash3"}
SERVING_KERNELS = {
    "vllm_flash_attn": "flash2_paged", "vllm_flash_attn_fa2": "flash2_paged", "vllm_flash_attn_fa3": "flash3_paged",
    "vllm_flash_attn_fa4": "flash3", "vllm_flashinfer_fiprefill": "flash2", "vllm_flashinfer_fidecode": "flash2",
    "vllm_flashinfer_trtllmprefill": "flash3", "vllm_flashinfer_trtllmdecode": "flash3", "vllm_triton_attn": "flash2",
}  # fmt: skip
DECODE_KERNEL = "flash_decode"
CACHE_THREADS, CACHE_CYCLES, ROUND_CYCLES = 512, 3000, 600
THREAD_CYCLES, THREAD_CYCLES_OF_OTHERS = {"b200": 3.0}, 5.5
"""Threads at most, and cycles, alone, for each further round of its threads over a token's numbers, and for each of its
threads, of a block of the framework's kernel that puts a token's keys and values into their pages (fitted on prompts on
A100, H100, H200 and B200)."""
SWAPPING = ("vllm_flash_attn", "vllm_flash_attn_fa2")
"""FlashAttention-2 lets heads that share keys change places with queries, and splits keys only there; kernels that came
later always may, and write results where they belong."""
INTEL = ("arc_b60",)
"""There kernels of the same name split keys as they like, writing the cache takes no time that follows the tokens, and
results are copied."""

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


@dataclass(frozen=True)
class KernelPiece:
    """One workload, or a kernel that no workload file can name, and what was so around it."""

    work: WorkloadSpec | Kernel
    conditions: Conditions = field(default_factory=Conditions)
    least_seconds: float = 0.0
    """What it takes whatever it moves."""
    turns_seconds: float = 0.0
    """What its blocks take in addition where they do something one after the other."""
    repeat: float = 1.0
    """How often it runs."""
    others: tuple[KernelPiece, ...] = ()
    """The same in other conditions: each `repeat` is a share of the runs."""
    instead: KernelPiece | None = None
    """Another way to the same, where the library tried all and kept the quickest."""


@dataclass(frozen=True)
class PlayedKernel:
    """Seconds on the device without any launch, and the number of launches."""

    seconds: float
    launches: int


def play_piece(target: GpuTarget, piece: KernelPiece) -> PlayedKernel:
    """The same call as in a run, without math; what starting kernels takes is left out."""
    return whole_piece(piece, lambda each: _played_alone(target, each))


def whole_piece(piece: KernelPiece, alone: Callable[[KernelPiece], PlayedKernel]) -> PlayedKernel:
    """A piece with all that belongs to it, from what the workload of each takes alone."""
    kernels = alone(piece)
    seconds = piece.repeat * max(kernels.seconds, piece.least_seconds) + piece.turns_seconds
    found = PlayedKernel(seconds + sum(whole_piece(each, alone).seconds for each in piece.others), kernels.launches)
    if piece.instead is None:
        return found
    return min(found, whole_piece(piece.instead, alone), key=lambda each: each.seconds)


def _played_alone(target: GpuTarget, piece: KernelPiece) -> PlayedKernel:
    if isinstance(piece.work, Kernel):
        crew = target.crew(piece.work, None, conditions=piece.conditions)
    else:
        crew = target.crew(target.prepare(piece.work, math=False), piece.work, conditions=piece.conditions)
    outcome = play(crew)
    starting = sum(agent.waiting.get(LAUNCH, 0) for agent in outcome.agents[:1])
    return PlayedKernel((outcome.elapsed_fs - starting) * 1e-15, sum(each.cost.launches for each in crew.launches))


def pieces_of(device: Device, row: MeasuredKernel) -> list[KernelPiece]:
    """What stands behind a row, in order."""
    return PIECES[row.record["op"]](device, row)


def _work(op: str, precision: str, sizes: Mapping[str, int | bool], **more: object) -> WorkloadSpec:
    """A workload as a file would say it."""
    about = {"format": 1, "name": op, "description": "A measured kernel.", "op": op}
    return WorkloadSpec.model_validate({**about, "precision": precision, "sizes": dict(sizes), **more})


def _gemm(device: Device, row: MeasuredKernel) -> list[KernelPiece]:
    batch, m, n, k = row.size("b", 1), row.size("m"), row.size("n"), row.size("k")
    size, weights = stored_bytes(row.precision)
    output = max(size, 2.0)
    copies = GRAPH_COPIES if row.record["timing"] == "cuda_graph" else 1
    again = copies if row.record["impl"].startswith(TURNS_WITH_ALL) else 1
    a, b, c = batch * m * k * size, batch * n * k * weights, batch * m * n * output
    touched = {"A": again * (a + b + c), "B": copies * b + (again - 1) * (a + c)}
    if again == 1:
        touched["C"] = c
    batches = {"batch": batch} if batch > 1 else {}
    made = _work("matmul_batched" if batches else "matmul", row.precision, {"m": m, "n": n, "k": k, **batches})
    product = _partly_warm(made, {"C": output}, {name: moved / device.kept_bytes for name, moved in touched.items()})
    if not row.record["impl"].startswith(QUANTIZES):
        return [product]
    shared = row.record["impl"].startswith(ONE_SCALE)
    turns = m * ROW_SECONDS.get(row.machine, ROW_SECONDS_OF_OTHERS) if shared else 0.0
    if shared and m == 1 and row.machine in LONE_ROW_MACHINES:
        turns += LONE_ROW_US * 1e-6
    found = Conditions(frozenset("X") if touched["A"] + 2 * m * k < device.kept_bytes else frozenset())
    run = OperatorRun("quantize", "bf16", ParallelSchedule())
    rounded = OperatorKernel(quantize.apply([(m, k)], {"to": row.precision}), run, Setting(math=False))
    return [KernelPiece(rounded, found, turns_seconds=turns), product]


def _partly_warm(work: WorkloadSpec, sizes: Mapping[str, float], filled: Mapping[str, float]) -> KernelPiece:
    """A product that finds operands and room for its results in the L2, or not: by how often the L2's size was touched
    since their last use. What is found in part counts as found in that share of the runs."""
    found = {
        name: min(1.0, max(0.0, (NONE_FOUND - times) / (NONE_FOUND - ALL_FOUND))) for name, times in filled.items()
    }
    shares = sorted({share for share in found.values() if 0 < share < 1} | {1.0})
    pieces = [
        KernelPiece(work, Conditions(frozenset(name for name in found if found[name] >= share), sizes), repeat=width)
        for share, width in zip(shares, (b - a for a, b in pairwise([0.0, *shares])), strict=True)
    ]
    return replace(pieces[0], others=tuple(pieces[1:]))


def _ladder(device: Device, row: MeasuredKernel) -> list[KernelPiece]:
    sizes = {name: row.size(name) for name in ("m", "n", "k")}
    return [KernelPiece(_work("matmul", "fp32", sizes, threads=LADDER[row.record["impl"]]))]


ALGORITHMS = {
    "winograd_nonfused": ("winograd_nonfused",),
    "cudnn7.6 winograd": ("winograd",),
    "winograd": ("winograd", "winograd_nonfused"),
    "fft": ("fft",),
}
"""Of a convolution, by a part of the name of its implementation: those that the library chose from."""


def _conv(device: Device, row: MeasuredKernel) -> list[KernelPiece]:
    columns = {
        "batch": "b", "ci": "c_in", "height": "h_in", "width": "w_in", "co": "c_out", "kernel": "r", "kernel_w": "s",
        "stride": "stride", "padding": "pad",
    }  # fmt: skip
    sizes = {name: row.size(column) for name, column in columns.items()}
    tried = next((each for name, each in ALGORITHMS.items() if name in row.record["impl"].lower()), ("direct",))
    first, *others = [_work("conv2d", row.precision, sizes, schedule={"algorithm": each}) for each in tried]
    assert isinstance(first, ConvWorkload)
    shape = first.sizes.shape
    size, _ = stored_bytes(row.precision)
    image, out, window = prod(shape.image), prod(shape.out), prod(shape.window)
    held = shape.batch * (shape.ci * image + shape.co * out) + shape.co * shape.ci * window
    warm = frozenset(("x", "w")) if size * held < device.l2.size else frozenset()
    around = Conditions(warm, {"y": size})
    instead = KernelPiece(others[0], around) if others else None
    return [KernelPiece(first, around, instead=instead)]


def _attention_shape(row: MeasuredKernel) -> AttentionShape:
    batch, heads, kv_heads, queries, keys, d = map(row.size, ("b", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim"))
    return AttentionShape(queries, keys, d, heads, kv_heads, batch, row.record["causal"] == "1")


def _attention(row: MeasuredKernel, variant: str) -> WorkloadSpec:
    """Its tiles are those of the library's kernel, whatever the schedule says: one tile is laid out quickest."""
    z = _attention_shape(row)
    sizes = {
        "batch": z.batch, "heads": z.heads, "kv_heads": z.kv_heads, "queries": z.queries, "n": z.keys, "d": z.d,
        "causal": z.causal,
    }  # fmt: skip
    return _work("attention", row.precision, sizes, schedule={"variant": variant, "br": z.queries, "bc": z.keys})


def _flash(device: Device, row: MeasuredKernel) -> list[KernelPiece]:
    """Backward, kernels before and after that of the gradients: products of results and their gradients, room for sums
    of the queries' gradients in 32 bits, and these in 16."""
    z, kernel = _attention_shape(row), row.named("impl", FLASH_KERNELS)
    forward = KernelPiece(_attention(row, "fused"), Conditions(attention=kernel))
    if row.record["pass"] != "fwd_bwd":
        return [forward]
    gradients = replace(forward, conditions=Conditions(attention=kernel, backward=True))
    if kernel == "flash1":
        return [replace(forward, repeat=FIRST_BACKWARD)]
    return [forward, *[_copy(row, z.batch * z.heads * z.queries, z.d)] * 3, gradients]


def _prefill(device: Device, row: MeasuredKernel) -> list[KernelPiece]:
    """A serving framework first writes keys and values into its cache; one query is decoded."""
    z = _attention_shape(row)
    if z.queries == 1:
        return _decode(device, row)
    kernel = row.named("impl", SERVING_KERNELS)
    warm = _is_warm(device, row, written=True)
    fused = KernelPiece(_attention(row, "fused"), Conditions(KEYS if warm else frozenset(), attention=kernel))
    tokens = 1 if row.machine in INTEL else z.batch * z.queries
    return [_cache(device, row, tokens, warm), fused]


def _is_warm(device: Device, row: MeasuredKernel, *, written: bool) -> bool:
    """Whether the L2 keeps all of a row that is repeated in a graph: keys and values, twice where all of them are
    written to the cache first, queries and results."""
    z, (size, _) = _attention_shape(row), stored_bytes(row.precision)
    keys = (4 if written else 2) * z.kv_heads * z.keys
    return z.batch * z.d * size * (keys + 2 * z.heads * z.queries) < device.kept_bytes


def _decode(device: Device, row: MeasuredKernel) -> list[KernelPiece]:
    """The framework splits keys among blocks only where heads share keys; then it copies the result.

    Where heads of several groups in a batch change places with queries, queries and results are copied as well.
    """
    z = _attention_shape(row)
    warm = _is_warm(device, row, written=False)
    swaps, shared = row.record["impl"] in SWAPPING and row.machine not in INTEL, z.heads > z.kv_heads
    conditions = Conditions(KEYS if warm else frozenset(), attention=DECODE_KERNEL, split_keys=shared or not swaps)
    fused = KernelPiece(_attention(row, "fused"), conditions)
    if row.record["impl"] not in SWAPPING:
        return [fused]
    copies = (3 if z.kv_heads > 1 and z.batch > 1 else 1) if swaps and shared else int(not swaps)
    return [_cache(device, row, z.batch, warm), fused, *[_copy(row, z.batch * z.heads, z.d, warm)] * copies]


_WITH_SECOND = {"op": "mul", "inputs": ("b",)}
"""A pass over two matrices that makes a third."""


def _unfused(device: Device, row: MeasuredKernel) -> list[KernelPiece]:
    """As the authors of FlashAttention wrote it in PyTorch: queries, keys and values brought into heads, and under a
    causal mask a pass that adds it to the scores."""
    z = _attention_shape(row)
    streams = z.batch * z.heads
    instruction = streams * z.queries * z.keys / (device.count * device.fma_rate("fp32", "lanes") * device.clock_hz)
    queries, scores = _copy(row, streams * z.queries, z.d), _copy(row, streams * z.queries, z.keys)
    heads = [queries, *[_copy(row, z.batch * z.kv_heads * z.keys, z.d)] * 2]
    pieces = [*heads, KernelPiece(_attention(row, "naive"))]
    if z.causal:
        pieces.append(replace(scores, least_seconds=MASK_OPERATIONS * instruction))
    if row.record["pass"] != "fwd_bwd":
        return pieces
    sizes = ((z.queries, z.keys, z.d), (z.queries, z.d, z.keys), (z.keys, z.d, z.queries), (z.keys, z.d, z.queries))
    products = [_work("matmul_batched", row.precision, {"m": m, "n": n, "k": k, "batch": streams}) for m, n, k in sizes]
    softmax = _work("pointwise", row.precision, {"m": streams * z.queries, "n": z.keys}, stages=(_WITH_SECOND,))
    gradient = KernelPiece(softmax, least_seconds=GRADIENT_OPERATIONS * instruction)
    return [*pieces, queries, *map(KernelPiece, products), gradient, *heads]


def _cache(device: Device, row: MeasuredKernel, tokens: int, warm: bool = False) -> KernelPiece:
    """New keys and values put into their pages, each token by a block of up to 512 threads."""
    z = _attention_shape(row)
    copied = _copy(row, 2 * tokens * z.kv_heads, z.d, warm)
    if row.machine in INTEL:
        return copied
    threads = min(CACHE_THREADS, z.kv_heads * z.d)
    slots = device.count * min(device.sm.blocks, device.sm.warps // -(-threads // device.sm.warp))
    rounds = -(-z.kv_heads * z.d // threads) - 1
    started = CACHE_CYCLES + threads * THREAD_CYCLES.get(row.machine, THREAD_CYCLES_OF_OTHERS)
    return replace(copied, least_seconds=tokens / slots * (started + rounds * ROUND_CYCLES) / device.clock_hz)


def _copy(row: MeasuredKernel, m: int, n: int, warm: bool = False) -> KernelPiece:
    conditions = Conditions(frozenset(("X", "Y")) if warm else frozenset())
    return KernelPiece(_work("pointwise", row.precision, {"m": m, "n": n}, stages=("copy",)), conditions)


def _elementwise(device: Device, row: MeasuredKernel) -> list[KernelPiece]:
    stage = {"op": "add", "inputs": ("b",)} if row.record["op"] == "add" else "gelu"
    return [KernelPiece(_work("pointwise", row.precision, _matrix(row), stages=(stage,)))]


def _rows(device: Device, row: MeasuredKernel) -> list[KernelPiece]:
    return [KernelPiece(_work(row.record["op"], row.precision, _matrix(row)))]


def _matrix(row: MeasuredKernel) -> dict[str, int]:
    return {"m": row.size("rows"), "n": row.size("cols")}


PIECES: dict[str, Callable[[Device, MeasuredKernel], list[KernelPiece]]] = {
    "gemm": _gemm,
    "bmm": _gemm,
    "conv2d": _conv,
    "attn_flash": _flash,
    "attn_prefill": _prefill,
    "attn_decode": _decode,
    "attn_std_unfused": _unfused,
    "add": _elementwise,
    "gelu": _elementwise,
    "softmax": _rows,
    "layernorm": _rows,
    "sgemm_ladder": _ladder,
}
