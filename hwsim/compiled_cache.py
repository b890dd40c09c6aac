"""Machine code that outlives the process: one file for each function and signature, each with a digest of itself.

Numba's own cache fails for ever on a file that was cut off, and runs one whose bytes were flipped. Here a file that is
not what was written counts as none: it is compiled again and replaced. What cannot be written is not kept, and nobody
minds. The folder is for the caller to choose; its files are pickles, so it must be the user's own (see `private`).
"""

from __future__ import annotations

import hashlib
import os
import pickle
import secrets
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.serialize import dumps

_DIGEST_BYTES = 32


class CompiledCache(FunctionCache):  # type: ignore[misc]
    """What Numba asks for compiled code, in place of its own cache. Nothing that happens to a file is an error."""

    def __init__(self, function: Any, folder: Path) -> None:
        self._name = repr(function)
        self._py_func = function
        self._impl = CompileResultCacheImpl.__new__(CompileResultCacheImpl)  # reduces and rebuilds; looks for no folder
        self._cache_path = str(folder)
        self._folder = folder
        self._base = f"{function.__module__}.{function.__qualname__}-{function.__code__.co_firstlineno}"
        self._source = _source_digest(function.__code__.co_filename)
        self.enable()

    def flush(self) -> None:
        for file in self._folder.glob(f"{self._base}-*"):
            file.unlink(missing_ok=True)

    def _load_overload(self, sig: Any, target_context: Any) -> Any:
        key = self._index_key(sig, target_context.codegen())
        try:
            data = (self._folder / self._file_name(key)).read_bytes()
        except OSError:
            return None
        payload = data[_DIGEST_BYTES:]
        if hashlib.sha256(payload).digest() != data[:_DIGEST_BYTES]:
            return None
        known, reduced = pickle.loads(payload)
        return self._impl.rebuild(target_context, reduced) if known == key else None

    def _save_overload(self, sig: Any, data: Any) -> None:
        if any(not lifted.can_cache for lifted in data.lifted) or data.library.has_dynamic_globals:
            return
        key = self._index_key(sig, data.codegen)
        payload = dumps((key, self._impl.reduce(data)))
        file = self._folder / self._file_name(key)
        fresh = file.with_name(f".{secrets.token_hex(6)}.new")
        try:
            fresh.write_bytes(hashlib.sha256(payload).digest() + payload)
            fresh.replace(file)
        except OSError:  # a full disk, a folder that has gone: the next process compiles again
            with suppress(OSError):
                fresh.unlink(missing_ok=True)

    def _file_name(self, key: object) -> str:
        text = hashlib.sha256(f"{key!r}{self._source}".encode()).hexdigest()[:24]
        return f"{self._base}-{text}{os.extsep}code".replace("<", "").replace(">", "")


@lru_cache(maxsize=256)
def _source_digest(file: str) -> str:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return file
