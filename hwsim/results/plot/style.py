"""How plots look: colours that colour-blind readers tell apart, hatches for grey, one look per thing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


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


@contextmanager
def plot_style() -> Iterator[None]:
    """Quiet axes and readable type, for the plots made inside."""
    import matplotlib

    settings: dict[Any, Any] = {
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
    with matplotlib.rc_context(settings):
        yield
