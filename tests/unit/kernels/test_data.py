"""Inputs: their distributions, files of one's own, and the numbers of a workload that a kernel has no use for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hwsim
from hwsim.errors import InputError, ShapeError
from hwsim.numerics.format import find_format
from hwsim.program.loop_kernel import build_kernel
from hwsim.program.tensors import OUTLIER_GAIN, make_input, random_values
from hwsim.spec.variant import with_parameters
from hwsim.spec.workload import WorkloadSpec

MATMUL = {"format": 1, "name": "mm", "description": "product", "op": "matmul", "sizes": {"n": 16}}


def workload(**fields: object) -> WorkloadSpec:
    return WorkloadSpec.model_validate({**MATMUL, **fields})


def test_uniform_numbers_fill_their_range_evenly() -> None:
    values = random_values(0, 0, (100, 100))
    assert values.min() >= -1 and values.max() < 1
    assert values.std() == pytest.approx(2 / np.sqrt(12), rel=0.02)
    positive = random_values(0, 0, (100, 100), positive=True)
    assert positive.min() >= 0 and positive.mean() == pytest.approx(0.5, abs=0.02)


def test_normal_numbers_have_mean_zero_and_deviation_one() -> None:
    values = random_values(0, 0, (200, 200), distribution="normal")
    assert values.mean() == pytest.approx(0, abs=0.02)
    assert values.std() == pytest.approx(1, rel=0.02)


def test_half_of_what_a_relu_leaves_is_zero() -> None:
    values = random_values(0, 0, (200, 200), distribution="relu")
    assert (values == 0).mean() == pytest.approx(0.5, abs=0.02)
    assert values.min() == 0


def test_activations_have_a_few_channels_that_are_much_larger() -> None:
    values = random_values(0, 0, (500, 256), distribution="activations")
    sizes = values.std(axis=0)
    assert (sizes > 10).sum() == 2
    assert sizes.max() == pytest.approx(OUTLIER_GAIN, rel=0.15)
    assert np.median(sizes) == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("name", ["int4", "uint4", "int8"])
@pytest.mark.parametrize("distribution", ["uniform", "normal", "relu", "activations"])
def test_integers_stay_in_the_range_of_their_format(name: str, distribution: str) -> None:
    fmt = find_format(name)
    values = make_input(0, 0, "A", (64, 64), fmt, distribution=distribution)
    assert values.dtype == fmt.held
    assert len(np.unique(values)) > 1
    assert np.abs(values.astype(int)).max() <= fmt.largest + 1


def test_a_workload_reads_its_inputs_from_files(tmp_path: Path) -> None:
    a = np.arange(256.0).reshape(16, 16)
    np.save(tmp_path / "a.npy", a)
    kernel = build_kernel(workload(inputs={"A": str(tmp_path / "a.npy")}))
    np.testing.assert_array_equal(kernel.arrays["A"], a)
    result = hwsim.run("course_cpu", workload(inputs={"A": str(tmp_path / "a.npy")}, precision="bf16"))
    assert result.verified
    assert result.numeric is not None and result.numeric.inputs == "before rounding"


def test_a_file_that_is_missing_broken_or_of_another_shape_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"inputs\.A: there is no file .*none\.npy"):
        build_kernel(workload(inputs={"A": str(tmp_path / "none.npy")}))
    (tmp_path / "text.npy").write_text("1 2 3")
    with pytest.raises(InputError, match=r"inputs\.A: .*text\.npy is not a \.npy file"):
        build_kernel(workload(inputs={"A": str(tmp_path / "text.npy")}))
    np.save(tmp_path / "complex.npy", np.ones((16, 16), complex))
    with pytest.raises(InputError, match="one array of real numbers"):
        build_kernel(workload(inputs={"A": str(tmp_path / "complex.npy")}))
    np.save(tmp_path / "small.npy", np.ones((4, 4)))
    for scale in ("none", "row"):
        spec = workload(inputs={"A": str(tmp_path / "small.npy")}, precision="int8", scale=scale)
        with pytest.raises(ShapeError, match=r"A has shape \(4, 4\).*\(16, 16\)"):
            build_kernel(spec)


@pytest.mark.parametrize(("field", "value"), [("chunk", 4), ("accumulate", "fp32")])
def test_what_a_kernel_has_no_use_for_is_refused(field: str, value: object) -> None:
    spec = WorkloadSpec.model_validate(
        {"format": 1, "name": "a", "description": "sum", "op": "add", "sizes": {"n": 8}, field: value}
    )
    with pytest.raises(InputError, match=f"{field} means nothing to op 'add'"):
        build_kernel(spec)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int32"])
def test_scales_are_refused_where_the_range_is_long_enough(precision: str) -> None:
    for op, sizes in (("add", {"n": 8}), ("matmul", {"n": 8})):
        with pytest.raises(InputError, match=f"scale: {precision} has range enough"):
            build_kernel(workload(op=op, sizes=sizes, precision=precision, scale="row"))


def test_a_kernel_that_knows_no_scales_computes_with_what_scaled_numbers_stand_for() -> None:
    kernel = build_kernel(workload(op="add", sizes={"n": 64}, precision="int8", scale="tensor", distribution="normal"))
    values = kernel.arrays["A"]
    step = np.abs(values).max() / 127
    np.testing.assert_allclose(values / step, np.rint(values / step), atol=1e-3)
    assert not kernel.fmt.is_integer
    assert kernel.tensors["A"].element_bits == 8


def test_accumulate_means_the_schedule_or_the_format_by_what_it_is_set_to() -> None:
    spec = workload()
    assert with_parameters(spec, {"accumulate": "memory"}).schedule.accumulate == "memory"
    both = with_parameters(with_parameters(spec, {"accumulate": "memory"}), {"accumulate": "fp64"})
    assert (both.schedule.accumulate, both.accumulate) == ("memory", "fp64")


def test_a_block_of_scales_is_a_power_of_two() -> None:
    with pytest.raises(ValueError, match="scale_block: 48 is not a power of two"):
        workload(scale="block", scale_block=48)


def test_scales_of_blocks_take_their_space_in_memory() -> None:
    """fp32 scales: a quarter of a bit for each number in blocks of 128, one bit in blocks of 32."""
    plain, fine, weights = (
        build_kernel(workload(sizes={"n": 128}, **fields)).tensors["B"].element_bits
        for fields in ({"precision": "int8"}, {"precision": "int8", "scale": "block"}, {"precision": "w4a16"})
    )
    assert (plain, fine, weights) == (8, 9, 4.25)


def test_scales_keep_their_size_in_a_tiled_product_whatever_the_tiles() -> None:
    """The same scales for every tiling: results agree up to the rounding of fp32 sums."""
    outputs = []
    for tile in (None, 16, 24):
        spec = workload(
            sizes={"n": 96}, precision="int8", scale="block", distribution="normal", schedule={"tile": tile}
        )
        kernel = build_kernel(spec)
        for block in kernel.blocks():
            list(block.steps())
        outputs.append(kernel.output)
    for other in outputs[1:]:
        np.testing.assert_allclose(other, outputs[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("op", ["fused_add_mul", "add", "mul", "triad"])
def test_random_integers_leave_room_for_one_product_and_its_sums(op: str) -> None:
    """(7 + 7) * 7 + 7 is 105, and an int8 goes to 127."""
    spec = WorkloadSpec.model_validate(
        {
            "format": 1,
            "name": "a",
            "description": "room",
            "op": op,
            "sizes": {"n": 4096},
            "precision": "int8",
            "scale": "none",
        }
    )
    made = build_kernel(spec)
    for block in made.blocks():
        list(block.steps())
    np.testing.assert_array_equal(made.output, made.reference())
