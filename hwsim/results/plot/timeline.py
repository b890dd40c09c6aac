"""What held which resource when, and power over time: for Perfetto as JSON, and as a plot."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from hwsim.energy import dynamic_joules, static_watts
from hwsim.engine.outcome import FEMTOSECONDS, Outcome, Span
from hwsim.errors import InputError
from hwsim.results.plot.style import canvas, series_looks
from hwsim.spec.machine import MachineSpec
from hwsim.text import percent, seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MOST_BINS = 1000


@dataclass(frozen=True)
class PowerBin:
    """Average power between two moments."""

    start_fs: int
    end_fs: int
    watts: float


def power_over_time(machine: MachineSpec, outcome: Outcome, bins: int = MOST_BINS) -> tuple[PowerBin, ...]:
    """The run in equal pieces of time, whose mean is the run's power. Empty without a timeline or without prices."""
    if machine.energy is None or not outcome.pulses or not outcome.elapsed_fs:
        return ()
    joules = [0.0] * min(bins, outcome.elapsed_fs)
    width = outcome.elapsed_fs / len(joules)
    for pulse in outcome.pulses:
        taken = dynamic_joules(pulse.ledger.priced(machine.energy, Fraction(0), machine.name))
        _spread(joules, width, pulse.start_fs, max(pulse.end_fs, pulse.start_fs + 1), taken)
    idle = static_watts(machine.energy)
    edges = [round(number * width) for number in range(len(joules) + 1)]
    return tuple(
        PowerBin(start, end, idle + taken / width * FEMTOSECONDS)
        for start, end, taken in zip(edges, edges[1:], joules, strict=False)
    )


def _spread(joules: list[float], width: float, start: int, end: int, taken: float) -> None:
    first, last = min(int(start / width), len(joules) - 1), min(int(end / width), len(joules) - 1)
    for number in range(first, last + 1):
        inside = min(end, (number + 1) * width) - max(start, number * width)
        if number == last:
            inside = max(inside, end - max(start, number * width))
        joules[number] += taken * max(0.0, inside) / (end - start)


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


_MOST_LANES, _MOST_BARS = 24, 600


def plot_timeline(spans: Iterable[Span], path: Path | None = None, title: str = "") -> Figure:
    """Lanes from top to bottom, with how busy each was; spans too short to see are drawn together."""
    lanes = assign_lanes(spans)
    if not lanes:
        raise InputError("this run recorded no timeline; run it with timeline=True (--timeline on the command line)")
    shown = dict(list(lanes.items())[:_MOST_LANES])
    end = max(span.end_fs for held in lanes.values() for span in held)
    names = list(dict.fromkeys(span.name for held in shown.values() for span in held))
    looks = series_looks(names[:9])
    with canvas((9.6, 1.3 + 0.34 * len(shown)), path) as figure:
        axes = figure.subplots()
        for row, held in enumerate(shown.values()):
            busy = sum(span.end_fs - span.start_fs for span in held)
            for name in dict.fromkeys(span.name for span in held):
                bars = joined([span for span in held if span.name == name], end)
                colour = looks[name].colour if name in looks else "#BBBBBB"
                pieces = [(start / FEMTOSECONDS, (stop - start) / FEMTOSECONDS) for start, stop in bars]
                axes.broken_barh(pieces, (row - 0.36, 0.72), facecolors=colour, edgecolors="white", linewidth=0.2)
            axes.annotate(
                percent(busy, end),
                (1, row),
                (4, 0),
                ("axes fraction", "data"),
                "offset points",
                va="center",
                fontsize=8,
            )
        axes.set_yticks(range(len(shown)), list(shown))
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_xlim(0, end / FEMTOSECONDS)
        axes.xaxis.set_major_formatter(lambda value, _: seconds(value))
        axes.set_xlabel("time; at the right, how long each lane was in use")
        more = f" ({len(shown)} of {len(lanes)} lanes)" if len(lanes) > len(shown) else ""
        axes.set_title(f"{title}{more}")
        if len(names) > 1:
            _legend(figure, {name: look.colour for name, look in looks.items()})
    return figure


def joined(spans: Sequence[Span], end_fs: int, most: int = _MOST_BARS) -> list[tuple[int, int]]:
    """Spans as (start, end), those with no visible gap between them as one."""
    gap = max(1, end_fs // most)
    bars: list[tuple[int, int]] = []
    for span in spans:
        if bars and span.start_fs - bars[-1][1] < gap:
            bars[-1] = (bars[-1][0], max(bars[-1][1], span.end_fs))
        else:
            bars.append((span.start_fs, span.end_fs))
    return bars


def _legend(figure: Figure, colours: dict[str, str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, label=name) for name, colour in colours.items()]
    figure.legend(handles=handles, loc="outside lower left", ncols=min(6, len(handles)), frameon=False, fontsize=9)
