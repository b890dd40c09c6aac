"""Number formats of a core: what it has, what it converts to, lanes, rates, and how it keeps sums."""

from __future__ import annotations

import pytest

import hwsim
from hwsim.catalog import load_machine
from hwsim.errors import InputError
from hwsim.numerics.format import FORMATS, find_format
from hwsim.spec.machine import MachineSpec
from hwsim.targets.cpu.model import CpuCore, core_spec
from hwsim.targets.cpu.spec import CoreFormatSpec, lanes_of
from hwsim.targets.cpu.target import choose_format, contains


def machine(**formats: object) -> MachineSpec:
    spec = load_machine("zen3").spec
    return spec.model_copy(update={"compute": (core_spec(spec).model_copy(update={"formats": formats}),)})


@pytest.mark.parametrize(
    ("stored", "computed"),
    [("int4", "int8"), ("uint4", "int8"), ("int16", "int32"), ("fp8_e4m3", "fp16"), ("fp8_e5m2", "fp16"),
     ("fp6_e2m3", "fp16"), ("fp4_e2m1", "fp16"), ("tf32", "fp32"), ("mxfp4", "bf16"), ("mxfp8", "bf16"),
     ("e8m3", "bf16"), ("e8m9", "fp32"), ("e9m3", "fp64"), ("bf16", "bf16")],
)  # fmt: skip
def test_a_format_is_converted_to_the_narrowest_that_has_all_its_numbers(stored: str, computed: str) -> None:
    has = machine(fp64=1, fp32=1, fp16=1, bf16=1, int32=1, int8=1)
    assert choose_format(core_spec(has), find_format(stored), convert=True).name == computed


def test_every_number_of_a_format_is_in_what_it_is_converted_to() -> None:
    """Exhaustively for eight bits: nothing is lost on the way."""
    import numpy as np

    wide, narrow = find_format("fp16"), find_format("fp8_e4m3")
    every = np.unique(narrow.store(np.linspace(-448, 448, 100_001, dtype=np.float32)))
    assert contains(wide, narrow)
    np.testing.assert_array_equal(wide.store(every).astype(np.float32), every)
    assert not contains(narrow, wide)
    assert not contains(find_format("int32"), narrow)


def test_a_core_without_a_wide_enough_format_says_so() -> None:
    with pytest.raises(InputError, match="has no format with all numbers of fp8_e4m3; it has int8"):
        choose_format(core_spec(machine(int8=1)), find_format("fp8_e4m3"), convert=True)


@pytest.mark.parametrize(
    ("name", "lanes"), [("fp64", 4), ("fp32", 8), ("bf16", 16), ("int8", 32), ("fp6_e3m2", 32), ("int4", 64)]
)
def test_lanes_follow_the_bits_of_a_format_and_six_sit_in_eight(name: str, lanes: int) -> None:
    assert lanes_of(core_spec(load_machine("zen3").spec), FORMATS[name]) == lanes


def test_a_rate_makes_arithmetic_as_much_slower() -> None:
    full, half = machine(fp32=1), machine(fp32=CoreFormatSpec(rate=0.5))
    peaks = [CpuCore(each, core_spec(each)).peak_flops_per_cycle(FORMATS["fp32"]) for each in (full, half)]
    assert peaks[0] == 2 * peaks[1]
    cycles = [hwsim.run(each, "matmul", n=64).bounds["parts"]["fma"] for each in (full, half)]
    assert cycles[1] == pytest.approx(2 * cycles[0])


def test_sums_are_kept_as_the_core_says_unless_the_workload_does() -> None:
    strict = machine(bf16=CoreFormatSpec(accumulate="bf16", chunk=1))
    numbers = {"n": 64, "precision": "bf16", "distribution": "normal"}

    def error(spec: MachineSpec, **more: object) -> float:
        result = hwsim.run(spec, "matmul", **{**numbers, **more})
        assert result.numeric is not None
        return result.numeric.rms_rel

    assert error(strict) == error(machine(bf16=1), accumulate="bf16", chunk=1)
    assert error(strict, accumulate="fp32", chunk=64) < error(strict) / 2
    assert hwsim.run(strict, "add", n=64, precision="bf16").verified
