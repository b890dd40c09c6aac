"""The timeline file: valid JSON, named lanes, no overlaps, no femtosecond lost."""

from __future__ import annotations

import json
from decimal import Decimal
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwsim.api import run_all
from hwsim.engine import Held, Span
from hwsim.results.plot.timeline import PlacedBlocks, assign_lanes, blocks_text, place_blocks, timeline_json

SPANS = st.lists(
    st.builds(
        lambda lane, start, length: Span(lane, "step", start, start + length),
        st.sampled_from(["core[0]", "dram"]),
        st.integers(0, 10**15),
        st.integers(0, 10**14),
    ),
    max_size=30,
)


@given(SPANS)
def test_nothing_overlaps_in_a_lane_and_nothing_is_lost(spans: list[Span]) -> None:
    lanes = assign_lanes(spans)
    for held in lanes.values():
        assert all(first.end_fs <= second.start_fs for first, second in pairwise(held))
    kept = [span for held in lanes.values() for span in held]
    assert sorted(kept, key=str) == sorted((s for s in spans if s.end_fs > s.start_fs), key=str)


def test_times_are_microseconds_with_every_femtosecond() -> None:
    text = timeline_json([Span("core[0]", "tile", 1_234_567_890_123, 1_234_567_890_124)], "title")
    event = next(e for e in json.loads(text, parse_float=Decimal)["traceEvents"] if e["ph"] == "X")
    assert event["ts"] == Decimal("1234.567890123")
    assert event["dur"] == Decimal("0.000000001")


def test_every_lane_has_a_name_and_a_place() -> None:
    data = json.loads(timeline_json([Span("b", "x", 0, 1), Span("a", "y", 0, 1), Span("a", "z", 0, 2)], "t"))
    names = {e["tid"]: e["args"]["name"] for e in data["traceEvents"] if e["name"] == "thread_name"}
    assert names == {0: "a", 1: "a (2)", 2: "b"}


def test_a_run_records_spans_only_when_asked() -> None:
    assert run_all("course_cpu", "matmul_parallel", parameters={"n": 64}).outcome.spans == ()
    spans = run_all("course_cpu", "matmul_parallel", parameters={"n": 64}, timeline=True).outcome.spans
    assert {"core[0]", "core[1]"} <= {span.lane for span in spans}


# Blocks on the SMs of a GPU ------------------------------------------------------------------------------------------


def gpu_blocks(workload: str, **parameters: object) -> list[PlacedBlocks]:
    run = run_all("a100_40", workload, parameters=parameters, math=False, timeline=True)
    return place_blocks(run.spans)


def test_waves_of_a_product_are_drawn_as_they_are_handed_out() -> None:
    # 4096 x 4096 results in tiles of 128 x 128 are 1,024 blocks; two on each of 108 SMs are four waves of 216 and 160
    # more, of which 52 SMs get two and 56 one.
    placed = gpu_blocks("matmul", n=4096, precision="fp16")
    assert [each.blocks for each in placed] == [216] * 4 + [104, 56]
    assert [each.turn for each in placed] == [0, 1, 2, 3, 4, 4]
    assert [(each.first_unit, each.units) for each in placed[3:]] == [(0, 108), (0, 52), (52, 56)]
    assert [blocks_text(each) for each in placed[3:]] == ["216 blocks\n2 on each", "104 blocks\n2 on each", "56 blocks"]
    assert all(first.end_fs <= second.start_fs for first, second in pairwise(placed[:5]))


@pytest.mark.parametrize("causal", [False, True])
def test_every_block_of_attention_is_on_one_sm_at_a_time(causal: bool) -> None:
    placed = gpu_blocks("attention_fused", n=4096, d=64, heads=16, precision="fp16", causal=causal)
    assert sum(each.blocks for each in placed) == 16 * 4096 // 128
    assert all(each.first_unit >= 0 and each.first_unit + each.units <= each.of_units == 108 for each in placed)
    for first, second in combinations(placed, 2):
        apart = first.end_fs <= second.start_fs or second.end_fs <= first.start_fs
        beside = (
            first.first_unit + first.units <= second.first_unit or second.first_unit + second.units <= first.first_unit
        )
        assert apart or beside, (first, second)
    longest = max(each.end_fs - each.start_fs for each in placed)
    shortest = min(each.end_fs - each.start_fs for each in placed)
    assert (longest > 2 * shortest) == causal, "under a causal mask blocks differ in length"


def test_of_slots_only_free_ones_take_blocks() -> None:
    def span(start: int, end: int, slots: int) -> Span:
        return Span("sm", "k", start, end, Held("k", slots, slots, 4, 2))

    placed = place_blocks([span(0, 10, 1), span(0, 30, 3), span(10, 20, 1), span(20, 25, 1)])
    # the slot that is free first takes the next two; four slots are on two units
    assert [(each.first_unit, each.units, each.turn) for each in placed] == [
        (0, 0.5, 0),
        (0.5, 1.5, 0),
        (0, 0.5, 1),
        (0, 0.5, 2),
    ]


def test_the_picture_has_the_blocks_above_and_the_links_below() -> None:
    run = run_all("a100_40", "matmul", parameters={"n": 1024, "precision": "fp16"}, math=False, timeline=True)
    above, below = run.result.plot.timeline(run.spans).axes
    assert above.get_ylim() == (108, 0)
    assert [label.get_text() for label in below.get_yticklabels()] == ["dram", "l2", "launch"]
    placed = place_blocks(run.spans)
    assert len(above.collections) == len(placed)
    start, end = (value * 1e15 for value in above.collections[0].get_paths()[0].vertices[[0, 2], 0])
    assert round(start) == placed[0].start_fs and abs(end - placed[0].end_fs) <= 1
