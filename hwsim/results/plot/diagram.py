"""A machine as a block diagram: compute units above, memory levels below them, and what flows between.

`draw_machine` places boxes and links on a plane; `as_svg` writes them for a page, `plot_diagram` draws them for a file,
and `as_text` for a terminal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from hwsim.result import RunResult, bytes_moved
from hwsim.results.plot.style import FAINT, LOOKS, canvas
from hwsim.spec.machine import (
    CacheSpec,
    DramSpec,
    LevelSpec,
    MachineSpec,
    RegistersSpec,
    ScratchpadSpec,
    StorageSpec,
    UnitSpec,
)
from hwsim.units import data, format_bytes, format_frequency

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SHOWN = 4
"""Of more units than this, so many are drawn, and the rest is said."""

_WIDTH, _ROW, _BOX, _GAP = 720.0, 92.0, 54.0, 14.0
_COMPUTE, _PLAIN = "#DCEBF7", "#F2F2F2"


@dataclass(frozen=True)
class Box:
    """A part: where it is, and two lines about it."""

    x: float
    y: float
    width: float
    height: float
    title: str
    detail: str
    colour: str


@dataclass(frozen=True)
class Wire:
    """A connection down from one row to the next, with what is said beside it."""

    x: float
    top: float
    bottom: float
    label: str
    thickness: float = 1.2


@dataclass(frozen=True)
class Drawing:
    """Boxes and links on a plane whose y grows downwards."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    links: tuple[Wire, ...]


def draw_machine(machine: MachineSpec, result: RunResult | None = None) -> Drawing:
    """One row for each level, private ones drawn below every unit; with a result, its traffic stands on the links."""
    unit = machine.compute[0]
    shown = min(unit.count, SHOWN)
    pitch = _WIDTH / shown
    boxes = [
        Box(
            n * pitch + _GAP / 2,
            0,
            pitch - _GAP,
            _BOX,
            _unit_title(unit, n, shown),
            unit_words(machine, unit),
            _COMPUTE,
        )
        for n in range(shown)
    ]
    links: list[Wire] = []
    top, above = _BOX, shown
    for row, level in enumerate(machine.memory, start=1):
        y = row * _ROW
        groups = _instances(level, unit.count, shown)
        wide = _WIDTH / groups
        lanes = max(above, groups)
        for n in range(lanes):
            label = link_words(level, result) if n == 0 else ""
            links.append(Wire((n + 0.5) * _WIDTH / lanes, top, y, label, _thickness(level, result)))
        title = f"{level.name}  {size_words(level)}"
        for n in range(groups):
            more = f" ×{_count(level, unit.count)}" if n == groups - 1 and _count(level, unit.count) > groups else ""
            boxes.append(
                Box(n * wide + _GAP / 2, y, wide - _GAP, _BOX, title + more, level_words(level), _colour(level))
            )
        top, above = y + _BOX, groups
    return Drawing(_WIDTH, top + 4, tuple(boxes), tuple(links))


def as_svg(drawing: Drawing, label: str) -> str:
    """The drawing as an SVG element that stands by itself in a page."""
    parts = [
        f'<svg class="diagram" viewBox="-4 -4 {drawing.width + 8:.0f} {drawing.height + 8:.0f}" role="img" '
        f'aria-label="{escape(label)}" xmlns="http://www.w3.org/2000/svg">'
    ]
    for link in drawing.links:
        parts.append(
            f'<line x1="{link.x:.1f}" y1="{link.top:.1f}" x2="{link.x:.1f}" y2="{link.bottom:.1f}" '
            f'stroke="#777" stroke-width="{link.thickness:.1f}"/>'
        )
    for link in drawing.links:
        if link.label:
            parts.append(
                f'<text x="{link.x + 8:.1f}" y="{(link.top + link.bottom) / 2 + 4:.1f}" font-size="12" fill="#444" '
                f'stroke="#fff" stroke-width="7" stroke-linejoin="round" paint-order="stroke">'
                f"{escape(link.label)}</text>"
            )
    for box in drawing.boxes:
        middle = box.x + box.width / 2
        parts.append(
            f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="6" '
            f'fill="{box.colour}" stroke="#777"><title>{escape(f"{box.title}: {box.detail}")}</title></rect>'
        )
        room = int(box.width / 6.6)
        title = fit_words(box.title, room)
        size = min(13.0, box.width / (0.68 * max(1, len(title))))
        parts.append(
            f'<text x="{middle:.1f}" y="{box.y + 22:.1f}" text-anchor="middle" font-size="{size:.3g}" '
            f'font-weight="bold">{escape(title)}</text>'
        )
        parts.append(
            f'<text x="{middle:.1f}" y="{box.y + 41:.1f}" text-anchor="middle" font-size="11" fill="#444">'
            f"{escape(fit_words(box.detail, int(room * 1.15)))}</text>"
        )
    return "".join([*parts, "</svg>"])


