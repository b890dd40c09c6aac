"""The model version: changes whenever a number could, so that a stored point is never taken for a new one."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from hwsim import __version__

_PACKAGE = Path(__file__).resolve().parent.parent
_SILENT = ("cli", "sweep", "validation", "results/plot", "results/html", "data")
"""What no number comes from: these may change without making stored points old."""


@cache
def model_version() -> str:
    """hwsim's version, and a digest of the code that makes numbers."""
    digest = hashlib.sha256()
    silent = tuple(_PACKAGE / part for part in _SILENT)
    files = [file for file in _PACKAGE.rglob("*.py") if not any(file.is_relative_to(part) for part in silent)]
    for file in sorted(files):
        digest.update(file.relative_to(_PACKAGE).as_posix().encode())
        digest.update(file.read_bytes())
    return f"{__version__}+{digest.hexdigest()[:12]}"
