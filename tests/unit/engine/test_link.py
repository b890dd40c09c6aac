"""Link: fair shares, exact completions. Expected times are worked out by hand in the comments."""

from __future__ import annotations

from fractions import Fraction

import simpy

from hwsim.engine import Link

PER_FS = 10**15
"""Bytes per second of a link that moves a byte per femtosecond."""


def finish_times(rate: Fraction | int | None, arrivals: list[tuple[int, int]]) -> tuple[list[int], Link]:
    """When each transfer, given as (start, bytes), is done."""
    env = simpy.Environment()
    link = Link(env, "dram", None if rate is None else Fraction(rate))
    done: dict[int, int] = {}

    def move(number: int, start: int, nbytes: int):  # type: ignore[no-untyped-def]
        yield env.timeout(start)
        yield link.transfer(nbytes)
        done[number] = env.now

    for number, (start, nbytes) in enumerate(arrivals):
        env.process(move(number, start, nbytes))
    env.run()
    return [done[number] for number in range(len(arrivals))], link


def test_alone_a_transfer_takes_bytes_over_bandwidth() -> None:
    assert finish_times(PER_FS, [(7, 100)])[0] == [107]


def test_a_completion_is_rounded_up_to_a_whole_femtosecond() -> None:
    """10 bytes at 3 per femtosecond."""
    assert finish_times(3 * PER_FS, [(0, 10)])[0] == [4]


def test_two_transfers_each_get_half() -> None:
    assert finish_times(PER_FS, [(0, 100), (0, 100)])[0] == [200, 200]


def test_a_latecomer_slows_the_first_one_down() -> None:
    """The first has 50 of 100 bytes at 50, and gets the rest at half speed until 150; the other has 50 left then."""
    assert finish_times(PER_FS, [(0, 100), (50, 100)])[0] == [150, 200]


def test_a_short_transfer_leaves_its_share_to_the_long_one() -> None:
    """Both get half until 20, when the short one has its 10 bytes; the other 90 go at full speed."""
    assert finish_times(PER_FS, [(0, 100), (0, 10)])[0] == [110, 20]


def test_a_link_that_was_idle_owes_nothing() -> None:
    assert finish_times(PER_FS, [(0, 10), (1000, 10)])[0] == [10, 1010]


def test_an_endless_link_takes_no_time_but_counts() -> None:
    times, link = finish_times(None, [(5, 10**12)])
    assert times == [5]
    assert link.moved_bytes == 10**12


def test_nothing_moves_at_once_even_on_a_busy_link() -> None:
    assert finish_times(PER_FS, [(0, 100), (10, 0)])[0] == [100, 10]


def test_a_link_is_empty_when_all_is_done() -> None:
    _, link = finish_times(PER_FS, [(0, 3), (1, 5), (2, 8)])
    assert (len(link._waiting), link.moved_bytes) == (0, 16)
