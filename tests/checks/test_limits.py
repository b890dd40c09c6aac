"""Every number that a file may say has an upper end, so that none is too large for what is computed with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from annotated_types import Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hwsim.energy import EnergyTableSpec
from hwsim.spec.base import LARGEST_SIZE, Most, Spec
from hwsim.spec.machine import KINDS, MachineSpec, unit_spec
from hwsim.units import (
    parse_bandwidth,
    parse_bytes,
    parse_energy,
    parse_frequency,
    parse_latency,
    parse_length,
    parse_power,
)

QUANTITIES = {
    parse_bytes: ("1e30 B", "-1 B", "0 B"),
    parse_frequency: ("1e15 GHz", "1 Hz", "0 Hz", "-1 GHz"),
    parse_latency: ("1e30 s", "1e30 cycles", "-1 ns", "1e-90 s"),
    parse_bandwidth: ("1e30 TB/s", "0 B/s", "1e-30 B/cycle"),
    parse_energy: ("1e30 J", "-1 pJ", "1e-30 pJ"),
    parse_power: ("1e30 W", "-1 W"),
    parse_length: ("1e30 nm", "0 nm"),
}


@pytest.mark.parametrize("parse", QUANTITIES, ids=lambda parse: parse.__name__)
def test_every_quantity_has_two_ends(parse: Any) -> None:
    for text in (*QUANTITIES[parse], "9" * 500, "9" * 500 + " GHz", "nan", "", "inf inf", ".nan GHz"):
        with pytest.raises(ValueError):
            parse(text)


def _specs() -> Iterator[type[BaseModel]]:
    for kind in KINDS:
        unit_spec(kind)
    waiting: list[type[BaseModel]] = [Spec]
    while waiting:
        for each in waiting.pop().__subclasses__():
            waiting.append(each)
            if each.__module__.startswith(("hwsim.spec.m", "hwsim.spec.c", "hwsim.energy", "hwsim.targets")):
                yield each


def _unbounded(field: FieldInfo) -> bool:
    if field.annotation not in (int, float):
        return False
    quantity = any(type(each).__name__ == "PlainValidator" for each in field.metadata)
    return not quantity and not any(isinstance(each, Le | Lt | Most) for each in field.metadata)


def test_every_number_of_a_machine_has_an_upper_end() -> None:
    found = sorted(
        {f"{spec.__name__}.{name}" for spec in _specs() for name, f in spec.model_fields.items() if _unbounded(f)}
    )
    assert found == []
    assert {MachineSpec, EnergyTableSpec} <= set(_specs())


def test_a_field_without_an_upper_end_is_noticed() -> None:
    class Loose(BaseModel):
        count: int
        bounded: int

    assert _unbounded(Loose.model_fields["count"])
    assert LARGEST_SIZE == 10**9
