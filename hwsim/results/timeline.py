"""A timeline that Perfetto and chrome://tracing open: one lane per resource, nothing overlaps in a lane."""

from __future__ import annotations

import json
from collections.abc import Iterable

from hwsim.engine.outcome import Span
from hwsim.results.power import PowerBin

_FS_PER_US = 10**9


def timeline_json(spans: Iterable[Span], title: str, power: Iterable[PowerBin] = ()) -> str:
    """Chrome's trace format. Times are microseconds with nine decimals: every femtosecond is kept.

    Power over time is a counter beside the lanes.
    """
    lanes = assign_lanes(spans)
    events = [_meta("process_name", 0, title)]
    for number, lane in enumerate(lanes):
        events.append(_meta("thread_name", number, lane))
        events.append(_meta_order(number))
    for number, held in enumerate(lanes.values()):
        events += [_event(span, number) for span in held]
    events += [_watts(each) for each in power]
    body = ",\n  ".join(events)
    return f'{{"displayTimeUnit": "ns", "traceEvents": [\n  {body}\n]}}\n'


def assign_lanes(spans: Iterable[Span]) -> dict[str, list[Span]]:
    """Spans by lane, in order of time. Of two that a resource holds at once, one gets a lane of its own."""
    lanes: dict[str, list[Span]] = {}
    for span in sorted(spans, key=lambda s: (s.lane, s.start_fs, s.end_fs, s.name)):
        if span.end_fs <= span.start_fs:
            continue
        number = 1
        name = span.lane
        while name in lanes and lanes[name][-1].end_fs > span.start_fs:
            number += 1
            name = f"{span.lane} ({number})"
        lanes.setdefault(name, []).append(span)
    return dict(sorted(lanes.items()))


def _event(span: Span, lane: int) -> str:
    start, length = _microseconds(span.start_fs), _microseconds(span.end_fs - span.start_fs)
    return f'{{"ph": "X", "pid": 0, "tid": {lane}, "name": {_text(span.name)}, "ts": {start}, "dur": {length}}}'


def _watts(piece: PowerBin) -> str:
    start = _microseconds(piece.start_fs)
    return f'{{"ph": "C", "pid": 0, "name": "power", "ts": {start}, "args": {{"W": {piece.watts:.6g}}}}}'


def _meta(kind: str, lane: int, name: str) -> str:
    return f'{{"ph": "M", "pid": 0, "tid": {lane}, "name": "{kind}", "args": {{"name": {_text(name)}}}}}'


def _meta_order(lane: int) -> str:
    order = f'"args": {{"sort_index": {lane}}}'
    return f'{{"ph": "M", "pid": 0, "tid": {lane}, "name": "thread_sort_index", {order}}}'


def _microseconds(fs: int) -> str:
    return f"{fs // _FS_PER_US}.{fs % _FS_PER_US:09d}"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
