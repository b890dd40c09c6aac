"""Every machine that comes with hwsim keeps the promises of a machine file."""

from __future__ import annotations

import pytest

from hwsim.catalog import load_machine, shipped_folder
from hwsim.spec.machine import DramSpec

FILES = sorted(shipped_folder("machine").glob("*.yaml"))


def test_there_are_machines() -> None:
    assert "course_cpu" in [file.stem for file in FILES]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_loads_under_the_name_of_its_file(file) -> None:  # type: ignore[no-untyped-def]
    assert load_machine(file).spec.name == file.stem


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_number_has_a_source(file) -> None:  # type: ignore[no-untyped-def]
    assert load_machine(file).unsourced == ()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_level_but_registers_says_how_long_it_takes(file) -> None:  # type: ignore[no-untyped-def]
    levels = load_machine(file).spec.memory
    assert all(level.latency is not None for level in levels if level.kind not in ("registers", "scratchpad"))
    assert sum(isinstance(level, DramSpec) for level in levels) == 1


def test_the_course_machine_has_the_latencies_of_the_course() -> None:
    spec = load_machine("course_cpu").spec
    hz = spec.clocks[0].frequency
    nanoseconds = {level.name: level.latency.seconds(hz) * 10**9 for level in spec.memory if level.latency}
    assert {name: float(value) for name, value in nanoseconds.items()} == {
        "l1": 0.5,
        "l2": 7.0,
        "dram": 200.0,
    }
    assert nanoseconds["dram"] / nanoseconds["l1"] == 400  # "400x slower"
