"""What a machine file may say about a GPU, and what it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from hwsim.catalog import load_machine
from hwsim.errors import InputError, SpecError
from hwsim.targets.cpu.model import core_spec
from hwsim.targets.gpu.device import Device

VARIANT = "format: 1\nname: mine\nextends: a100_40\ndescription: A variant.\ncompute:\n  - name: sm\n    "


def variant(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(VARIANT + text + "\n")
    return path


def test_a_variant_changes_one_rate_and_keeps_the_others_with_their_sources(tmp_path: Path) -> None:
    loaded = load_machine(variant(tmp_path, "tensor: {fp16: 2048}\n    source: {tensor.fp16: a guess}"))
    sm = Device.of(loaded.spec).sm
    assert (sm.tensor["fp16"], sm.tensor["int8"], sm.count) == (2048, 2048, 108)
    assert loaded.unsourced == ()


def test_a_rate_without_a_source_is_noticed(tmp_path: Path) -> None:
    assert load_machine(variant(tmp_path, "tensor: {fp16: 2048}")).unsourced == ("sm.tensor.fp16",)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("tensor: {fp16: 0}", "sm.tensor.fp16"),
        ("library: {tensor_share: 1.1}", "sm.library.tensor_share"),
        ("library: {tensor_tiles: [{m: 64, n: 64, k: 32, threads: 100}]}", "sm.library.tensor_tiles[0].threads"),
        ("library: {split_k: [0]}", "sm.library.split_k[0]"),
        ("library: {units: {int8: cores}}", "sm.library.units.int8"),
        ("launch: {graph: 3}", "sm.launch.graph"),
        ("source: {lanez.fp32: x}", "sm.source.lanez.fp32"),
        ("warpz: 3", "sm.warpz"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_path(tmp_path: Path, text: str, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_machine(variant(tmp_path, text))
    assert field in [problem.field for problem in caught.value.problems]


def test_a_cpu_is_no_gpu_and_a_gpu_no_cpu() -> None:
    with pytest.raises(InputError, match="zen3 is no GPU"):
        Device.of(load_machine("zen3").spec)
    with pytest.raises(InputError, match=r"a100_40 has no CPU core .* its sm is a gpu"):
        _ = core_spec(load_machine("a100_40").spec)


def test_a_format_that_the_gpu_does_not_have_is_named() -> None:
    with pytest.raises(InputError, match=r"v100 has no lanes rate for fp8_e4m3; it multiplies fp16, fp32"):
        Device.of(load_machine("v100").spec).unit_for("fp8_e4m3")


def test_a_gpu_without_shared_memory_is_refused(tmp_path: Path) -> None:
    path = variant(tmp_path, "count: 100\n    source: a guess\nmemory:\n  - {name: shared, remove: true}")
    with pytest.raises(InputError, match="needs shared memory"):
        Device.of(load_machine(path).spec)
