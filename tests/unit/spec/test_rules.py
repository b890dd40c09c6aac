"""Rules across fields, each on both sides of its limit."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from hwsim.catalog import load_machine
from hwsim.errors import SpecError
from hwsim.spec.machine import MachineSpec
from hwsim.spec.rules import _levels_are_in_order


def problems(*settings: str) -> list[tuple[str, str]]:
    try:
        load_machine("course_cpu", settings)
    except SpecError as error:
        return [(problem.field, problem.message) for problem in error.problems]
    return []


LIMITS = {
    "line": ([["l1.line=4 B", "l1.ways=8"], ["l1.line=64 B"]], [["l1.line=2 B"], ["l1.line=48 B"]]),
    "largest line": (
        [["l1.line=4 KiB", "l2.line=4 KiB"]],
        [["l1.line=8 KiB", "l2.line=4 KiB", "l1.ways=4"]],
    ),
    "whole sets": ([["l1.ways=16"], ["l1.ways=full"], ["l1.size=48 KiB", "l1.ways=12"]], [["l1.ways=3"]]),
    "sector": (
        [["l1.sector=2 B"], ["l1.sector=32 B"]],
        [["l1.sector=1 B"], ["l1.sector=128 B"], ["l1.sector=24 B"]],
    ),
    "plru": (
        [["l1.replacement=plru", "l1.ways=64"]],
        [["l1.replacement=plru", "l1.ways=128"], ["l2.replacement=plru", "l2.size=384 KiB", "l2.ways=12"]],
    ),
    "xor index": ([["l1.index=xor"]], [["l2.index=xor", "l2.size=384 KiB"]]),
    "size outwards": (
        [["l1.size=256 KiB"], ["l1.size=inf"], ["l2.size=inf"], ["l2.inclusion=exclusive", "l2.size=16 KiB"]],
        [["l1.size=512 KiB"]],
    ),
    "line outwards": ([["l2.line=128 B"]], [["l2.line=32 B"]]),
    "sectors outwards": (
        [["l1.sector=32 B", "l2.sector=32 B"], ["l1.sector=32 B"]],
        [["l2.sector=32 B"]],
    ),
    "inclusive lines": (
        [["l2.inclusion=inclusive"], ["l2.inclusion=inclusive", "l1.sector=32 B", "l2.sector=32 B"]],
        [["l2.inclusion=inclusive", "l2.line=128 B"], ["l2.inclusion=inclusive", "l1.sector=32 B"]],
    ),
    "innermost inclusion": ([["l1.inclusion=none"]], [["l1.inclusion=inclusive"]]),
    "exclusive writes": (
        [["l2.inclusion=exclusive"]],
        [
            ["l2.inclusion=exclusive", "l2.write=through"],
            ["l2.inclusion=exclusive", "l2.write_allocate=false"],
        ],
    ),
    "sharing": (
        [["l2.shared_by=2"], ["l2.shared_by=all"], ["l2.shared_by=4"]],
        [
            ["l2.shared_by=8"],
            ["l2.shared_by=3"],
            ["l1.shared_by=2"],
            ["dram.shared_by=2", "l2.shared_by=all"],
        ],
    ),
    "latency outwards": (
        [["l1.latency=7 ns"], ["l1.latency=14 cycles"]],
        [["l1.latency=7.1 ns"], ["l1.latency=15 cycles"]],
    ),
    "clock": ([["l1.clock=memory"]], [["l1.clock=memroy"]]),
    "mapping": (
        [["dram.mapping=row:bank:rank:column:channel"]],
        [
            ["dram.mapping=row:bank:column:channel"],
            ["dram.mapping=row:row:bank:rank:column:channel"],
            ["dram.mapping=row:bank:rank:col:channel"],
            ["dram.mapping=bank:row:rank:column:channel"],
        ],
    ),
    "dram geometry": (
        [["dram.channels=3"], ["dram.banks=12"], ["dram.row=64 B"]],
        [["dram.row=32 B"], ["dram.row=6 KiB"], ["dram.burst=48 B"]],
    ),
    "static power": (
        [["energy.static.l1.power=1 W"], ["energy.static.machine.power=1 W"]],
        [["energy.static.l9.power=1 W"]],
    ),
    "price": ([["energy.actions.l1.probe.energy=1 pJ"]], [["energy.actions.l9.read.energy=1 pJ"]]),
}


@pytest.mark.parametrize("name", LIMITS)
def test_both_sides_of_the_limit(name: str) -> None:
    fine, refused = LIMITS[name]
    for settings in fine:
        assert problems(*settings) == [], settings
    for settings in refused:
        assert problems(*settings), settings


def test_a_price_needs_an_action() -> None:
    [(field, message)] = problems("energy.actions.l1.energy=1 pJ")
    assert field == "energy.actions.l1"
    assert "such as 'l1.read'" in message


def test_a_message_says_what_was_found_and_what_is_allowed() -> None:
    [(field, message)] = problems("l1.sector=1 B")
    assert (field, message) == ("l1.sector", "a line of 64 sectors; at most 32, so at least 2 B each")


def test_a_machine_may_have_one_clock_one_unit_and_one_level_and_has_to_have_them() -> None:
    machine = load_machine("course_cpu").spec
    parts = {name: getattr(machine, name) for name in type(machine).model_fields}
    least = {name: parts[name][-1:] for name in ("compute", "memory")} | {"clocks": parts["clocks"][:1]}
    made = MachineSpec.model_validate({**parts, **least})
    assert [len(each) for each in (made.clocks, made.compute, made.memory)] == [1, 1, 1]
    for name in least:
        with pytest.raises(ValidationError, match=f"{name}\n.*at least 1 item"):
            MachineSpec.model_validate({**parts, name: ()})


def test_main_memory_is_there_once_registers_come_first_and_only_storage_lies_behind() -> None:
    machine = load_machine("course_cpu").spec
    registers, l1, l2, dram = machine.memory
    assert (registers.kind, dram.kind) == ("registers", "dram")

    def found(*levels: object) -> list[tuple[object, ...]]:
        changed = machine.model_copy(update={"memory": levels})
        return [finding.path for finding in _levels_are_in_order(changed)]

    assert found(registers, l1, l2, dram) == []
    assert found(registers, l1) == [("memory",)]
    assert found(registers, l1, dram, dram, dram) == [("memory", 3, "kind"), ("memory", 4, "kind")]
    assert found(registers, l1, dram, l2) == [("memory", 3, "kind")]
    assert found(l1, registers, l2, dram) == [("memory", 1, "kind")]
