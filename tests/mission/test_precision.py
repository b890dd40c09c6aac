"""Section 9 of the mission: low precision and numerics, rows L1 and L4 to L7."""

from __future__ import annotations

import pytest

import hwsim
from hwsim.result import RunResult

FROM_WIDE_TO_NARROW = ("fp32", "fp16", "fp8_e4m3", "fp4_e2m1")


def run(precision: str, workload: str = "matmul_simd", **parameters: object) -> RunResult:
    sizes = {"n": 64, "distribution": "normal"} if workload.startswith("matmul") else {}
    return hwsim.run("skylake_avx512", workload, precision=precision, convert=True, **{**sizes, **parameters})


def error(result: RunResult) -> float:
    assert result.numeric is not None
    return result.numeric.rms_rel


@pytest.mark.parametrize("precision", [*FROM_WIDE_TO_NARROW, "bf16", "int8", "int4"])
def test_l1_every_precision_of_the_notes_runs_with_real_rounding(precision: str) -> None:
    """L1: fp32, fp16, fp8, fp4, and bf16, int8, int4: right for what is stored, and off by what storing cost."""
    result = run(precision, **({"scale": "row"} if precision.startswith("int") else {}))
    assert result.verified
    assert 0 < error(result) < 0.3


def test_l4_the_higher_the_precision_the_smaller_the_loss_and_the_larger_the_energy() -> None:
    """L4: with the slip of the notes put right. Energy without the static share, which follows time."""
    results = [run(precision, workload="matmul", n=128) for precision in ("fp64", "fp32", "fp16")]
    causes = [each.energy_by_cause or {} for each in results]
    energies = [
        sum(line["joules"] for name in ("arithmetic", "memory") for line in cause[name].values()) for cause in causes
    ]
    assert energies == sorted(energies, reverse=True)
    losses = [error(run(precision)) for precision in ("fp64", *FROM_WIDE_TO_NARROW)]
    assert losses == sorted(losses)


def test_l5_quantisation_works_because_errors_average_out_and_scales_follow_the_data() -> None:
    """L5: a long sum is no worse than a short one; outliers ruin one scale for all, and finer scales mend it."""
    short, long = (error(run("fp8_e4m3", n=64, k=k)) for k in (64, 1024))
    assert long == pytest.approx(short, rel=0.1)
    coarse, fine, calm = (
        error(run("int8", scale=scale, n=128, distribution=kind))
        for scale, kind in (("tensor", "activations"), ("block", "activations"), ("tensor", "normal"))
    )
    assert coarse > 2 * calm
    assert fine < coarse / 1.5


def test_l5_a_wider_accumulator_is_better() -> None:
    errors = [error(run("bf16", accumulate=wide, chunk=8, n=128)) for wide in ("bf16", "fp16", "fp32")]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 1.5 * errors[-1]


def test_l6_half_the_bytes_are_twice_the_operations_per_byte_and_half_the_time_where_memory_is_the_limit() -> None:
    """L6: a vector addition far larger than any cache; lanes double too."""
    wide, narrow, narrowest = (
        hwsim.run("course_cpu", "add", n=1 << 18, precision=precision) for precision in ("fp32", "fp16", "int8")
    )
    for more, less in ((wide, narrow), (narrow, narrowest)):
        assert less.intensity["byte"] == pytest.approx(2 * more.intensity["byte"])
        assert less.memory["dram"].bytes_read == more.memory["dram"].bytes_read / 2
        assert less.work["instructions"]["add"] == more.work["instructions"]["add"] / 2
        assert less.time_s == pytest.approx(more.time_s / 2, rel=0.1)


def test_l6_packed_numbers_of_four_bits_move_half_the_bytes_of_eight() -> None:
    """L6, below a byte: native on a machine that says it has int4."""
    eight, four = (
        hwsim.run("zen3", "copy", n=1 << 18, precision=precision, convert=True) for precision in ("int8", "int4")
    )
    assert four.memory["dram"].bytes_read == eight.memory["dram"].bytes_read / 2
    assert four.peak_memory_bytes == eight.peak_memory_bytes / 2


@pytest.mark.parametrize("precision", ["bf16", "fp8_e4m3"])
def test_l7_sums_are_kept_wider_than_products(precision: str) -> None:
    """L7: the same products, summed in fp32 or in bf16 after each: the second loses more than the operands did."""
    wide, narrow = (run(precision, accumulate=sums, chunk=1, n=32, k=512) for sums in ("fp32", "bf16"))
    assert wide.verified
    assert error(narrow) > error(wide)
    assert wide.error is not None and narrow.error is not None
    assert narrow.error.rms_rel > 1000 * wide.error.rms_rel
