"""Power measured on GPUs, against a machine's prices: what it draws without work, and for each byte and operation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hwsim.catalog import load_machine
from hwsim.spec.gpu import GpuSpec
from hwsim.spec.machine import MachineSpec
from hwsim.validation.report import relative_error
from hwsim.validation.table import LINE, Record, number, read_table, table_error

COLUMNS = ("gpu", "workload", "dtype", "dram_GBs", "GFLOPs", "power_w")
SWEEP = "fma_stream"
MACHINES = {
    "A100-SXM4-40GB": "a100_40", "A100-SXM4-80GB": "a100_80", "A40": "a40", "A6000": "a6000", "H100": "h100",
    "H100-SXM5-80GB": "h100", "H200": "h200", "H200-SXM-141GB": "h200", "T4": "t4", "V100": "v100",
    "RTX3090": "rtx3090",
}  # fmt: skip
"""The machine file of each GPU, as tables of measured power name it; a machine's own name is good as well."""


@dataclass(frozen=True)
class Sample:
    """One measured average power."""

    name: str
    group: str
    measured_w: float
    modelled_w: float

    @property
    def error(self) -> float:
        return relative_error(self.modelled_w, self.measured_w)


def read_samples(path: Path) -> tuple[list[Sample], int]:
    """Rows that say how much was moved and computed, and the number of rows that do not."""
    records = read_table(path, COLUMNS)
    usable = [record for record in records if record["dram_GBs"] and record["GFLOPs"]]
    return list(_samples(path, usable)), len(records) - len(usable)


def _samples(path: Path, records: list[Record]) -> Iterator[Sample]:
    for record in records:
        sweep = record["workload"].startswith(SWEEP)
        machine = _machine(path, record)
        watts = modelled_watts(
            machine,
            record["dtype"].partition("(")[0],
            number(path, record, "dram_GBs") * 1e9,
            number(path, record, "GFLOPs") * 1e9,
            tensor=not sweep and record["dtype"] != "fp32",
        )
        if watts is None:
            known = ", ".join(sorted(machine.energy.actions)) if machine.energy else "none"
            raise table_error(
                path, int(record[LINE]), "dtype",
                f"machine {machine.name} has no energy price for {record['dtype']!r}; it has {known}",
            )  # fmt: skip
        group = f"{'FMA sweep' if sweep else 'kernels'} {machine.name}"
        yield Sample(f"{record['gpu']} {record['workload']}", group, number(path, record, "power_w"), watts)


def modelled_watts(
    machine: MachineSpec, fmt: str, bytes_per_s: float, flops_per_s: float, *, tensor: bool
) -> float | None:
    """Static power, and what flows for bytes and operations, no more than the limit; None where a price is missing."""
    unit, energy = machine.compute[0], machine.energy
    if energy is None or not isinstance(unit, GpuSpec):
        return None
    operation = energy.actions.get(f"{unit.name}.{'tensor' if tensor else 'fma'}.{fmt}")
    access = energy.actions.get("dram.read")
    if operation is None or access is None:
        return None
    idle = float(sum(static.power for static in energy.static.values()))
    moved = 8 * float(access.energy.picojoules) * bytes_per_s * 1e-12
    computed = float(operation.energy.picojoules) / 2 * flops_per_s * 1e-12
    watts = idle + moved + computed
    return watts if unit.power_limit is None else min(watts, float(unit.power_limit))


def _machine(path: Path, record: Record) -> MachineSpec:
    name = MACHINES.get(record["gpu"], record["gpu"])
    if name not in MACHINES.values():
        known = ", ".join(sorted(MACHINES))
        raise table_error(path, int(record[LINE]), "gpu", f"{record['gpu']!r} is not one of {known}")
    return _load(name)


@cache
def _load(name: str) -> MachineSpec:
    return load_machine(name).spec
