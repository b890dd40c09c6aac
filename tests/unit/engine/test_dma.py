"""DMA engines serve what is needed first."""

from __future__ import annotations

from collections.abc import Iterator

import simpy

from hwsim.engine import DmaEngines


def served(engines: int, asked: list[tuple[int, int]], length: int = 10) -> list[tuple[int, int]]:
    """(when, tile) of each transfer as it begins; `asked` are (when, tile) of the requests, each `length` long."""
    env = simpy.Environment()
    dma = DmaEngines(env, engines)
    begun = []

    def transfer(start: int, tile: int) -> Iterator[simpy.Event]:
        yield env.timeout(start)
        yield dma.request(tile)
        begun.append((int(env.now), tile))
        yield env.timeout(length)
        dma.release()

    for start, tile in asked:
        env.process(transfer(start, tile))
    env.run()
    return begun


def test_one_engine_takes_one_transfer_after_the_other() -> None:
    assert served(1, [(0, 0), (0, 1), (0, 2)]) == [(0, 0), (10, 1), (20, 2)]


def test_of_those_that_wait_the_earliest_tile_goes_first() -> None:
    assert served(1, [(0, 5), (1, 9), (2, 7), (3, 6)]) == [(0, 5), (10, 6), (20, 7), (30, 9)]


def test_requests_of_one_moment_do_not_win_by_asking_first() -> None:
    assert served(2, [(0, 3), (0, 2), (0, 1), (0, 0)]) == [(0, 0), (0, 1), (10, 2), (10, 3)]


def test_equal_tiles_are_served_in_the_order_in_which_they_asked() -> None:
    assert served(1, [(0, 4), (0, 4), (0, 4)]) == [(0, 4), (10, 4), (20, 4)]