def as_text(machine: MachineSpec) -> str:
    """Boxes of characters, from the compute units outwards."""
    unit = machine.compute[0]
    rows = [(f"{unit.name}" + (f" ×{unit.count}" if unit.count > 1 else ""), unit_words(machine, unit), "")]
    for level in machine.memory:
        many = _count(level, unit.count)
        name = f"{level.name}" + (f" ×{many}" if many > 1 else "")
        rows.append((f"{name}  {size_words(level)}".rstrip(), level_words(level), link_words(level, None)))
    width = max(len(text) for title, detail, _ in rows for text in (title, detail)) + 2
    lines: list[str] = []
    for number, (title, detail, link) in enumerate(rows):
        if number:
            lines.append(f"{' ' * (width // 2 + 1)}│ {link}".rstrip())
        edge = "─" * width
        middle = width // 2
        up = edge[:middle] + "┴" + edge[middle + 1 :] if number else edge
        down = edge[:middle] + "┬" + edge[middle + 1 :] if number < len(rows) - 1 else edge
        lines += [f"┌{up}┐", f"│{title.center(width)}│", f"│{detail.center(width)}│", f"└{down}┘"]
    return "\n".join(lines)


def fit_words(text: str, room: int) -> str:
    """The text, or as many of its words as there is room for."""
    if len(text) <= room:
        return text
    kept = ""
    for word in text.split(", "):
        longer = f"{kept}, {word}" if kept else word
        if len(longer) + 2 > room:
            break
        kept = longer
    return f"{kept} …" if kept else text[: max(1, room - 1)] + "…"


def unit_words(machine: MachineSpec, unit: UnitSpec) -> str:
    """A compute unit in a few words: its kind, its clock, how wide it is."""
    words = [str(unit.kind), format_frequency(machine.clock_hz(unit.clock))]
    simd = getattr(unit, "simd", None)
    if simd is not None:
        words.append(f"{simd.bits}-bit vectors")
    for name in ("rows", "columns"):
        if isinstance(getattr(unit, name, None), int):
            words.append(f"{getattr(unit, name)} {name}")
    return ", ".join(words)


def size_words(level: LevelSpec) -> str:
    if isinstance(level, RegistersSpec):
        return f"{level.count} × {level.bits} bit"
    size = getattr(level, "size", None)
    return "" if size is None else format_bytes(size)


def level_words(level: LevelSpec) -> str:
    """A level in a few words: its kind, its organisation, its latency, who shares it."""
    words: list[str] = [level.kind]
    if isinstance(level, CacheSpec):
        ways = "fully associative" if level.ways == "full" else f"{level.ways} ways"
        words += [ways, f"{format_bytes(level.line)} lines", level.replacement]
    elif isinstance(level, ScratchpadSpec):
        words += [f"{level.bank_count} banks"] if level.bank_count > 1 else []
        words += ["double buffered"] if level.buffers == 2 else []
    elif isinstance(level, DramSpec):
        words += [f"{level.channels} channels" if level.channels > 1 else "1 channel", f"{level.banks} banks"]
    if level.latency is not None:
        words.append(str(level.latency))
    if level.shared_by != 1 and not isinstance(level, DramSpec | StorageSpec):
        words.append("shared by all" if level.shared_by == "all" else f"shared by {level.shared_by}")
    return ", ".join(words)


