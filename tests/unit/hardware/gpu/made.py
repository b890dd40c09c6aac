"""Devices for the tests."""

from __future__ import annotations

from functools import cache

from hwsim.catalog import load_machine
from hwsim.targets.gpu.device import Device
from hwsim.targets.gpu.model import GpuModel


@cache
def device(name: str, *overrides: str) -> Device:
    return Device.of(load_machine(name, overrides).spec)


@cache
def model(name: str, *overrides: str) -> GpuModel:
    return GpuModel(load_machine(name, overrides).spec)
