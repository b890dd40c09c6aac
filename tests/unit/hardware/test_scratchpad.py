"""Scratchpads refuse what does not fit, and count bank conflicts."""

from __future__ import annotations

import pytest

from hwsim.errors import CapacityError
from hwsim.hardware.scratchpad import Scratchpad, largest_square_tile, square_tiles_bytes
from hwsim.spec.memory import ScratchpadSpec


def shared(**fields: object) -> Scratchpad:
    given = {
        "kind": "scratchpad",
        "name": "shared",
        "size": "164 KiB",
        "banks": 32,
        "bank_width": "4 B",
        **fields,
    }
    return Scratchpad(ScratchpadSpec.model_validate(given), "sm.shared")


def test_a_tile_of_118_is_accepted_and_119_refused() -> None:
    shared().check_square_tile(118, "fp32", 32)
    with pytest.raises(CapacityError):
        shared().check_square_tile(119, "fp32", 32)


def test_the_refusal_names_the_largest_tile_that_fits() -> None:
    with pytest.raises(CapacityError) as refusal:
        shared().check_square_tile(128, "fp32", 32)
    assert str(refusal.value) == (
        "tile 128x128 fp32 needs 192 KiB in sm.shared, which has 164 KiB; the largest square tile that fits is 118"
    )


def test_a_scratchpad_too_small_for_anything_says_so() -> None:
    with pytest.raises(CapacityError, match="not even one element fits"):
        shared(size="8 B").check_square_tile(1, "fp32", 32)


@pytest.mark.parametrize("buffers", [1, 2])
@pytest.mark.parametrize("bits", [4, 8, 16, 32, 64])
@pytest.mark.parametrize("capacity", [1, 3, 100, 24 * 1024, 164 * 1024])
def test_the_largest_tile_fits_and_the_next_does_not(capacity: int, bits: int, buffers: int) -> None:
    side = largest_square_tile(capacity, 3, bits, buffers)
    assert square_tiles_bytes(side, 3, bits, buffers) <= capacity
    assert square_tiles_bytes(side + 1, 3, bits, buffers) > capacity


def test_double_buffering_halves_what_a_tile_may_use() -> None:
    """isqrt(164 KiB / 3 operands / 2 buffers / 4 B) = 83."""
    double = shared(buffers=2)
    double.check_square_tile(83, "fp32", 32)
    with pytest.raises(CapacityError, match="fits is 83"):
        double.check_square_tile(84, "fp32", 32)


def test_allocation_is_tight_to_the_byte() -> None:
    pad = shared(size="100 B")
    pad.allocate("a", 60)
    pad.allocate("b", 40)
    with pytest.raises(CapacityError) as refusal:
        pad.allocate("c", 1)
    assert str(refusal.value) == "c needs 1 B in sm.shared, which has 100 B, 100 B of it taken by a, b"


def test_the_peak_stays_when_tiles_are_freed() -> None:
    pad = shared(size="100 B")
    pad.allocate("a", 60)
    pad.free("a")
    pad.allocate("b", 50)
    assert (pad.used_bytes, pad.free_bytes, pad.peak_bytes) == (50, 50, 60)


def test_a_buffered_tile_takes_both_buffers_and_an_accumulator_only_one() -> None:
    pad = shared(size="100 B", buffers=2)
    pad.allocate("a", 30)
    pad.allocate("sums", 40, buffered=False)
    assert pad.used_bytes == 100


def test_a_refused_tile_leaves_everything_as_it_was() -> None:
    pad = shared(size="100 B")
    with pytest.raises(CapacityError):
        pad.allocate("a", 101)
    assert (pad.used_bytes, pad.peak_bytes) == (0, 0)
    pad.allocate("a", 100)


def test_the_same_name_twice_and_an_unknown_name_are_mistakes() -> None:
    pad = shared()
    pad.allocate("a", 1)
    with pytest.raises(ValueError, match="already"):
        pad.allocate("a", 1)
    with pytest.raises(ValueError, match="does not lie"):
        pad.free("b")
    with pytest.raises(ValueError, match="at least one byte"):
        pad.allocate("b", 0)


@pytest.mark.parametrize(("words", "passes"), [(0, 1), (1, 1), (2, 2), (3, 1), (4, 4), (16, 16), (32, 32), (33, 1)])
def test_a_stride_needs_as_many_passes_as_it_shares_factors_with_the_banks(words: int, passes: int) -> None:
    """32 lanes, 32 banks of 4 bytes: gcd(stride, 32) lanes share a bank; stride 0 is a broadcast."""
    assert shared().strided_wavefronts(0, 4 * words, 32) == passes


def test_lanes_that_want_the_same_word_are_served_together() -> None:
    assert shared().wavefronts([0, 0, 2, 128, 129]) == 2


def test_wider_lanes_need_more_passes() -> None:
    """32 lanes of 8 bytes are 64 words over 32 banks; of 16 bytes, 128 words."""
    assert shared().strided_wavefronts(0, 8, 32, nbytes=8) == 2
    assert shared().strided_wavefronts(0, 16, 32, nbytes=16) == 4


def test_a_lane_that_crosses_words_wants_both() -> None:
    assert shared().wavefronts([2, 130], nbytes=4) == 2


def test_no_lanes_need_no_pass() -> None:
    assert shared().wavefronts([]) == 0


def test_one_bank_serves_one_word_at_a_time() -> None:
    assert shared(banks=1).strided_wavefronts(0, 4, 8) == 8
