"""Where a plot goes: checked before there is anything to draw, and written without dates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hwsim.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Figure  # noqa: PLC0414 - others name the type from here

__all__ = ["Figure", "check_plot_file", "is_plot_file", "save_plot"]

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
    try:
        figure.savefig(path, bbox_inches="tight", pad_inches=0.15, metadata=_NO_DATE[path.suffix.lower()])
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error
