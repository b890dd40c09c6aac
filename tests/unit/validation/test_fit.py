"""`hwsim fit`: what it finds on one half of a table, and what it writes."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from hwsim.catalog import load_machine
from hwsim.errors import InputError
from hwsim.spec.machine import MachineSpec
from hwsim.targets.gpu.target import GpuTarget
from hwsim.validation.fit import Fit, FitStep, as_variant, fit, with_values
from hwsim.validation.gpu import modelled_seconds
from hwsim.validation.gpu_workload import COLUMNS, MeasuredKernel

TRUE_START = 3000


def made_up(path: Path, rows: int = 16) -> Path:
    """Times of a machine that hwsim itself plays, whose blocks start more slowly than the file says."""
    target = GpuTarget(load_machine("v100", [f"sm.library.block_start={TRUE_START}"]).spec)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for number in range(rows):
            sizes = {"m": 64 + 16 * number, "n": 512, "k": 128}
            about = {"family": "gemm_tensor", "machine": "v100", "op": "gemm", "dtype": "fp16", "timing": "cuda_event"}
            record = dict.fromkeys(COLUMNS, "") | about | {name: str(size) for name, size in sizes.items()}
            row = MeasuredKernel(path, {**record, "latency_us": "1", "__line__": "2"})
            writer.writerow(record | {"latency_us": str(modelled_seconds(target, row) * 1e6)})
    return path


def test_times_of_a_known_machine_lead_back_to_it(tmp_path: Path) -> None:
    """The error of rows that were not searched on all but vanishes, and the file that is written can be loaded."""
    *said, found = fit(load_machine("v100").spec, made_up(tmp_path / "made_up.csv"), rows=6)
    assert isinstance(found, Fit) and all(isinstance(each, FitStep) for each in said)
    assert found.before["gemm_tensor"] > 0.05
    assert found.after["gemm_tensor"] < 0.02
    path = tmp_path / "slow_v100.yaml"
    path.write_text(as_variant(found, "v100", "slow_v100"))
    spec = load_machine(path).spec
    assert spec.name == "slow_v100"
    assert GpuTarget(spec).device.sm.library.block_start == float(found.constants["library.block_start"])


SLOW_KERNELS = {"attention.flash2.block_start": 9000.0, "energy.sm.tensor.fp16": 3.0, "library.byte_latency": 500.0}
"""On H100: attention whose blocks start late, products that the power limit holds back, long steps of 8-bit kernels."""


def rows_of_every_group(machine: MachineSpec, path: Path) -> Path:
    """Attention, large products in fp16 and small ones in fp8, as a machine plays them."""
    target = GpuTarget(machine)
    records: list[dict[str, str]] = []
    for number in range(12):
        large, small = {"m": 4096 + 64 * number, "n": 4096, "k": 4096}, {"m": 64, "n": 64, "k": 2048 + 256 * number}
        keys = {"seq_q": 128 + 64 * number, "seq_kv": 1024 * (1 + number % 4)}
        prompt = {"b": 1, "heads": 8, "kv_heads": 8, "head_dim": 64, **keys}
        for about, sizes in (
            (("gemm_tensor", "gemm", "", "fp16"), large),
            (("gemm_8bit", "gemm", "", "fp8_e4m3"), small),
            (("attention_fused", "attn_prefill", "vllm_triton_attn", "fp16"), prompt),
        ):
            named = dict(zip(("family", "op", "impl", "dtype"), about, strict=True))
            sized = {name: str(size) for name, size in sizes.items()}
            records.append(dict.fromkeys(COLUMNS, "") | {"machine": "h100", "timing": "cuda_graph"} | named | sized)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for record in records:
            row = MeasuredKernel(path, {**record, "latency_us": "1", "__line__": "2"})
            writer.writerow(record | {"latency_us": str(modelled_seconds(target, row) * 1e6)})
    return path


def test_attention_prices_and_8_bit_kernels_are_fitted_and_written(tmp_path: Path) -> None:
    h100 = load_machine("h100").spec
    *said, found = fit(h100, rows_of_every_group(with_values(h100, SLOW_KERNELS), tmp_path / "slow.csv"), rows=4)
    assert isinstance(found, Fit)
    shares = [each.share for each in said if isinstance(each, FitStep)]
    assert shares == sorted(shares) and 0.9 < shares[-1] < 1
    assert {"library.byte_latency", "energy.sm.tensor.fp16", "attention.flash2.block_start"} <= found.constants.keys()
    for family, error in found.after.items():
        assert error < 0.3 * found.before[family], family
    path = tmp_path / "slow_h100.yaml"
    path.write_text(as_variant(found, "h100", "slow_h100"))
    fitted = GpuTarget(load_machine(path).spec).device
    (kernel, *_) = [each for each in fitted.sm.library.attention if each.name == "flash2"]
    assert kernel.block_start == float(found.constants["attention.flash2.block_start"])
    assert f"{fitted.picojoules('sm.tensor.fp16'):g} pJ" == found.constants["energy.sm.tensor.fp16"]


def test_a_table_of_other_machines_is_refused_with_what_it_has(tmp_path: Path) -> None:
    path = made_up(tmp_path / "other.csv", 2)
    path.write_text(path.read_text().replace("v100", "h800", 1))
    with pytest.raises(InputError, match="no row has the machine 'a100_40'; it has h800, v100"):
        list(fit(load_machine("a100_40").spec, path))
