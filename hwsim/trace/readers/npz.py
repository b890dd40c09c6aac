"""A NumPy archive: `addr` uint64, `write` bool, and optionally `size` (any integers), all of one length.

The arrays are read in step through the zip file, so that neither a stored nor a compressed archive is ever in
memory as a whole. Pickled objects are refused.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from hwsim.errors import TraceError
from hwsim.trace.readers.accesses import MAX_ACCESS_BYTES, Accesses, ReadOptions

ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
CHUNK_ACCESSES = 1 << 19
_EXPECTED = "a trace archive has addr (uint64), write (bool) and optionally size (integers)"
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError)
"""What zipfile and NumPy raise for archives that are damaged, encrypted, or packed in unknown ways."""


class NpzReader:
    """A trace in an .npz file."""

    format = "npz"
    instructions = 0

    def __init__(self, name: str, path: Path, options: ReadOptions, chunk_accesses: int = CHUNK_ACCESSES) -> None:
        self.total_bytes = path.stat().st_size
        self._name = name
        self._options = options
        self._chunk_accesses = chunk_accesses
        self._done = 0
        try:
            self._archive = zipfile.ZipFile(path)
        except _DAMAGE as error:
            raise TraceError(f"{name}: the archive cannot be read, it may be cut short: {error}") from error
        members = self._archive.namelist()
        for array in ("addr", "write"):
            if f"{array}.npy" not in members:
                found = ", ".join(member.removesuffix(".npy") for member in members[:10]) or "nothing"
                self._refuse(f"there is no array '{array}', only {found}; {_EXPECTED}")
        self._columns = {array: self._open(array) for array in ("addr", "write", "size") if f"{array}.npy" in members}
        self._length = self._columns["addr"].length
        for array, column in self._columns.items():
            if column.length != self._length:
                self._refuse(f"'{array}' has {column.length:,} entries, but 'addr' has {self._length:,}")
        if self._length == 0:
            self._refuse("there are no accesses in this trace; all arrays are empty")

    @property
    def position(self) -> int:
        return self.total_bytes * self._done // self._length

    def __iter__(self) -> Iterator[Accesses]:
        while self._done < self._length:
            count = min(self._chunk_accesses, self._length - self._done)
            yield self._check(Accesses(self._addresses(count), self._writes(count), self._sizes(count)))
            self._done += count

    def close(self) -> None:
        self._archive.close()

    def _open(self, array: str) -> _Column:
        try:
            stream = self._archive.open(f"{array}.npy")
            version = np.lib.format.read_magic(stream)
            read_header = (
                np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            )
            shape, _, dtype = read_header(stream)
        except _DAMAGE as error:
            self._refuse(f"'{array}' cannot be read: {error}")
        if dtype.hasobject:
            self._refuse(f"'{array}' holds pickled Python objects, which are not read; {_EXPECTED}")
        allowed = {
            "addr": dtype.kind == "u" and dtype.itemsize == 8,
            "write": dtype.kind == "b",
            "size": dtype.kind in "iu",
        }
        if not allowed[array]:
            self._refuse(f"'{array}' is {dtype}; {_EXPECTED}")
        if len(shape) != 1:
            self._refuse(f"'{array}' has {len(shape)} dimensions; {_EXPECTED}, each with one dimension")
        return _Column(array, stream, dtype, shape[0])

    def _addresses(self, count: int) -> NDArray[np.uint64]:
        return self._read("addr", count).astype(np.uint64, copy=False)

    def _writes(self, count: int) -> NDArray[np.bool_]:
        return np.not_equal(self._read("write", count).view(np.uint8), 0)

    def _sizes(self, count: int) -> NDArray[np.uint16]:
        if "size" not in self._columns:
            return np.full(count, self._options.access_bytes, np.uint16)
        sizes = self._read("size", count)
        wrong = (sizes < 1) | (sizes > MAX_ACCESS_BYTES)
        if wrong.any():
            first = int(np.argmax(wrong))
            self._refuse(f"size[{self._done + first}] is {sizes[first]}; it must be from 1 to {MAX_ACCESS_BYTES} bytes")
        return sizes.astype(np.uint16)

    def _check(self, chunk: Accesses) -> Accesses:
        wrong = chunk.addresses >= np.uint64(self._options.address_limit)
        if wrong.any():
            first = int(np.argmax(wrong))
            address, limit = int(chunk.addresses[first]), self._options.address_limit
            self._refuse(f"addr[{self._done + first}] is {address:#x}, too large; it must be less than {limit:#x}")
        return chunk

    def _read(self, array: str, count: int) -> NDArray[Any]:
        column = self._columns[array]
        wanted = count * column.dtype.itemsize
        try:
            data = column.stream.read(wanted)
        except _DAMAGE as error:
            self._refuse(f"'{array}' is damaged after entry {self._done:,}: {error}")
        if len(data) != wanted:
            self._refuse(f"'{array}' is cut short: it ends before entry {self._done + count:,} of {column.length:,}")
        return np.frombuffer(data, column.dtype)

    def _refuse(self, message: str) -> NoReturn:
        self._archive.close()
        raise TraceError(f"{self._name}: {message}")


class _Column:
    """One array, read from its start to its end."""

    def __init__(self, name: str, stream: IO[bytes], dtype: np.dtype[np.generic], length: int) -> None:
        self.name = name
        self.stream = stream
        self.dtype = dtype
        self.length = length
