"""How the values of an axis are written."""

from __future__ import annotations

from fractions import Fraction

import pytest

from hwsim.errors import InputError
from hwsim.sweep import grid
from hwsim.sweep.grid import _grown, as_number, make_axis


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("tile=8..256:x2", (8, 16, 32, 64, 128, 256)),
        ("tile=8..255:x2", (8, 16, 32, 64, 128)),
        ("n=1..9:2", (1, 3, 5, 7, 9)),
        ("n=3..6", (3, 4, 5, 6)),
        ("n=5..5", (5,)),
        ("precision=fp32,bf16,int8", ("fp32", "bf16", "int8")),
        ("tile=4,8..32:x2,100", (4, 8, 16, 32, 100)),
        ("tile=8,8,16", (8, 16)),
        ("l2.size=256KiB..1MiB:x2", ("256 KiB", "512 KiB", "1 MiB")),
        ("l2.size=64KiB..192KiB:64KiB", ("64 KiB", "128 KiB", "192 KiB")),
        ("l2.size=512KiB..2MiB:x2", ("512 KiB", "1 MiB", "2 MiB")),
        ("dram.bandwidth=1GB/s..4GB/s:x2", ("1 GB/s", "2 GB/s", "4 GB/s")),
        ("mapping=[a,{b,c}],d", ("[a,{b,c}]", "d")),
        ("clock=1GHz..4GHz:x2", ("1 GHz", "2 GHz", "4 GHz")),
        ("x=0.1..0.3:0.1", (0.1, 0.2, 0.3)),
        ("vector=true,false", (True, False)),
        ("order=[i,j,k],[k,j,i]", ("[i,j,k]", "[k,j,i]")),
        ("l1.size=inf,32 KiB", ("inf", "32 KiB")),
    ],
)
def test_values_are_read(text: str, values: tuple[object, ...]) -> None:
    assert make_axis(*text.split("=", 1)).values == values


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tile=256..8:x2", "an empty range"),
        ("tile=8..256:x1", "never reach the end"),
        ("tile=8..256:0", "never reach the end"),
        ("tile=0..8:x2", "never reach the end"),
        ("tile=8..256:fast", "'fast' is no step"),
        ("tile=a..b", "from number to number"),
        ("tile=8..b", "from number to number"),
        ("tile=a..8", "from number to number"),
        ("tile=8,,16", "missing between commas"),
        ("tile=", "missing between commas"),
        ("n=1..10000000", "more than 1,000,000 values"),
        ("l2.size=64KiB..1MiB:100", "is no step"),
        ("x=1GHz..2KiB", "same unit"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_reason(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make_axis(*text.split("=", 1))


def test_python_values_may_be_lists_texts_or_single() -> None:
    assert make_axis("tile", [8, 16]).values == (8, 16)
    assert make_axis("tile", "8..16:x2").values == (8, 16)
    assert make_axis("tile", 8).values == (8,)
    assert make_axis("tile", range(4, 13, 4)).values == (4, 8, 12)
    with pytest.raises(InputError, match="no values"):
        make_axis("tile", [])
    with pytest.raises(InputError, match="is not a value"):
        make_axis("tile", [{}])


def test_values_have_a_place_on_a_numeric_axis() -> None:
    assert as_number("64 KiB") == 65536
    assert as_number(8) == 8
    assert as_number("2 GHz") == 2
    assert as_number("fp32") is None
    assert as_number(True) is None


@pytest.mark.parametrize(
    ("first", "last", "by", "count"),
    [(1, 1024, "2", 11), (1, 1023, "2", 10), (3, 3, "2", 1), (10, 100_000, "10", 5), (1, 1000, "1.001", 6912)],
)
def test_values_of_a_range_that_grows_are_counted_without_making_them(
    first: int, last: int, by: str, count: int
) -> None:
    """1.001 ** 6911 is the last power below 1,000."""
    assert _grown(Fraction(first), Fraction(last), Fraction(by)) == count
    if count > 1000:
        with pytest.raises(InputError, match=f"about {count:,} values, and a range that grows has at most 1,000"):
            make_axis("n", f"{first}..{last}:x{by}")
    else:
        assert len(make_axis("n", f"{first}..{last}:x{by}").values) == count


def test_the_largest_range_has_as_many_values_as_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "MOST_VALUES", 10)
    monkeypatch.setattr(grid, "MOST_GROWN", 10)
    assert make_axis("n", "1..10").values == tuple(range(1, 11))
    assert len(make_axis("n", "0.5..5:0.5").values) == 10
    assert len(make_axis("n", "1..512:x2").values) == 10
    for text in ("1..11", "0.5..5.5:0.5", "1..1024:x2"):
        with pytest.raises(InputError, match=r"more than 10 values|has at most 10"):
            make_axis("n", text)
