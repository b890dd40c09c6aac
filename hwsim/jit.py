"""``compiled``: functions that Numba compiles once on a computer, and that later processes call without Numba.

Importing Numba takes longer than many a run. So a decorated function is a stand-in: when it is called, its machine
code is looked for in the user's cache folder and in the wheel by the types of the arguments (see `machine_code`), and
only where there is none is Numba imported, and the function compiled together with those that it calls.

Code is kept under a digest of the sources of all compiled modules that a function reaches, and of the numbers that they
import: it is never stale. It lives in the user's cache folder, where it can be written also when hwsim is installed
system-wide. A folder that others may write in is not used (see `private`); without one, each process compiles for
itself.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Callable
from functools import cache, cached_property, update_wrapper
from pathlib import Path
from threading import RLock
from types import FunctionType
from typing import Any

from hwsim.files import private_folder, trouble, why_none

Function = Callable[..., Any]
"""Numba finds the types out itself, so that compiled functions may go without annotations."""


def compiled(function: Function) -> Function:
    """Compile on first use, and keep the machine code. Takes numbers and arrays, allocates nothing, returns numbers."""
    return StandIn(function, kept=True)


def inlined(function: Function) -> Function:
    """Compile as a part of whoever calls it; arrays may be passed at no cost in a hot loop."""
    return StandIn(function, forceinline=True)


def called(function: Function) -> Function:
    """Compile as a function of its own that compiled code calls."""
    return StandIn(function)


class StandIn:
    """A function in Python that becomes machine code when it is called."""

    def __init__(self, function: Function, *, kept: bool = False, **options: Any) -> None:
        self.py_func = function
        self._kept = kept
        self._options = options
        self._codes: dict[tuple[Any, ...], Function] = {}
        self._inner: Any = None
        update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        if not self._kept:  # for tests; compiled code calls it directly
            with _TURN:
                dispatcher = self._dispatcher(_names_for_numba(self.py_func.__globals__))
            return dispatcher(*arguments)
        from hwsim.machine_code import take_apart

        kinds: list[Any] = []
        words: list[Any] = []
        take_apart(arguments, kinds, words)
        code = self._codes.get(tuple(kinds)) or self._find(tuple(kinds), arguments)
        return code(words)

    def _find(self, kinds: tuple[Any, ...], arguments: tuple[Any, ...]) -> Function:
        from hwsim.machine_code import find_code

        function = self.py_func
        name = f"{function.__module__}.{function.__qualname__}"
        with _TURN:
            if kinds not in self._codes:
                found = find_code(name, self._source, kinds, _cache_folder(), lambda: self._build(arguments))
                self._codes[kinds] = found
        return self._codes[kinds]

    def _build(self, arguments: tuple[Any, ...]) -> Any:
        """What Numba makes of the function for such arguments."""
        import numba

        dispatcher = self.inner
        types = tuple(numba.typeof(each) for each in arguments)
        dispatcher.compile(types)
        return dispatcher.overloads[types]

    @property
    def inner(self) -> Any:
        """Numba's function without a door to Python, as compiled code calls it."""
        names = _names_for_numba(self.py_func.__globals__)  # makes this one as well, if it is one of them
        if self._inner is None:
            self._inner = self._dispatcher(names, no_cpython_wrapper=True, no_cfunc_wrapper=True)
        return self._inner

    def _dispatcher(self, names: dict[str, Any], **options: Any) -> Any:
        import numba

        function = self.py_func
        twin = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
        twin.__module__, twin.__qualname__ = function.__module__, function.__qualname__
        return numba.njit(error_model="numpy", **self._options, **options)(twin)

    @cached_property
    def _source(self) -> str:
        """A digest of everything that the machine code depends on."""
        code = self.py_func.__code__  # its bytes are Python's, and count only where there is no text
        digest = hashlib.sha256(f"line {code.co_firstlineno} ".encode())
        digest.update(b"" if Path(code.co_filename).is_file() else code.co_code)
        waiting, seen = [self.py_func], set()
        while waiting:
            function = waiting.pop()
            if id(function.__globals__) in seen:
                continue
            seen.add(id(function.__globals__))
            digest.update(_contents(function.__code__.co_filename))
            for name, value in sorted(function.__globals__.items()):
                if isinstance(value, StandIn):
                    waiting.append(value.py_func)
                elif not name.startswith("__") and _is_constant(value):
                    digest.update(f"{name}={value!r} ".encode())
        return digest.hexdigest()


_TURN = RLock()
"""One thread at a time compiles."""

_NAMES: dict[int, dict[str, Any]] = {}
"""By the globals of a module: the same with Numba's functions instead of stand-ins."""


def _names_for_numba(names: dict[str, Any]) -> dict[str, Any]:
    found = _NAMES.get(id(names))
    if found is None:
        found = _NAMES[id(names)] = dict(names)
        for name, value in names.items():
            if isinstance(value, StandIn):
                found[name] = value.inner
    return found


def _is_constant(value: object) -> bool:
    """Numbers of Python or NumPy, and tuples of them: what Numba puts into the code."""
    if isinstance(value, tuple):
        return all(_is_constant(each) for each in value)
    return isinstance(value, int | float | str) or type(value).__module__ == "numpy"


@cache
def _contents(file: str) -> bytes:
    try:
        return hashlib.sha256(Path(file).read_bytes()).digest()
    except OSError:
        return file.encode()


def why_not_kept() -> str:
    """Why compiled code is not kept for the next process; nothing where it is, or where none was needed."""
    if not _cache_folder.cache_info().currsize or _cache_folder() is not None:
        return ""
    chosen = os.environ.get(_CHOSEN, "")
    return f"{chosen}: {trouble(Path(chosen)) or 'it cannot be written'}" if chosen else why_none()


_CHOSEN = "NUMBA_CACHE_DIR"
"""Numba's own variable: a folder for compiled code that the user chooses."""

_FOLDER = f"code-{platform.machine()}-{sys.version_info.major}.{sys.version_info.minor}"


@cache
def _cache_folder() -> Path | None:
    """A folder of the user's own, or none: what lies in a folder of others could be code of theirs."""
    chosen = os.environ.get(_CHOSEN, "")
    if not chosen:
        return private_folder(_FOLDER)
    folder = Path(chosen).absolute() / _FOLDER
    return None if trouble(folder, make=True) or not os.access(folder, os.W_OK | os.X_OK) else folder
