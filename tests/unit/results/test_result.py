"""RunResult: the fields that people rely on, JSON in and out, and what a prompt and a notebook show."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hwsim
from hwsim.engine import total
from hwsim.errors import InputError, OverrideError
from hwsim.memory.counters import CacheCounters, DramCounters
from hwsim.numerics.quantize import NumericError, measure
from hwsim.result import RunResult, StageResult
from tests.unit.results.made import small

FIRST_KEYS = [
    "machine", "workload", "version", "seed", "verified", "cycles", "time_s", "energy_j", "power_w", "energy",
    "memory", "work", "intensity", "error", "attribution", "peak_memory_bytes", "warnings", "resolved",
]  # fmt: skip
"""As the issue that asked for the JSON lists them."""

LEVEL_KEYS = ["reads", "writes", "read_misses", "write_misses", "writebacks", "bytes_read", "bytes_written"]


def test_the_json_begins_with_the_promised_keys() -> None:
    data = json.loads(small().to_json())
    assert list(data)[: len(FIRST_KEYS)] == FIRST_KEYS
    assert list(data)[len(FIRST_KEYS) :] == [
        "bounds", "bars", "energy_by_cause", "energy_by_tensor", "throttle", "formulas", "tensors", "stages", "replay",
        "numeric",
    ]  # fmt: skip
    for level in ("l1", "l2", "dram"):
        assert list(data["memory"][level])[: len(LEVEL_KEYS)] == LEVEL_KEYS
    assert list(data["error"]) == ["max_rel", "rms_rel"]


def test_json_there_and_back_is_the_same_result() -> None:
    result = small()
    again = RunResult.from_json(result.to_json())
    assert again == result
    assert again.to_json() == result.to_json()
    assert again.output is None
    assert isinstance(again.memory["l1"], CacheCounters)
    assert isinstance(again.memory["dram"], DramCounters)


@pytest.mark.parametrize(
    ("machine", "workload"),
    [
        ("course_cpu", "mlp"),
        ("a100_40", "softmax"),
        ("tpu_v1", "conv2d"),
        ("eyeriss", "conv2d"),
        ("gddr6_aim", "matmul"),
    ],
)
def test_the_json_of_every_class_of_machines_comes_back_byte_by_byte(machine: str, workload: str) -> None:
    result = hwsim.run(machine, workload, math=False)
    again = RunResult.from_json(result.to_json())
    assert again.to_json() == result.to_json()
    assert isinstance(again.stages[0], StageResult)
    assert again.work == replace(result.work, use=again.work.use)
    assert json.loads(result.to_json())["work"].keys() == result.work.keys()


def test_a_record_reads_as_the_json_that_it_becomes() -> None:
    result = small()
    assert result.work["flops"] == result.work.flops == json.loads(result.to_json())["work"]["flops"]
    assert {**result.bounds} == {name: getattr(result.bounds, name) for name in ("lower_s", "upper_s", "parts")}
    assert "gpu" not in result.work
    assert "gpu" in hwsim.run("a100_40", "softmax", math=False).work
    with pytest.raises(KeyError, match="flop"):
        result.work["flop"]


@pytest.mark.parametrize(("field", "value"), [("work", {"flops": 1}), ("stages", [3]), ("tensors", {"A": None})])
def test_a_result_with_other_data_inside_is_refused(field: str, value: object) -> None:
    data = {**small().to_dict(), field: value}
    with pytest.raises(InputError, match="not the result of a run that this version knows"):
        RunResult.from_dict(data)


def test_equal_runs_give_equal_bytes_and_another_seed_other_ones() -> None:
    first, second = (hwsim.run("course_cpu", "matmul_tiled", n=24, tile=8) for _ in range(2))
    assert first.to_json() == second.to_json()
    other = hwsim.run("course_cpu", "matmul_tiled", n=24, tile=8, seed=1)
    assert (other.seed, first.seed) == (1, 0)
    assert other.error != first.error
    assert other.cycles == first.cycles


@pytest.mark.parametrize("workload", ["matmul_tiled", "matmul_parallel", "add", "sum_columns"])
def test_every_cores_attribution_adds_up_to_the_cycles_of_the_run(workload: str) -> None:
    result = small(workload)
    assert {total(parts) for parts in result.attribution.values()} == {result.cycles}


@pytest.mark.parametrize("workload", ["matmul_naive", "matmul_tiled", "add"])
def test_the_time_lies_between_its_bounds(workload: str) -> None:
    result = small(workload)
    assert 0 < result.bounds["lower_s"] <= result.time_s <= result.bounds["upper_s"]


def test_energy_adds_up_by_component_and_by_cause() -> None:
    result = small()
    assert result.energy is not None
    assert result.energy_by_cause is not None
    assert sum(result.energy.values()) == pytest.approx(result.energy_j)
    causes = [line["joules"] for actions in result.energy_by_cause.values() for line in actions.values()]
    assert sum(causes) == pytest.approx(result.energy_j)
    assert result.power_w == pytest.approx(result.energy_j / result.time_s)


def test_a_machine_without_prices_has_no_energy() -> None:
    from hwsim.catalog import load_machine

    machine = load_machine("course_cpu").spec.model_copy(update={"energy": None})
    result = hwsim.run(machine, "add", n=64)
    assert (result.energy_j, result.power_w, result.energy, result.energy_by_cause) == (None,) * 4
    assert RunResult.from_json(result.to_json()) == result


def test_the_output_is_the_real_product() -> None:
    result = hwsim.run("course_cpu", "matmul_tiled", n=16, tile=4, precision="fp64")
    assert result.output is not None
    assert result.output.shape == (16, 16)
    assert result.error is not None
    assert result.error.max_rel < 1e-14
    assert result.verified is True


def test_without_math_nothing_is_verified_and_the_result_says_so() -> None:
    result = hwsim.run("course_cpu", "matmul_tiled", n=32, tile=8, math=False)
    assert (result.verified, result.error, result.output) == (None, None, None)
    assert any("without math" in text for text in result.warnings)
    assert result.cycles == small().cycles


def test_intensity_per_element_and_per_byte_are_told_apart() -> None:
    """C = A + B in fp32: one operation for three elements, twelve bytes (course notes, A2)."""
    result = small("add", n=4096)
    assert result.intensity["element"] == pytest.approx(1 / 3)
    assert result.intensity["byte"] == pytest.approx(1 / 12)


def test_settings_parameters_paths_and_specs_are_taken(tmp_path: Path) -> None:
    wide = hwsim.run("course_cpu", "matmul_tiled", n=32, set={"l1.size": "inf"})
    assert wide.memory["l1"] == hwsim.run("course_cpu", "matmul_tiled", n=32, set=["l1.size=inf"]).memory["l1"]
    file = tmp_path / "mine.yaml"
    file.write_text("format: 1\nname: mine\nextends: course_cpu\n")
    assert hwsim.run(file, "add", n=64).machine == "mine"
    with pytest.raises(OverrideError, match="tile=x"):
        hwsim.run("course_cpu", "matmul_tiled", tile="x")
    with pytest.raises(InputError, match="cores=9"):
        hwsim.run("course_cpu", "matmul_parallel", cores=9)


def test_the_prompt_shows_the_key_facts() -> None:
    text = repr(small())
    for fact in ("matmul_tiled on course_cpu", "verified", "cycles", "hits", "Bound by"):
        assert fact in text
    assert len(text.splitlines()) <= 8


def test_a_notebook_gets_a_table_in_which_nothing_is_markup_by_accident() -> None:
    html = replace(small(), warnings=("a < b",))._repr_html_()
    assert html.startswith("<div>")
    assert "a &lt; b" in html
    assert "a < b" not in html


@pytest.mark.parametrize(
    ("text", "says"), [("{", "not JSON"), ("[]", "no object"), ('{"machine": "x"}', "attribution, bars, bounds")]
)
def test_what_is_no_result_is_refused(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        RunResult.from_json(text)


def test_errors_are_relative_to_the_largest_element() -> None:
    """By hand: differences 0.1 and 0 beside 2 and 1; mean squares 0.005 and 2.5."""
    error = measure(np.array([2.1, 1.0]), np.array([2.0, 1.0]))
    assert error.max_rel == pytest.approx(0.05)
    assert error.rms_rel == pytest.approx((0.005 / 2.5) ** 0.5)
    none = measure(np.zeros(2), np.zeros(2))
    assert (none.max_rel, none.rms_rel) == (0.0, 0.0)


def test_an_output_with_nan_has_an_infinite_error_that_json_can_hold() -> None:
    found = measure(np.array([np.nan, 1.0]), np.ones(2))
    error = NumericError(found.max_rel, found.rms_rel)
    assert error.max_rel == float("inf")
    broken = replace(small(), error=error, verified=False)
    assert json.loads(broken.to_json())["error"] == {"max_rel": None, "rms_rel": None}
    assert RunResult.from_json(broken.to_json()).error == error


def test_import_hwsim_loads_nothing_heavy() -> None:
    import subprocess
    import sys

    heavy = ("numpy", "numba", "simpy", "pydantic", "matplotlib")
    code = f"import sys, hwsim; print([name for name in {heavy} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout.strip() == "[]"
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = hwsim.nothing_such
