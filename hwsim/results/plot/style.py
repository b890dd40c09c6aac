"""How plots look and where they go: one look per thing, lines told apart in grey as well, files without dates.

Bars for several runs: where the energy of each went, and how many bytes went over each level.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from math import floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hwsim.energy import STATIC
from hwsim.errors import InputError
from hwsim.files import written
from hwsim.result import RunResult, bytes_moved
from hwsim.results.metrics import energy_split
from hwsim.units import HIDDEN, data, joules, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Figure  # noqa: PLC0414 - others name the type from here


@dataclass(frozen=True)
class Look:
    """How one thing is drawn everywhere. The colours are those of Okabe and Ito, 2008."""

    colour: str
    hatch: str = ""


LOOKS = {
    "arithmetic": Look("#0072B2"),
    "operand supply": Look("#56B4E9", "..."),
    "control": Look("#E69F00", "///"),
    "l1": Look("#009E73"),
    "l2": Look("#F0E442", "\\\\\\"),
    "l3": Look("#CC79A7", "xxx"),
    "dram": Look("#D55E00"),
    "static": Look("#BBBBBB"),
    "fp64": Look("#000000"),
    "fp32": Look("#0072B2"),
    "fp16": Look("#009E73"),
    "bf16": Look("#CC79A7"),
    "int32": Look("#56B4E9"),
    "int8": Look("#D55E00"),
}
"""By memory level, cause of energy, and number format."""

_OTHERS = (Look("#CC79A7", "xxx"), Look("#999933", "++"), Look("#882255", "oo"), Look("#44AA99", "--"))

TEXT, FAINT = "#222222", "#777777"
BAR = "#0072B2"


def look_of(name: str) -> Look:
    """The fixed look of a thing; one that is always the same also for names that nobody foresaw."""
    return LOOKS.get(name) or _OTHERS[sum(name.encode()) % len(_OTHERS)]


def looks_of(names: Iterable[str]) -> dict[str, Look]:
    """The looks of things in one picture: where two would be alike, the later one takes another that is free."""
    found: dict[str, Look] = {}
    for name in names:
        taken = set(found.values())
        look = look_of(name)
        found[name] = next((each for each in (look, *_OTHERS) if each not in taken), look)
    return found


_SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": TEXT,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "text.color": TEXT,
    "xtick.color": FAINT,
    "ytick.color": TEXT,
    "ytick.major.size": 0,
    "hatch.linewidth": 0.6,
    "savefig.dpi": 200,
    "svg.hashsalt": "hwsim",
}


@contextmanager
def canvas(
    size: tuple[float, float],
    path: Path | None = None,
    title: str = "",
    layout: Literal["constrained"] | None = "constrained",
) -> Iterator[Figure]:
    """A figure with quiet axes and readable type; when all is drawn it gets its title, and is written to the path."""
    import matplotlib

    with matplotlib.rc_context(_SETTINGS):
        figure = _figure_class()(figsize=size, layout=layout)
        yield figure
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        _as_written(figure)
        if path is not None:
            save_plot(figure, path)


@lru_cache(maxsize=1)
def _figure_class() -> type[Figure]:
    """A figure that a notebook shows by itself, whatever backend it has; made when Matplotlib is first needed."""
    from matplotlib.figure import Figure

    class ShownFigure(Figure):
        def _repr_png_(self) -> bytes:
            with BytesIO() as file:
                self.savefig(file, format="png", dpi=_SCREEN_DPI, bbox_inches="tight", metadata=_NO_DATE[".png"])
                return file.getvalue()

    return ShownFigure


_SCREEN_DPI = 100
_OWN_MATH = "\\mathdefault"
"""What Matplotlib writes at logarithmic axes."""


def _as_written(figure: Figure) -> None:
    """Names and texts of files are no formulas, whatever signs are in them, and nothing in them is hidden."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        if isinstance(text, Text) and _OWN_MATH not in text.get_text():
            text.set_parse_math(False)
            if HIDDEN.search(text.get_text()):
                text.set_text(visible(text.get_text()))


_NO_DATE: dict[str, dict[str, None]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}


def check_plot_file(path: Path | None) -> None:
    """Raises InputError where the name does not end as a plot's should."""
    if path is not None and path.suffix.lower() not in _NO_DATE:
        raise InputError(f"{path}: a plot is one of {', '.join(sorted(_NO_DATE))}")


def is_plot_file(path: Path) -> bool:
    """Whether a name ends as a plot's does."""
    return path.suffix.lower() in _NO_DATE


def save_plot(figure: Figure, path: Path) -> None:
    check_plot_file(path)
    form = path.suffix.lower()
    with written(path) as file:
        figure.savefig(
            file, format=form.removeprefix("."), bbox_inches="tight", pad_inches=0.15, metadata=_NO_DATE[form]
        )


_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933", "#882255")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "h")
_DASHES = ("-", "--", "-.", ":", (0, (6, 1.5, 1, 1.5, 1, 1.5)), (0, (1, 1)))


