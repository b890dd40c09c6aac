"""Cycles by cause: nothing is lost between femtoseconds and cycles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwsim.engine import FEMTOSECONDS, AgentTime, in_cycles, summed, total

DURATIONS = st.dictionaries(st.sampled_from(["fma", "add", "chain", "l2→l1"]), st.integers(0, 10**12), max_size=4)


def agent(busy: dict[str, int], waiting: dict[str, int]) -> AgentTime:
    return AgentTime("core[0]", sum(busy.values()) + sum(waiting.values()), busy, waiting)


@given(busy=DURATIONS, waiting=DURATIONS, clock_hz=st.sampled_from([1, 10**9, 1_410_000_000, 3_200_000_000]))
def test_the_parts_of_an_agent_add_up_to_its_cycles(
    busy: dict[str, int], waiting: dict[str, int], clock_hz: int
) -> None:
    made = agent(busy, waiting)
    parts = in_cycles([made], clock_hz)["core[0]"]
    assert total(parts) == -(-made.elapsed_fs * clock_hz // FEMTOSECONDS)
    assert all(cycles > 0 for group in parts.values() for cycles in group.values())


def test_whole_cycles_stay_what_they_are() -> None:
    """At 1 GHz a cycle is a million femtoseconds."""
    parts = in_cycles([agent({"fma": 5 * 10**6}, {"chain": 7 * 10**6})], 10**9)["core[0]"]
    assert parts == {"busy": {"fma": 5}, "waiting": {"chain": 7}}


def test_time_that_is_not_attributed_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="core"):
        in_cycles([AgentTime("core[0]", 10, {"fma": 9}, {})], 10**9)


def test_agents_are_added_up_with_the_largest_first() -> None:
    attribution = {
        "core[0]": {"busy": {"fma": 3}, "waiting": {"barrier": 1}},
        "core[1]": {"busy": {"fma": 2}, "waiting": {"barrier": 9}},
    }
    assert list(summed(attribution).items()) == [(("waiting", "barrier"), 10), (("busy", "fma"), 5)]
