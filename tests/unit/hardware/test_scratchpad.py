"""Banks of a scratchpad: lanes that meet in one wait for each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from hwsim.spec.machine import ScratchpadSpec
from hwsim.targets.gpu.replay import bank_passes


def passes_of(addresses: Sequence[int], nbytes: int = 4, banks: int = 32) -> int:
    given = {"kind": "scratchpad", "name": "shared", "size": "164 KiB", "banks": banks, "bank_width": "4 B"}
    return bank_passes(ScratchpadSpec.model_validate(given), np.array(addresses, np.int64), nbytes)


@pytest.mark.parametrize(("words", "passes"), [(0, 1), (1, 1), (2, 2), (3, 1), (4, 4), (16, 16), (32, 32), (33, 1)])
def test_a_stride_needs_as_many_passes_as_it_shares_factors_with_the_banks(words: int, passes: int) -> None:
    """32 lanes, 32 banks of 4 bytes: gcd(stride, 32) lanes share a bank; stride 0 is a broadcast."""
    assert passes_of([4 * words * lane for lane in range(32)]) == passes


def test_lanes_that_want_the_same_word_are_served_together() -> None:
    assert passes_of([0, 0, 2, 128, 129]) == 2


def test_wider_lanes_need_more_passes() -> None:
    """32 lanes of 8 bytes are 64 words over 32 banks; of 16 bytes, 128 words."""
    assert passes_of(range(0, 32 * 8, 8), nbytes=8) == 2
    assert passes_of(range(0, 32 * 16, 16), nbytes=16) == 4


def test_a_lane_that_crosses_words_wants_both() -> None:
    assert passes_of([2, 130], nbytes=4) == 2


def test_one_bank_serves_one_word_at_a_time() -> None:
    assert passes_of(range(0, 32, 4), banks=1) == 8
