"""Section 8 of the mission: attention with and without its matrix in memory."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from math import log2, sqrt
from pathlib import Path

import numpy as np
import pytest

import hwsim
from hwsim import RunResult
from hwsim.errors import CapacityError
from hwsim.program.loop_kernel import build_kernel
from hwsim.spec.workload import WorkloadSpec
from tests.cli.command_line import hwsim as command
from tests.unit.kernels.helpers import kernel, steps, workload

VARIANTS = ("attention_naive", "attention_fused")
SMALL_L2 = {"l2.size": "64 KiB"}
"""K and V of 16 channels fit up to about n = 300."""


@cache
def traffic(name: str, n: int) -> tuple[int, int]:
    """Bytes read from DRAM and written to it, at d = 16 and Br = Bc = 64, behind 64 KiB of L2."""
    result = hwsim.run("course_cpu", name, set=SMALL_L2, math=False, n=n, d=16, br=64, bc=64)
    dram = result.memory["dram"]
    return dram.bytes_read, dram.bytes_written


def peak(variant: str, n: int) -> int:
    return build_kernel(attention(variant, n=n, d=64), math=False).space.peak_bytes


def attention(variant: str, **sizes: int) -> WorkloadSpec:
    return workload("attention", sizes, variant=variant, br=32, bc=32)


@pytest.mark.parametrize("name", VARIANTS)
def test_n1_attention_is_softmax_of_q_k_over_the_root_of_d_times_v(name: str) -> None:
    """N1: with d = 100 the scores are divided by 10."""
    result = hwsim.run("course_cpu", name, n=50, d=100)
    assert result.verified
    made = build_kernel(attention("naive", n=50, d=100))
    q, k, v = (made.arrays[tensor][0, 0].astype(np.float64) for tensor in "QKV")
    grown = np.exp(q @ k.T / 10)
    np.testing.assert_allclose(result.output[0, 0], grown / grown.sum(axis=1, keepdims=True) @ v, rtol=1e-4, atol=1e-6)


def test_n2_naive_memory_grows_with_the_square_of_n_and_fused_memory_with_n() -> None:
    """N2: slopes of 2 and 1 on a log-log plot; S and P are 32 times Q, K, V and O at n = 4096 and d = 64."""
    lengths = (4096, 8192, 16384, 32768)
    for variant, slope in (("naive", 2), ("fused", 1)):
        peaks = [peak(variant, n) for n in lengths]
        slopes = [log2(later / earlier) for earlier, later in pairwise(peaks)]
        assert slopes == pytest.approx([slope] * 3, abs=0.03)
    made = build_kernel(attention("naive", n=4096, d=64), math=False)
    between = sum(made.tensors[name].size for name in "SP")
    kept = sum(made.tensors[name].size for name in "QKVO")
    assert (between, kept) == (2 * 4096**2, 4 * 4096 * 64)
    assert between / kept == 32
    assert build_kernel(attention("fused", n=4096, d=64), math=False).tensors["S"].size == 32 * 32


def test_n2_the_result_reports_peak_memory() -> None:
    for variant in ("naive", "fused"):
        result = hwsim.run("course_cpu", f"attention_{variant}", n=64, math=False)
        assert result.peak_memory_bytes == peak(variant, 64)


def test_n3_a_fused_softmax_without_rescaling_is_refused() -> None:
    """N3: the sum of a row is not known before all of the row is."""
    done = command("run", "course_cpu", "attention_fused", "softmax=plain")
    assert done.code == 2
    assert "whole row of S" in done.err and "softmax: online" in done.err
    assert command("run", "course_cpu", "attention_naive", "softmax=plain", "n=32").code == 0


def test_n3_without_rescaling_the_answer_would_be_wrong() -> None:
    """What is refused: each tile with its own maximum, sums added up as if it were the same."""
    made = kernel("attention", {"n": 64, "d": 8}, variant="fused", br=64, bc=16, precision="fp64")
    q, k, v = (made.arrays[tensor][0, 0] for tensor in "QKV")
    s = q @ k.T / sqrt(8)
    output, total = np.zeros((64, 8)), np.zeros((64, 1))
    for start in range(0, 64, 16):
        tile = s[:, start : start + 16]
        p = np.exp(tile - tile.max(axis=1, keepdims=True))
        output, total = output + p @ v[start : start + 16], total + p.sum(axis=1, keepdims=True)
    steps(made)
    assert np.abs(made.output[0, 0] - made.reference()[0, 0]).max() < 1e-14
    assert np.abs(output / total - made.reference()[0, 0]).max() > 1e-3


@pytest.mark.parametrize("precision", ["fp64", "fp32", "fp16", "bf16"])
def test_n4_softmax_in_chunks_is_the_softmax_of_the_whole(precision: str) -> None:
    """N4: m = max(m1, m2), l = e^(m1-m) l1 + e^(m2-m) l2; online and in passes agree in each format."""
    results = [hwsim.run("course_cpu", name, n=300, m=7, precision=precision) for name in ("softmax", "softmax_online")]
    for result in results:
        assert result.verified
        np.testing.assert_allclose(result.output.astype(np.float64).sum(axis=1), 1, atol=2e-2)
    roundoff = {"fp64": 2**-53, "fp32": 2**-24, "fp16": 2**-11, "bf16": 2**-8}[precision]
    first, second = (result.output.astype(np.float64) for result in results)
    np.testing.assert_allclose(first, second, rtol=16 * roundoff, atol=0)
    halves = np.random.default_rng(1).normal(size=(2, 5)) * 10
    highest = halves.max()
    parts = [np.exp(half.max() - highest) * np.exp(half - half.max()).sum() for half in halves]
    assert sum(parts) == pytest.approx(np.exp(halves - highest).sum(), rel=1e-14)


def test_n4_online_softmax_reads_less() -> None:
    """Three passes read each element three times and write it twice; two passes read it twice and write it once."""
    passes, online = (hwsim.run("course_cpu", name, n=512, math=False) for name in ("softmax", "softmax_online"))
    size = 512 * 512
    assert sum(passes.tensors[name]["loads"] for name in "XY") == 3 * size
    assert passes.tensors["Y"]["stores"] == 2 * size
    assert sum(online.tensors[name]["loads"] for name in "XY" if name in online.tensors) == 2 * size
    assert online.tensors["Y"]["stores"] == size
    assert online.memory["dram"].bytes_read == pytest.approx(passes.memory["dram"].bytes_read * 3 / 4, rel=0.01)


def test_n5_fused_traffic_is_linear_while_k_and_v_fit_the_last_cache_then_quadratic() -> None:
    """N5: Q, K, V and O once and a tile of scratch space; then K and V again for every Br queries."""
    scratch = 4 * (64 * 64 + 64 * 16 + 4 * 64)
    for n in (128, 256):
        assert traffic("attention_fused", n)[0] == pytest.approx(4 * n * 16 * 4 + scratch, rel=0.1)
    for n in (512, 1024):
        keys_and_values = 2 * n * n * 16 // 64 * 4
        read, written = traffic("attention_fused", n)
        assert read == pytest.approx(keys_and_values + 2 * n * 16 * 4 + scratch, rel=0.01)
        assert read + written == pytest.approx(keys_and_values + 3 * n * 16 * 4 + scratch, rel=0.1)
    assert traffic("attention_fused", 1024)[0] == pytest.approx(2 * 1024 * 1024 * 16 // 64 * 4, rel=0.1)


@pytest.mark.parametrize("n", [64, 128, 256, 512, 1024])
def test_n5_fused_traffic_is_always_below_that_of_naive(n: int) -> None:
    assert sum(traffic("attention_fused", n)) < sum(traffic("attention_naive", n))


def test_n5_traffic_falls_as_the_tile_grows() -> None:
    """Twice the rows in a tile, half the passes over K and V, which are twice as large as the last cache."""
    smaller = {"l1.size": "16 KiB", "l2.size": "32 KiB"}
    reads = [
        hwsim.run("course_cpu", "attention_fused", set=smaller, math=False, n=256, d=32, br=br, bc=32).memory["dram"]
        for br in (8, 16, 32)
    ]
    ratios = [first.bytes_read / second.bytes_read for first, second in pairwise(reads)]
    assert ratios == pytest.approx([2, 2], rel=0.1)


def test_n5_traffic_goes_with_n2_d2_over_scratch_space() -> None:
    """The largest tile with Bc = 16 in M bytes has about M / (4 (2d + Bc)) rows, so K and V are read
    2 n² d / Br ~ 4 n² d (2d + Bc) / M times: twice the space, half the traffic."""
    passes = []
    for kib in (8, 16, 32):
        with pytest.raises(CapacityError, match="with bc=16 it is br=") as refused:
            kernel("attention", {"n": 4096, "d": 32}, math=False, br=4096, bc=16, scratch=f"{kib} KiB")
        rows = int(str(refused.value).rsplit("with bc=16 it is br=", 1)[1].split(";")[0])
        expected = (kib * 1024 - 4 * 2 * 16 * 32) / (4 * (2 * 32 + 16 + 4))
        assert rows == int(expected)
        passes.append(4096 / rows)
    assert passes[0] / passes[2] == pytest.approx(4 * (1 - 1 / 8) / (1 - 1 / 2), rel=0.05)


def test_n6_time_grows_with_n_squared_and_with_d() -> None:
    """N6: twice the sequence, four times the time; twice the channels, about twice."""
    short, long, wide = (
        hwsim.run("course_cpu", "attention_fused", math=False, n=n, d=d).cycles
        for n, d in ((256, 32), (512, 32), (256, 64))
    )
    assert long / short == pytest.approx(4, rel=0.05)
    assert 1.6 < wide / short < 2


def test_n6_decoding_one_query_is_bound_by_reading_k_and_v() -> None:
    """A byte of K or V is used for one or two operations, and for four times as many where four heads share it."""
    sizes = {"n": 2048, "d": 64, "queries": 1}
    alone = hwsim.run("course_cpu", "attention_decode", math=False, **sizes, heads=2, kv_heads=2)
    shared = hwsim.run("course_cpu", "attention_decode", math=False, **sizes, heads=8, kv_heads=2)
    compulsory = 2 * 2 * 2048 * 64 * 4
    for result in (alone, shared):
        assert result.memory["dram"].bytes_read == pytest.approx(compulsory, rel=0.01)
    assert shared.intensity["levels"]["dram"] == pytest.approx(4 * alone.intensity["levels"]["dram"], rel=0.01)


def test_n8_narrow_formats_trade_error_for_energy() -> None:
    """N8: the error grows by about the ratio of the roundoffs, and the energy and traffic fall with the bits."""
    found = {
        precision: hwsim.run("course_cpu", "attention_fused", n=128, d=32, precision=precision)
        for precision in ("fp64", "fp32", "fp16", "bf16")
    }
    assert all(result.verified for result in found.values())
    errors = {precision: result.error.max_rel for precision, result in found.items() if result.error}
    assert errors["fp64"] < 1e-14 < errors["fp32"] < 1e-5 < errors["fp16"] < errors["bf16"] < 0.05
    energies = [dynamic(found[precision]) for precision in ("fp64", "fp32", "fp16", "bf16")]
    assert energies == sorted(energies, reverse=True)
    assert found["fp16"].memory["dram"].bytes_read < 0.75 * found["fp32"].memory["dram"].bytes_read


def dynamic(result: RunResult) -> float:
    """Joules but for static power."""
    causes = result.energy_by_cause or {}
    return sum(line["joules"] for cause, lines in causes.items() if cause != "static" for line in lines.values())


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_n8_a_stable_softmax_stands_scores_that_would_overflow(precision: str) -> None:
    """Scores of some hundred are far beyond the logarithm of the largest fp16 (11.1)."""
    made = kernel("attention", {"n": 16, "d": 4, "scale": 200.0}, variant="fused", br=4, bc=4, precision=precision)
    steps(made)
    assert np.isfinite(made.output).all()
    assert np.abs(made.output - made.reference()).max() < 0.5


@pytest.mark.parametrize(
    ("name", "reads", "writes"),
    [
        # Q, O and K, V 32 times; and, for naive, S and P: see docs/explanation/attention.md.
        ("attention_fused", 2 * 1024 * 64 + 2 * 1024 * 64 * 32, 1024 * 64),
        ("attention_naive", 2 * 1024 * 64 + 2 * 1024 * 64 * 32 + 6 * 1024**2, 1024 * 64 + 3 * 1024**2),
    ],
)
def test_traffic_of_a_kilotoken_agrees_with_the_closed_forms(name: str, reads: int, writes: int) -> None:
    """One head, n = 1024, d = 64, fp32, Br = Bc = 32 on course_cpu: reads, write-allocates and write-backs."""
    result = hwsim.run("course_cpu", name, n=1024, d=64, br=32, bc=32)
    assert result.verified
    dram = result.memory["dram"]
    assert dram.bytes_read == result.memory["l2"].bytes_fetched == pytest.approx(4 * reads, rel=0.1)
    assert dram.bytes_read + dram.bytes_written == pytest.approx(4 * (reads + writes), rel=0.1)
    assert dram.bytes_read == pytest.approx(4 * reads, rel=0.01)
    page = (Path(hwsim.__file__).parents[1] / "docs" / "explanation" / "attention.md").read_text(encoding="utf-8")
    for told in (f"{dram.bytes_read:,} B", f"{dram.bytes_written:,} B", f"{result.cycles / 1e6:.1f} million"):
        assert told in page


@pytest.mark.parametrize(
    ("softmax", "l2", "reads", "writes"), [("plain", 64, 6, 3), ("rows", 128, 4, 2), ("online", 64, 5, 2)]
)
def test_the_formula_of_stored_scores_holds_for_each_softmax(softmax: str, l2: int, reads: int, writes: int) -> None:
    """Scores larger than the caches: S and P come from memory and go there as often as the passes over them say."""
    n, d = 512, 16
    result = hwsim.run(
        "course_cpu", "attention_naive", n=n, d=d, softmax=softmax, math=False, set={"l2.size": f"{l2} KiB"}
    )
    scores = 4 * n * n
    into, out = result.formulas
    assert into.expression.endswith(f"{reads}·S") and out.predicted == 4 * n * d + writes * scores
    assert out.ratio == pytest.approx(1, abs=0.01)
    assert into.ratio == pytest.approx(1, abs=0.2 if softmax == "rows" else 0.01), "of rows some stay in the cache"
