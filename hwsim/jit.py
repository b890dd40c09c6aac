"""``compiled``: Numba's njit, imported only when compiled code is called, with a cache that is never stale.

Importing Numba takes longer than many a run, and most commands replay nothing. So a decorated function is a stand-in
until one of them is called; then Numba is imported, and all of them are replaced by Numba's functions, in every module
whose compiled code refers to them: Numba looks such names up when it compiles.

Numba caches a compiled function by the time stamp of its own file, and does not notice when a function that
it calls has changed elsewhere. So the cache folder is named after the contents of all compiled modules, and
lives in the user's cache folder, where it can be written also when hwsim is installed system-wide. A folder that others
may write in is not used (see `private`); without one, each process compiles for itself.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Callable
from functools import cache, update_wrapper
from pathlib import Path
from threading import Lock
from typing import Any

from hwsim.private import private_folder, trouble, why_none

Function = Callable[..., Any]
"""Numba finds the types out itself, so that compiled functions may go without annotations."""


def compiled(function: Function) -> Function:
    """Compile on first use, and keep the machine code for the next process."""
    return StandIn(function, cached=True, nogil=True)


def inlined(function: Function) -> Function:
    """Compile as a part of whoever calls it; arrays may be passed at no cost in a hot loop."""
    return StandIn(function, inline="always")


def called(function: Function) -> Function:
    """Compile as a function of its own that compiled code calls: for what is long and happens seldom."""
    return StandIn(function)


class StandIn:
    """A function that becomes Numba's when it is called for the first time."""

    def __init__(self, function: Function, *, cached: bool = False, **options: Any) -> None:
        self.py_func = function
        self._cached = cached
        self._options = options
        self._real: Function | None = None
        update_wrapper(self, function)
        _WAITING.append(self)

    def __call__(self, *arguments: Any) -> Any:
        if self._real is None:
            _replace_all()
        real = self._real
        assert real is not None
        return real(*arguments)

    def make_real(self) -> None:
        """Hand the function to Numba."""
        import numba

        self._real = real = numba.njit(**self._options)(self.py_func)
        folder = _cache_folder() if self._cached else None
        if folder is not None:
            from hwsim.compiled_cache import CompiledCache

            real._cache = CompiledCache(self.py_func, folder)

    def put_real(self) -> None:
        """Let the function's module refer to Numba's functions, its own and those that it has imported."""
        names = self.py_func.__globals__
        for name, value in list(names.items()):
            if isinstance(value, StandIn):
                names[name] = value._real


_WAITING: list[StandIn] = []
"""Those whose modules were imported since Numba was last needed."""

_TURN = Lock()
"""One thread at a time makes stand-ins real."""


def _replace_all() -> None:
    """Make every stand-in real, first all of them, then where they are referred to."""
    with _TURN:
        waiting = _WAITING[:]
        for one in waiting:
            one.make_real()
        for one in waiting:
            one.put_real()
        del _WAITING[: len(waiting)]


def why_not_kept() -> str:
    """Why compiled code is not kept for the next process; nothing where it is, or where none was needed."""
    if not _cache_folder.cache_info().currsize or _cache_folder() is not None:
        return ""
    chosen = os.environ.get(_CHOSEN, "")
    return f"{chosen}: {trouble(Path(chosen)) or 'it cannot be written'}" if chosen else why_none()


_CHOSEN = "NUMBA_CACHE_DIR"
"""Numba's own variable: a folder for compiled code that the user chooses."""


@cache
def _cache_folder() -> Path | None:
    """A folder of the user's own, or none: what lies in a folder of others could be code of theirs."""
    chosen = os.environ.get(_CHOSEN, "")
    if not chosen:
        return private_folder(_cache_name())
    folder = Path(chosen).absolute() / _cache_name()
    return None if trouble(folder, make=True) or not os.access(folder, os.W_OK | os.X_OK) else folder


def _cache_name() -> str:
    """Of the compiler, this computer, and the contents of all compiled modules."""
    import numba

    digest = hashlib.sha256(sys.version.encode())
    here = Path(__file__).parent
    for path in sorted(here.rglob("*.py")):
        source = path.read_bytes()
        if b"hwsim.jit import" in source:
            digest.update(source)
    return f"compiled-{numba.__version__}-{platform.machine()}-{digest.hexdigest()[:12]}"
