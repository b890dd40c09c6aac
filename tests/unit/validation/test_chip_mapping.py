"""The mappings of measured Eyeriss layers are ones that the chip can have had (Chen et al., JSSC 2017, V and VI)."""

from __future__ import annotations

import pytest

from hwsim.catalog import load_machine
from hwsim.program.contraction import ConvShape
from hwsim.targets.grid.mapping import RowStationary, problems
from hwsim.targets.grid.model import PeGrid
from hwsim.validation.energy import SHAPE
from hwsim.validation.table import read_table, shipped

MIB = 1 << 20


@pytest.mark.parametrize("record", read_table(shipped("eyeriss.csv"), ()), ids=lambda record: record["layer"])
def test_a_mapping_has_the_published_elements_and_traffic(record: dict[str, str]) -> None:
    n, c, m, h, w, r, s, stride, pad, groups = (int(record[name]) for name in SHAPE)
    shape = ConvShape(c, m, (h, w), (r, s), n, (stride, stride), (pad, pad), groups=groups)
    letters = {name: int(value) for name, value in (word.split("=") for word in record["mapping"].split())}
    grid = PeGrid(load_machine("eyeriss").spec)
    mapping = RowStationary.of(shape, letters)
    assert problems(mapping, grid.sizes) == []
    assert mapping.active == float(record["active_pes"])
    moved = grid.nbytes(grid.cost(mapping).traffic(grid.buffer.name)) / MIB
    assert moved == pytest.approx(float(record["glb_mb"]), rel=0.08)