@dataclass(frozen=True)
class Series:
    """How one line is drawn."""

    colour: str
    marker: str
    dash: Any


def series_looks(names: Iterable[object]) -> dict[str, Series]:
    """A look for each name; number formats and levels keep the colour that they have everywhere."""
    wanted = [str(name) for name in names]
    taken = {LOOKS[name].colour for name in wanted if name in LOOKS}
    free = [colour for colour in _COLOURS if colour not in taken] or list(_COLOURS)
    looks: dict[str, Series] = {}
    others = 0
    for number, name in enumerate(wanted):
        if name in LOOKS:
            colour = LOOKS[name].colour
        else:
            colour = free[others % len(free)]
            others += 1
        looks[name] = Series(colour, _MARKERS[number % len(_MARKERS)], _DASHES[number % len(_DASHES)])
    return looks


LOG = "log scale"
"""What a logarithmic axis says of itself."""


def log_title(title: str, logarithmic: bool) -> str:
    """The title of a panel or an axis, which says so where its scale is logarithmic."""
    return f"{title} ({LOG})" if logarithmic else title


_FEW_DECADES = 30
"""A logarithmic axis whose ends differ by less than this factor has hardly a power of ten to name."""


def name_places(axis: Axis, name: Callable[[float], str]) -> None:
    """Names on an axis. A short logarithmic one has hardly a power of ten: there, places between them are named too."""

    def between(value: float, _: object = None) -> str:
        low, high = axis.get_view_interval()
        return name(value) if _leading(value) in _digits_between(low, high) else ""

    axis.set_major_formatter(lambda value, _: name(value))
    axis.set_minor_formatter(between)


def _leading(value: float) -> int:
    return round(value / 10.0 ** floor(log10(value)))


def _digits_between(low: float, high: float) -> Collection[int]:
    """Which first digits of places between powers of ten are named: 2 and 5 where that is enough, or all."""
    if low <= 0:
        return ()
    powers = [10.0**power for power in range(floor(log10(low)), floor(log10(high)) + 1)]
    if high / low >= _FEW_DECADES and sum(low <= power <= high for power in powers) > 1:
        return ()
    found = [digit * power for power in powers for digit in (1, 2, 5) if low <= digit * power <= high]
    return (2, 5) if len(found) > 1 else range(2, 10)


def spread(positions: Sequence[float], gap: float) -> list[float]:
    """Positions moved apart until neighbours have `gap` between them, as little as that takes: for labels of lines."""
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    placed = [positions[i] for i in order]
    for _ in range(200):
        moved = False
        for i in range(len(placed) - 1):
            short = gap - (placed[i + 1] - placed[i])
            if short > 1e-9:
                placed[i] -= short / 2
                placed[i + 1] += short / 2
                moved = True
        if not moved:
            break
    result = [0.0] * len(positions)
    for place, i in zip(placed, order, strict=True):
        result[i] = place
    return result


def beside(axes: Axes, words: str, place: tuple[float, float], shift: tuple[float, float] = (5, 0), **look: Any) -> Any:
    """Words beside a place, so many points away from it; `look` is how Matplotlib writes them."""
    return axes.annotate(words, place, shift, textcoords="offset points", **{"va": "center", **look})


def readable_on(ground: Sequence[float]) -> str:
    """The colour of words on a ground of red, green and blue from 0 to 1: that with more contrast, as WCAG 2 has it."""
    return TEXT if _luminance(ground) > _EQUAL_CONTRAST else "white"


def _luminance(colour: Sequence[float]) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


_EQUAL_CONTRAST = 0.21
"""Grounds of this luminance have as much contrast with white as with the dark of words."""


def quiet_grid(axes: Axes) -> None:
    """Faint lines behind what is drawn."""
    axes.grid(color="#EEEEEE", linewidth=0.8)
    axes.set_axisbelow(True)


ORDER = ("arithmetic", "operand supply", "control", "l1", "l2", "l3", "dram")


def draw_dynamic(axes: Axes, splits: Sequence[Mapping[str, float]], height: float) -> list[float]:
    """A bar for each run, cut by what its energy went into; gives their lengths.

    Static power times time would hide all else: it is written beside the bar.
    """
    names = dict.fromkeys([*ORDER, *(name for split in splits for name in split)])
    parts = [name for name in names if name != STATIC and any(split.get(name) for split in splits)]
    ends = _draw_parts(axes, parts, splits, height)
    for row, (total, split) in enumerate(zip(ends, splits, strict=True)):
        own = beside(axes, joules(total), (total, row), fontweight="bold", color=TEXT)
        if STATIC in split:
            beside(axes, f"+ {joules(split[STATIC])} static", (1, 0.5), xycoords=own, color=FAINT)
    return ends


