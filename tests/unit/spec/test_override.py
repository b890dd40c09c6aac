"""`--set` reaches every field by the path that messages use, and changes only that."""

from __future__ import annotations

import pytest

from hwsim.catalog import load_machine
from hwsim.errors import OverrideError, SpecError
from hwsim.spec.document import read_document
from hwsim.spec.machine import MachineSpec
from hwsim.spec.variant import known_paths


@pytest.mark.parametrize(
    ("setting", "read", "value"),
    [
        ("l1.size=64 KiB", lambda m: m.level("l1").size, 65536),
        (" l1.size = 64 KiB ", lambda m: m.level("l1").size, 65536),
        ("core.l1.size=64 KiB", lambda m: m.level("l1").size, 65536),
        ("core.simd.bits=512", lambda m: m.compute[0].simd.bits, 512),
        ("core.simd=null", lambda m: m.compute[0].simd, None),
        ("core.count=2", lambda m: m.compute[0].count, 2),
        ("dram.timing.cl=20 ns", lambda m: str(m.level("dram").timing.cl), "20 ns"),
        ("clock.core.frequency=3 GHz", lambda m: m.clocks[0].frequency, 3 * 10**9),
        ("energy.dram=ddr4", lambda m: str(m.energy.actions["dram.read"].energy), "20.3 pJ/bit"),
        ("energy.actions.l1.read.energy=1 pJ", lambda m: str(m.energy.actions["l1.read"].energy), "1 pJ"),
        ("energy=null", lambda m: m.energy, None),
        ("l1.prefetch.kind=stride", lambda m: m.level("l1").prefetch.kind, "stride"),
        ("l1.write_allocate=false", lambda m: m.level("l1").write_allocate, False),
        ("l1.ways=full", lambda m: m.level("l1").ways, "full"),
    ],
)
def test_a_setting_reaches_its_field(setting: str, read, value: object) -> None:  # type: ignore[no-untyped-def]
    assert read(load_machine("course_cpu", [setting]).spec) == value


def test_later_settings_win() -> None:
    spec = load_machine("course_cpu", ["l1.ways=4", "l1.ways=2"]).spec
    assert spec.level("l1").ways == 2


def test_setting_a_field_to_what_it_is_changes_nothing() -> None:
    assert load_machine("course_cpu", ["l1.size=32 KiB"]).spec == load_machine("course_cpu").spec


def test_all_settings_that_lead_nowhere_are_reported_together() -> None:
    with pytest.raises(OverrideError, match=r"(?s)l1\.sise.*l2\.weys"):
        load_machine("course_cpu", ["l1.sise=1 B", "l2.weys=4"])


def test_a_problem_in_a_set_value_names_the_setting_as_its_place() -> None:
    with pytest.raises(SpecError) as caught:
        load_machine("course_cpu", ["l1.size=64 KB"])
    assert caught.value.problems[0].file == "--set l1.size=64 KB"


def test_every_known_path_can_be_set() -> None:
    from hwsim.catalog import find_machine
    from hwsim.spec.variant import apply_overrides

    node, _ = read_document(find_machine("course_cpu"))
    paths = list(known_paths(MachineSpec, node))
    assert {"l1.size", "core.ports.fma", "dram.timing.trfc", "clock.memory.frequency", "energy.node"} <= set(paths)
    for path in paths:
        apply_overrides(MachineSpec, node, [f"{path}=1"])
