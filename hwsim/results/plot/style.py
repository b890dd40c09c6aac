"""How plots look and where they go: one look per thing, lines told apart in grey as well, files without dates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hwsim.errors import InputError
from hwsim.files import written
from hwsim.text import HIDDEN, visible

if TYPE_CHECKING:
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