def _draw_parts(axes: Axes, parts: Sequence[str], splits: Sequence[Mapping[str, float]], height: float) -> list[float]:
    """One part after the other, each in its own look; gives where the bars end."""
    ends = [0.0] * len(splits)
    for part, look in looks_of(parts).items():
        widths = [split.get(part, 0.0) for split in splits]
        axes.barh(
            range(len(splits)), widths, height, left=ends, color=look.colour, hatch=look.hatch,
            edgecolor="white", linewidth=0.4, label=part,
        )  # fmt: skip
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    return ends


def plot_energy(runs: Mapping[str, RunResult], path: Path | None = None, title: str = "") -> Figure:
    """Joules of each run by what they went into. Static power times time would hide all else: it is written beside."""
    splits = [energy_split(result) for result in runs.values()]
    with canvas((8.4, 1.4 + 0.42 * len(runs)), path) as figure:
        axes = figure.subplots()
        ends = draw_dynamic(axes, splits, 0.68)
        axes.set_yticks(range(len(runs)), list(runs), color=TEXT)
        axes.set_ylim(len(runs) - 0.4, -0.6)
        axes.set_xlim(0, (max(ends, default=0.0) or 1.0) * 1.4)
        axes.xaxis.set_major_formatter(lambda value, _: joules(value))
        axes.set_title(
            f"{title} Dynamic energy"
            if title.endswith("?")
            else f"{title}: dynamic energy"
            if title
            else "Dynamic energy"
        )
        figure.legend(loc="outside lower center", ncols=min(8, len(axes.containers) or 1), frameon=False, fontsize=9)
    return figure


def plot_traffic(runs: Mapping[str, RunResult], path: Path | None = None, title: str = "") -> Figure:
    """Bytes that each level delivers and takes, a group of bars for each run, on one logarithmic axis."""
    levels = list(dict.fromkeys(level for result in runs.values() for level in result.memory))
    moved = [
        [bytes_moved(result.memory[level]) if level in result.memory else 0 for level in levels]
        for result in runs.values()
    ]
    with canvas((8.4, 1.3 + 0.24 * len(runs) * (len(levels) + 0.8)), path) as figure:
        axes = figure.subplots()
        pitch = len(levels) + 0.8
        smallest = min((amount for row in moved for amount in row if amount), default=1)
        start = 10 ** (len(str(int(smallest))) - 1) / 2
        for number, (level, look) in enumerate(looks_of(levels).items()):
            places = [run * pitch + number for run in range(len(moved))]
            lengths = [max(0.0, row[number] - start) for row in moved]
            axes.barh(
                places, lengths, 0.86, left=start, color=look.colour, hatch=look.hatch, edgecolor="white", linewidth=0.4
            )
            for place, row in zip(places, moved, strict=True):
                words = f"{level}  {data(row[number])}" if row[number] else f"{level}  nothing"
                beside(axes, words, (max(row[number], start), place), fontsize=8.5)
        axes.set_xscale("log")
        most = max((amount for row in moved for amount in row), default=10)
        axes.set_xlim(start, most * 12)
        axes.set_yticks([run * pitch + (len(levels) - 1) / 2 for run in range(len(moved))], list(runs))
        axes.set_ylim(len(moved) * pitch - 1, -0.8)
        axes.xaxis.set_major_formatter(lambda value, _: data(value))
        axes.tick_params(axis="x", which="minor", bottom=False)
        axes.set_title(log_title(title or "Traffic of each level", True))
    return figure


def plot_energy_stack(results: Mapping[str, RunResult], path: Path, title: str = "", *, shares: bool = False) -> None:
    """Joules for each operation, stacked by cause and memory level; with `shares`, each bar is the whole of a run."""
    with canvas((8.6, 1.4 + 0.5 * len(results)), path, title) as figure:
        axes = figure.subplots()
        _draw(axes, {name: _per_operation(result) for name, result in results.items()}, shares)


def _per_operation(result: RunResult) -> dict[str, float]:
    flops = result.work.flops or 1
    return {name: joule / flops for name, joule in energy_split(result).items()}


def _draw(axes: Axes, bars: Mapping[str, Mapping[str, float]], shares: bool) -> None:
    found = dict.fromkeys(name for split in bars.values() for name in split)
    names = [name for name in dict.fromkeys((*ORDER, *found)) if name in found and name != STATIC]
    names += [STATIC] if STATIC in found else []
    wholes = [sum(split.values()) or 1.0 for split in bars.values()]
    scale = wholes if shares else [1.0] * len(bars)
    scaled = [{name: part / by for name, part in split.items()} for split, by in zip(bars.values(), scale, strict=True)]
    ends = _draw_parts(axes, names, scaled, 0.66)
    for row, (end, whole) in enumerate(zip(ends, wholes, strict=True)):
        beside(axes, joules(whole), (end, row), color=TEXT)
    axes.set_yticks(range(len(bars)), list(bars))
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlim(0, max(ends, default=1.0) * 1.15)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}" if shares else joules(value))
    axes.tick_params(axis="x", colors=FAINT)
    axes.set_title("Share of energy" if shares else "Energy for each operation")
    axes.legend(loc="lower right", frameon=False, fontsize=8.5, ncols=2)
