"""Occupancy: how many blocks of a kernel an SM holds at once, and what keeps it from holding more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hwsim.errors import CapacityError
from hwsim.hardware.gpu.device import Device
from hwsim.units import format_bytes


@dataclass(frozen=True)
class Footprint:
    """What one block needs."""

    threads: int
    registers: int
    """Of one thread."""
    shared_bytes: int

    def warps(self, device: Device) -> int:
        return -(-self.threads // device.sm.warp)

    def block_registers(self, device: Device) -> int:
        """Registers of a block: each warp gets them in whole units."""
        unit = device.sm.register_unit
        return self.warps(device) * (-(-self.registers * device.sm.warp // unit) * unit)


@dataclass(frozen=True)
class Occupancy:
    """Blocks and warps that an SM holds at once."""

    blocks: int
    warps: int
    most_warps: int
    limit: str
    """What allows no further block: warps, blocks, registers or shared memory."""
    by_limit: dict[str, int]
    """How many blocks each resource would allow."""

    @property
    def share(self) -> float:
        return self.warps / self.most_warps


def occupancy(device: Device, block: Footprint, what: str = "a block") -> Occupancy:
    """How many such blocks run on one SM; raises CapacityError where not even one does."""
    check_block(device, block, what)
    sm = device.sm
    shared = block.shared_bytes + (sm.shared_reserved or 0)
    room = {
        "warps": sm.warps // block.warps(device),
        "blocks": sm.blocks,
        "registers": device.registers.count // max(1, block.block_registers(device)),
        "shared memory": device.shared.size // max(1, shared),
    }
    limit = min(room, key=lambda name: room[name])
    blocks = room[limit]
    return Occupancy(blocks, blocks * block.warps(device), sm.warps, limit, room)


def check_block(device: Device, block: Footprint, what: str, fitting: Callable[[], str] | None = None) -> None:
    """Raises CapacityError with every limit that one block exceeds, by how much, and (`fitting`) what would fit."""
    sm = device.sm
    most_threads = min(sm.block_threads, sm.warps * sm.warp)
    shared = block.shared_bytes + (sm.shared_reserved or 0)
    found = []
    if block.threads > most_threads:
        found.append(f"{block.threads} threads, {block.threads - most_threads} more than the {most_threads} of a block")
    if block.registers > sm.thread_registers:
        found.append(
            f"{block.registers} registers for each thread, {block.registers - sm.thread_registers} more than "
            f"the {sm.thread_registers} that a thread can name"
        )
    if block.block_registers(device) > device.registers.count:
        needed = block.block_registers(device)
        found.append(
            f"{needed} registers, {needed - device.registers.count} more than the {device.registers.count} of "
            f"{sm.name}.{device.registers.name}"
        )
    if shared > device.shared.size:
        found.append(
            f"{format_bytes(shared)} in {sm.name}.{device.shared.name}, {format_bytes(shared - device.shared.size)} "
            f"more than its {format_bytes(device.shared.size)}"
        )
    if found:
        advice = f"; {fitting()}" if fitting is not None else ""
        raise CapacityError(f"{what} needs {' and '.join(found)} on {device.machine.name}{advice}")