def link_words(level: LevelSpec, result: RunResult | None) -> str:
    """What the link up from a level can carry and, with a result, what it did carry."""
    words = [str(level.bandwidth)] if level.bandwidth is not None else []
    counts = result.memory.get(level.name) if result is not None else None
    if counts is not None:
        words.append(f"{data(counts.bytes_read)} up, {data(counts.bytes_written)} down")
    return "; ".join(words)


def _thickness(level: LevelSpec, result: RunResult | None) -> float:
    """Links that carry more are thicker."""
    counts: Mapping[str, int] = {}
    if result is not None:
        counts = {name: bytes_moved(each) for name, each in result.memory.items()}
    most = max(counts.values(), default=0)
    return 1.2 + 9 * counts.get(level.name, 0) / most if most else 1.2


def _unit_title(unit: UnitSpec, number: int, shown: int) -> str:
    name = f"{unit.name}[{number}]" if unit.count > 1 else unit.name
    return f"{name} … ×{unit.count}" if number == shown - 1 and unit.count > shown else name


def _count(level: LevelSpec, units: int) -> int:
    """How many instances of a level there are."""
    if level.shared_by == "all" or isinstance(level, DramSpec | StorageSpec):
        return 1
    return -(-units // level.shared_by)


def _instances(level: LevelSpec, units: int, shown: int) -> int:
    return min(_count(level, units), shown)


def _colour(level: LevelSpec) -> str:
    """A pale version of the colour that the level has in every plot."""
    look = LOOKS.get(level.name)
    if look is None:
        return _PLAIN
    red, green, blue = (int(look.colour[i : i + 2], 16) for i in (1, 3, 5))
    pale = (round(255 - 0.3 * (255 - part)) for part in (red, green, blue))
    return "#" + "".join(f"{part:02X}" for part in pale)


def plot_diagram(drawing: Drawing, path: Path | None = None, title: str = "") -> Figure:
    """The same boxes and links as on a page."""
    from matplotlib.patches import FancyBboxPatch

    with canvas((drawing.width / 80, drawing.height / 80 + 0.4), path, layout=None) as figure:
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_xlim(-6, drawing.width + 6)
        axes.set_ylim(drawing.height + 6, -32 if title else -6)
        axes.set_axis_off()
        for link in drawing.links:
            axes.plot(
                [link.x, link.x], [link.top, link.bottom], color="#888888", linewidth=link.thickness * 0.9, zorder=1
            )
            if link.label:
                axes.text(
                    link.x + 8, (link.top + link.bottom) / 2, link.label, fontsize=8, va="center", zorder=3,
                    color="#444444",
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
                )  # fmt: skip
        for box in drawing.boxes:
            style = "round,pad=0,rounding_size=6"
            axes.add_patch(
                FancyBboxPatch(
                    (box.x, box.y),
                    box.width,
                    box.height,
                    boxstyle=style,
                    facecolor=box.colour,
                    edgecolor=FAINT,
                    linewidth=0.9,
                    zorder=2,
                )
            )
            room = int(box.width / 7)
            middle = box.x + box.width / 2
            words = fit_words(box.title, int(box.width / 6))
            axes.text(
                middle,
                box.y + 18,
                words,
                ha="center",
                va="center",
                fontsize=min(9.0, 1.25 * box.width / len(words)),
                fontweight="bold",
                zorder=3,
            )
            detail = fit_words(box.detail, int(room * 1.2))
            axes.text(middle, box.y + 38, detail, ha="center", va="center", fontsize=7.5, color="#444444", zorder=3)
        if title:
            axes.text(0, -18, title, fontsize=11, fontweight="bold", va="center")
    return figure
