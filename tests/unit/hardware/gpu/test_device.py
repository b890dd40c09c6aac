"""Blocks on an SM: whose results leave while others multiply."""

from __future__ import annotations

from itertools import product

from tests.unit.hardware.gpu.test_block import block


def test_results_leave_beside_others_where_there_are_others_and_room_for_their_sums() -> None:
    """Never behind the last blocks; else with two places for sums, or straight from registers beside another block."""
    for last, double, beside, resident in product((True, False), (True, False), (True, False), (1, 2, 3)):
        found = block(double_sums=double, writes_beside=beside).leaves_beside(resident, last=last)
        if last:
            assert not found
        elif double:
            assert found
        else:
            assert found == (beside and resident != 1)
