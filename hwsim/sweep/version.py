"""The model version: changes whenever a number could, so that a stored point is never taken for a new one."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from hwsim import __version__

_PACKAGE = Path(__file__).resolve().parent.parent
_PARTS = ("numerics", "trace", "kernels", "hardware", "engine", "spec", "energy.py", "units.py", "api.py")
_RESULTS = ("assemble.py", "attribution.py", "formula.py", "result.py", "verify.py", "conflict.py")
"""What numbers come from. Words, plots, sweeps and the command line may change without touching them."""


@cache
def model_version() -> str:
    """hwsim's version, and a digest of the code that makes numbers."""
    digest = hashlib.sha256()
    roots = [_PACKAGE / part for part in _PARTS] + [_PACKAGE / "results" / name for name in _RESULTS]
    files = [file for root in roots for file in (root.rglob("*.py") if root.is_dir() else [root])]
    for file in sorted(files):
        digest.update(file.relative_to(_PACKAGE).as_posix().encode())
        digest.update(file.read_bytes())
    return f"{__version__}+{digest.hexdigest()[:12]}"
