"""What held which resource when, and power over time: for Perfetto as JSON, and as a plot.

Plots of whole models and of several devices: operations, phases and memory; collectives; the knee of serving.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwsim.energy import dynamic_joules, static_watts
from hwsim.engine import FEMTOSECONDS, Outcome, Span
from hwsim.errors import InputError
from hwsim.files import write_text
from hwsim.result import RunResult
from hwsim.results.plot.style import (
    BAR,
    FAINT,
    LOOKS,
    TEXT,
    beside,
    canvas,
    is_plot_file,
    log_title,
    name_places,
    quiet_grid,
    readable_on,
    series_looks,
)
from hwsim.spec.machine import MachineSpec
from hwsim.units import data, joules, percent, seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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


def write_timeline(path: Path, spans: Iterable[Span], title: str, power: Iterable[PowerBin] = ()) -> None:
    """A picture where the name ends as one does; else JSON for Perfetto, with power over time."""
    if is_plot_file(path):
        plot_timeline(spans, path, title)
    else:
        write_text(path, timeline_json(spans, title, power))


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
    """Lanes from top to bottom, with how busy each was; above them blocks on their units, where spans tell of some."""
    spans = tuple(spans)
    lanes = assign_lanes(span for span in spans if span.held is None)
    placed = place_blocks(spans)
    if not lanes and not placed:
        raise InputError("this run recorded no timeline; run it with timeline=True (--timeline on the command line)")
    shown = dict(list(lanes.items())[:_MOST_LANES])
    end = max(span.end_fs for span in spans)
    more = f" ({len(shown)} of {len(lanes)} lanes)" if len(lanes) > len(shown) else ""
    below, above = 1.3 + 0.34 * len(shown), 3.6 if placed else 0.0
    with canvas((9.6, below + above), path, f"{title}{more}") as figure:
        if placed:
            units, axes = figure.subplots(2, 1, sharex=True, height_ratios=(above, below))
            colours = _draw_blocks(units, placed, end)
        else:
            axes = figure.subplots()
            colours = {}
        colours |= _draw_lanes(axes, shown, end, named=not placed)
        axes.set_xlim(0, end / FEMTOSECONDS)
        axes.xaxis.set_major_formatter(lambda value, _: seconds(value))
        axes.set_xlabel("time; at the right, how long each lane was in use")
        if len(colours) > 1:
            _legend(figure, colours)
    return figure


def _draw_lanes(axes: Axes, lanes: dict[str, list[Span]], end: int, *, named: bool) -> dict[str, str]:
    """A row for each lane; where bars are `named`, a colour for each name, which is given back."""
    names = list(dict.fromkeys(span.name for held in lanes.values() for span in held)) if named else []
    looks = series_looks(names[:9])
    for row, (lane, held) in enumerate(lanes.items()):
        busy = sum(span.end_fs - span.start_fs for span in held)
        for name in dict.fromkeys(span.name if named else lane for span in held):
            bars = joined([span for span in held if not named or span.name == name], end)
            colour = looks[name].colour if name in looks else LOOKS[lane].colour if lane in LOOKS else "#BBBBBB"
            pieces = [(start / FEMTOSECONDS, (stop - start) / FEMTOSECONDS) for start, stop in bars]
            axes.broken_barh(pieces, (row - 0.36, 0.72), facecolors=colour, edgecolors="white", linewidth=0.2)
        beside(axes, percent(busy, end), (1, row), (4, 0), xycoords=("axes fraction", "data"), fontsize=8)
    axes.set_yticks(range(len(lanes)), list(lanes))
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    return {name: look.colour for name, look in looks.items()}


# Blocks on their units ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlacedBlocks:
    """Blocks side by side on neighbouring units, from one moment to another."""

    task: str
    lane: str
    blocks: int
    first_unit: float
    units: float
    of_units: int
    turn: int
    """How many pieces these units had taken of the launch before: even and odd ones are told apart."""
    start_fs: int
    end_fs: int

    @property
    def on_each(self) -> float:
        return self.blocks / self.units


def place_blocks(spans: Iterable[Span]) -> list[PlacedBlocks]:
    """Who took which blocks when: of the slots that are free, the first ones take the next piece, as they were played.

    Of pieces with a different number of blocks, those with one more come first.
    """
    placed: list[PlacedBlocks] = []
    until: list[int] = []
    turns: list[int] = []
    task = ""
    for span in sorted(
        (each for each in spans if each.held is not None), key=lambda each: (each.start_fs, each.end_fs)
    ):
        held = span.held
        assert held is not None
        if held.task != task or held.of_slots != len(until):
            task, until, turns = held.task, [0] * held.of_slots, [0] * held.of_slots
        free = [slot for slot in range(held.of_slots) if until[slot] <= span.start_fs][: held.slots]
        least, fuller = divmod(held.blocks, held.slots)
        unit = held.units / held.of_slots
        for (_, turn, blocks), alike in groupby(
            enumerate(free), key=lambda pair: (pair[1] - pair[0], turns[pair[1]], least + (pair[0] < fuller))
        ):
            slots = [slot for _, slot in alike]
            place = slots[0] * unit, len(slots) * unit, held.units
            placed.append(PlacedBlocks(task, span.lane, blocks * len(slots), *place, turn, span.start_fs, span.end_fs))
        for slot in free:
            until[slot], turns[slot] = span.end_fs, turns[slot] + 1
    return placed


def _draw_blocks(axes: Axes, placed: Sequence[PlacedBlocks], end: int) -> dict[str, str]:
    """Units from top to bottom; the colour of each launch."""
    from matplotlib.colors import to_rgb

    looks = series_looks(list(dict.fromkeys(each.task for each in placed))[:9])
    colours = {name: look.colour for name, look in looks.items()}
    units = max(each.of_units for each in placed)
    most = {task: max(each.on_each for each in placed if each.task == task) for task in {each.task for each in placed}}
    axes.set_facecolor("#EEEEEE")
    for each in placed:
        strength = (0.9 if each.turn % 2 else 0.65) * (0.45 + 0.55 * each.on_each / most[each.task])
        colour = [1 - strength * (1 - part) for part in to_rgb(colours.get(each.task, "#777777"))]
        start, long = each.start_fs / FEMTOSECONDS, (each.end_fs - each.start_fs) / FEMTOSECONDS
        thin = each.units < units / 60 or long * FEMTOSECONDS < end / 150
        axes.broken_barh(
            [(start, long)], (each.first_unit, each.units), facecolors=[colour], edgecolors="white",
            linewidth=0.15 if thin else 0.6,
        )  # fmt: skip
        if long * FEMTOSECONDS > 0.09 * end and each.units > 0.1 * units:
            axes.text(
                start + long / 2,
                each.first_unit + each.units / 2,
                blocks_text(each),
                ha="center",
                va="center",
                fontsize=8,
                color=readable_on(colour),
            )
    axes.set_ylim(units, 0)
    axes.set_ylabel(placed[0].lane)
    told = f"blocks of each launch on {units} {placed[0].lane}; grey: no block"
    axes.set_title(told, fontsize=9.5, fontweight="normal")
    return colours


def blocks_text(placed: PlacedBlocks) -> str:
    """Blocks that are drawn as one, and how many of them one unit holds at once."""
    each = placed.on_each
    beside = f"\n{each:.0f} on each" if each > 1 and each == round(each) else ""
    return f"{placed.blocks:,} block{'s' if placed.blocks > 1 else ''}{beside}"


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


MOST_ROWS = 10
COLOURS = {
    "arithmetic": "#0072B2",
    "starting kernels": "#BBBBBB",
    "overhead inside kernels": "#888888",
}
BANDWIDTH, OTHER = "#D55E00", "#CC79A7"
PARTS = {"weights": "#0072B2", "gradients": "#56B4E9", "optimizer": "#999933", "activations": "#009E73",
         "workspace": "#BBBBBB", "kv_cache": "#D55E00"}  # fmt: skip


def plot_model(result: RunResult, path: Path | None = None) -> Figure:
    """A panel for each phase, and one for memory."""
    about = result.work.use["model"]
    phases = about["phases"]
    rows = [min(MOST_ROWS + 1, len(phase["operations"])) for phase in phases]
    height = 1.6 + 0.30 * max(rows) * 1.0
    with canvas((5.2 * (len(phases) + 1), height + 0.9), path) as figure:
        panels = figure.subplots(1, len(phases) + 1, squeeze=False)[0]
        for axes, phase in zip(panels, phases, strict=False):
            _draw_phase(axes, phase)
        _draw_memory(panels[-1], about)
        energy = f", {joules(result.energy_j)}" if result.energy_j is not None else ""
        figure.suptitle(
            f"{result.workload} on {result.machine}: {seconds(result.time_s)}{energy}", x=0.01, ha="left",
            fontweight="bold",
        )  # fmt: skip
    return figure


def _draw_phase(axes: Axes, phase: dict[str, Any]) -> None:
    """Its operations, the longest first; the colour is what bounds each."""
    ordered = sorted(phase["operations"], key=lambda row: -row["seconds"])
    shown, rest = ordered[:MOST_ROWS], ordered[MOST_ROWS:]
    steps = max(1.0, phase["steps"])
    names = [_name(row) for row in shown]
    values = [row["seconds"] / steps for row in shown]
    colours = [_colour(row["bound"]) for row in shown]
    if rest:
        names.append(f"{len(rest)} more")
        values.append(sum(row["seconds"] for row in rest) / steps)
        colours.append(FAINT)
    places = range(len(names))
    axes.barh(places, [value * 1e3 for value in values], 0.7, color=colours)
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    whole = phase["seconds"] / steps
    for place, value in zip(places, values, strict=True):
        axes.annotate(percent(value, whole), (value * 1e3, place), (4, 0), textcoords="offset points", va="center",
                      color=TEXT, fontsize=8)  # fmt: skip
    spent = "" if phase["joules"] is None else f", {joules(phase['joules'] / steps)}"
    what = "a step" if phase["name"] == "decode" else "in all"
    axes.set_title(f"{phase['name']}: {seconds(whole)}{spent} {what}")
    axes.set_xlabel("milliseconds")
    axes.margins(x=0.16)
    handles = _bounds_legend(axes, [row["bound"] for row in shown])
    if handles:
        axes.legend(
            *handles, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3, frameon=False, fontsize=8,
            title="bound by", title_fontsize=8,
        )  # fmt: skip


def _name(row: dict[str, Any]) -> str:
    part = "" if row["part"] == "forward" else f" ({row['part']})"
    return f"{row['block']}.{row['name']}{part}"


def _colour(bound: str) -> str:
    return COLOURS.get(bound) or (BANDWIDTH if bound.startswith("bandwidth") else OTHER)


def _bounds_legend(axes: Axes, bounds: list[str]) -> tuple[list[Any], list[str]] | None:
    from matplotlib.patches import Patch

    groups: dict[str, str] = {}
    for bound in bounds:
        name = "bandwidth" if bound.startswith("bandwidth") else bound if bound in COLOURS else "other"
        groups[name] = _colour(bound)
    return [Patch(color=colour) for colour in groups.values()], list(groups)


def _draw_memory(axes: Axes, about: dict[str, Any]) -> None:
    """Weights stay, keys and values grow with every token; of training, the parts as bars."""
    memory, has = about["memory"], about["fit"]["has"]
    parts = {name: size for name, size in memory.items() if size and name != "total"}
    if about["kv_bytes_per_token"] and "kv_cache" in parts:
        first, last = 0, about["prompt"] + about["generate"]
        places = [first, about["prompt"], last]
        share = [0.0, about["prompt"] / last, 1.0]
        below = [0.0] * 3
        for name, size in parts.items():
            tops = [b + size * (s if name == "kv_cache" else 1.0) for b, s in zip(below, share, strict=True)]
            axes.fill_between(places, below, tops, color=PARTS.get(name, BAR), label=name.replace("_", " "),
                              linewidth=0)  # fmt: skip
            below = tops
        axes.set_xlabel(f"tokens of each of {about['batch']:,} sequences")
    else:
        below = [0.0]
        for name, size in parts.items():
            axes.bar(["memory"], [size], 0.5, bottom=below, color=PARTS.get(name, BAR), label=name.replace("_", " "))
            below = [below[0] + size]
    axes.yaxis.set_major_formatter(lambda value, _: data(value))
    axes.set_title(f"memory: {data(memory['total'])}")
    top = axes.get_ylim()[1]
    if has is not None and has < 3 * top:
        axes.axhline(has, color=TEXT, linewidth=1, linestyle="--")
        axes.annotate(f"the machine has {data(has)}", (0.02, has), (0, 3), xycoords=("axes fraction", "data"),
                      textcoords="offset points", fontsize=8, color=TEXT)  # fmt: skip
        axes.set_ylim(0, max(top, 1.1 * has))
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3, frameon=False, fontsize=8)


Points = Sequence[tuple[float, float]]
_MOST_SIZES = 7
"""So many sizes have room for their names below an axis."""


def plot_collective(lines: Mapping[str, Points], path: Path | None = None, title: str = "") -> Figure:
    """Seconds over bytes, a line for each kernel; the one that is taken lies below them all."""
    from matplotlib.ticker import NullLocator

    looks = series_looks(lines)
    with canvas((7.6, 4.8), path) as figure:
        axes = figure.subplots()
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        for name, points in lines.items():
            taken = name == "fastest"
            x, y = zip(*points, strict=True)
            axes.plot(
                x, y, label=name, color=TEXT if taken else looks[name].colour, linewidth=6 if taken else 1.8,
                alpha=0.18 if taken else 1.0, linestyle="-" if taken else looks[name].dash,
                marker="" if taken else looks[name].marker, markersize=5, solid_capstyle="round",
            )  # fmt: skip
        sizes = sorted({x for points in lines.values() for x, _ in points})
        axes.set_xticks(sizes[:: -(-len(sizes) // _MOST_SIZES)])
        if len(sizes) == 1:
            axes.set_xlim(sizes[0] / 2, sizes[0] * 2)
        axes.xaxis.set_major_formatter(lambda value, _: data(value))
        axes.xaxis.set_minor_locator(NullLocator())
        name_places(axes.yaxis, seconds)
        axes.set_xlabel(log_title("size of the buffer", True))
        axes.set_ylabel(log_title("time", True))
        quiet_grid(axes)
        axes.legend(frameon=False, fontsize=9)
        axes.set_title(title)
    return figure


def plot_knee(
    loads: Sequence[tuple[str, float, float, float]], path: Path | None = None, title: str = "", knee: str = ""
) -> Figure:
    """Time per output token over throughput, a point for each load: (label, tokens/s, p50 s, p99 s)."""
    with canvas((7.6, 4.8), path) as figure:
        axes = figure.subplots()
        x = [rate for _, rate, _, _ in loads]
        middles, tails = [1e3 * middle for _, _, middle, _ in loads], [1e3 * tail for _, _, _, tail in loads]
        for y, name, colour, marker in ((middles, "median", "#0072B2", "o"), (tails, "p99", "#D55E00", "s")):
            axes.plot(x, y, marker=marker, color=colour, label=name, linewidth=1.8)
        for label, rate, middle, _ in loads:
            axes.annotate(
                label, (rate, 1e3 * middle), (7, -11), textcoords="offset points", ha="left", fontsize=8.5,
                color=TEXT if label == knee else FAINT, fontweight="bold" if label == knee else "normal",
            )  # fmt: skip
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        axes.set_xlabel("output tokens per second, all users together")
        axes.set_ylabel("milliseconds per output token")
        quiet_grid(axes)
        axes.legend(frameon=False, fontsize=9, loc="upper left")
        axes.set_title(title)
    return figure
