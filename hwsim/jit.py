"""``compiled``: Numba's njit with a cache that is never stale.

Numba caches a compiled function by the time stamp of its own file, and does not notice when a function that
it calls has changed elsewhere. So the cache folder is named after the contents of all compiled modules, and
lives in the user's cache folder, where it can be written also when hwsim is installed system-wide.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, cast

import numba
from numba.core import config

Function = Callable[..., Any]
"""Numba finds the types out itself, so that compiled functions may go without annotations."""


def compiled(function: Function) -> Function:
    """Compile on first use, and keep the machine code for the next process."""
    saved = config.CACHE_DIR
    config.CACHE_DIR = saved or str(_cache_folder())
    try:
        return cast(Function, numba.njit(cache=True, nogil=True)(function))
    finally:
        config.CACHE_DIR = saved


def inlined(function: Function) -> Function:
    """Compile as a part of whoever calls it; arrays may be passed at no cost in a hot loop."""
    return cast(Function, numba.njit(inline="always")(function))


def called(function: Function) -> Function:
    """Compile as a function of its own that compiled code calls: for what is long and happens seldom."""
    return cast(Function, numba.njit(function))


@cache
def _cache_folder() -> Path:
    digest = hashlib.sha256()
    here = Path(__file__).parent
    for path in sorted(here.rglob("*.py")):
        source = path.read_bytes()
        if b"hwsim.jit import" in source:
            digest.update(source)
    name = f"numba-{numba.__version__}-{platform.machine()}-{digest.hexdigest()[:12]}"
    users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for root in (users, Path(tempfile.gettempdir())):
        folder = root / "hwsim" / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        return folder
    raise OSError("neither the user's cache folder nor the temporary folder can be written")
