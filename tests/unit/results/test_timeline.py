"""The timeline file: valid JSON, named lanes, no overlaps, no femtosecond lost."""

from __future__ import annotations

import json
from decimal import Decimal
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hwsim.api import run_all
from hwsim.engine.outcome import Span
from hwsim.results.plot.timeline import assign_lanes, timeline_json

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
