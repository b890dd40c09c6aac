"""Loops of the vector unit, cut into pieces that fit into a scratchpad."""

from __future__ import annotations

from math import prod

import pytest

from hwsim.api import prepare
from hwsim.catalog import load_machine
from hwsim.errors import CapacityError
from hwsim.program.loop_kernel import LoopKernel
from hwsim.spec.workload import WorkloadSpec
from hwsim.targets.systolic.lower import map_kernel
from hwsim.targets.systolic.model import build_chip
from hwsim.targets.systolic.tiling import ArrayPass

ROWS, COLUMNS, SIZE = 16, 256, 2
EXTENTS = {"i": ROWS, "j": COLUMNS}
FORMULAS = {
    "Y[i,j] = X[i,j] + B[j]": ("ij", "ij", "j"),
    "Y[i,j] = X[i,j] + B[i]": ("ij", "ij", "i"),
    "Y[i,j] = B[i] + X[j]": ("ij", "i", "j"),
}
"""Each with the indices of its tensors."""


def mapped(text: str, room: int) -> ArrayPass:
    data = {"format": 1, "name": "made", "description": "", "op": "formula", "formula": text, "sizes": EXTENTS}
    machine = load_machine("tpu_v3", [f"vmem.size={room} B"]).spec
    kernel = prepare(machine, WorkloadSpec.model_validate({**data, "precision": "bf16"}), math=False)
    assert isinstance(kernel, LoopKernel)
    (only,) = map_kernel(build_chip(machine, "bf16"), kernel).passes
    return only


def held_bytes(tensors: tuple[str, ...], found: ArrayPass) -> int:
    """Of a piece of each tensor: as many as there are buffers of one that moves along, one of any that does not."""
    total = 0
    for indices in tensors:
        piece = prod(found.tile.get(index, EXTENTS[index]) for index in indices) * SIZE
        total += piece * (found.buffers if found.order in indices and len(found.steps) > 1 else 1)
    return total


@pytest.mark.parametrize("text", FORMULAS)
def test_pieces_and_their_buffers_fit_and_cover_everything(text: str) -> None:
    whole = sum(prod(EXTENTS[index] for index in indices) for indices in FORMULAS[text]) * SIZE
    seen = set()
    for room in (whole, whole - 2, whole * 3 // 4, whole // 2, whole // 2 - 2, whole // 4, whole // 6, whole // 16):
        found = mapped(text, room)
        assert held_bytes(FORMULAS[text], found) <= room
        ((index, size),) = found.tile.items()
        assert len(found.steps) == -(-EXTENTS[index] // size)
        stored = sum(move.nbytes for step in found.steps for move in step.stores)
        assert stored == ROWS * COLUMNS * SIZE
        loaded: dict[str, int] = {}
        for step in found.steps:
            for move in step.loads:
                loaded[move.tensor] = loaded.get(move.tensor, 0) + move.nbytes
        assert sum(loaded.values()) + stored == whole, "each tensor once"
        seen.add((index, size, found.buffers))
    assert len(seen) >= 4


def test_a_loop_of_which_not_one_iteration_fits_is_refused() -> None:
    """One column needs 16 numbers of X and Y each and one of B: 66 bytes; a row needs three rows."""
    assert mapped("Y[i,j] = X[i,j] + B[j]", 66).tile == {"j": 1}
    with pytest.raises(CapacityError, match=r"choose smaller sizes or a larger vmem\.size"):
        mapped("Y[i,j] = X[i,j] + B[j]", 65)
