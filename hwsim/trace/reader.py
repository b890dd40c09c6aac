"""Traces from outside, streamed: din text, Valgrind lackey text, either of them in gzip, and NumPy archives.

    with open_trace("run.din.gz") as trace:
        for addresses, writes, sizes in trace:
            hierarchy.feed(addresses, writes, sizes)

The form is found out from the content, not from the file's name.

A NumPy archive has `addr` uint64, `write` bool, and optionally `size` (any integers), all of one length.
The arrays are read in step through the zip file, so that neither a stored nor a compressed archive is ever in
memory as a whole. Pickled objects are refused.
"""

from __future__ import annotations

import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from hwsim.errors import TraceError
from hwsim.files import note_input
from hwsim.trace.text_format import DinFormat, LackeyFormat
from hwsim.trace.text_trace import (
    GZIP_MAGIC,
    MAX_ACCESS_BYTES,
    AccessBlock,
    GzipSource,
    PlainSource,
    ReadOptions,
    Source,
    TextFormat,
    TextReader,
    TraceReader,
    quoted,
)

ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
CHUNK_ACCESSES = 1 << 19
MAX_ACCESSES = 10**15
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

    def __iter__(self) -> Iterator[AccessBlock]:
        while self._done < self._length:
            count = min(self._chunk_accesses, self._length - self._done)
            yield self._check(AccessBlock(self._addresses(count), self._writes(count), self._sizes(count)))
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
        if not 0 <= shape[0] <= MAX_ACCESSES:
            self._refuse(f"'{array}' has a length of {shape[0]:,}; it must be from 0 to {MAX_ACCESSES:,}")
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

    def _check(self, chunk: AccessBlock) -> AccessBlock:
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


TraceFormat = Literal["din", "lackey", "npz"]
TEXT_FORMATS: dict[str, TextFormat] = {"din": DinFormat(), "lackey": LackeyFormat()}
STANDARD_INPUT = "-"

_HEAD_BYTES = 1 << 16
_NPY_MAGIC = b"\x93NUMPY"
_KINDS = "din text, Valgrind lackey text (both also in gzip), or .npz"


@contextmanager
def open_trace(
    path: str | Path, form: TraceFormat | None = None, options: ReadOptions | None = None
) -> Iterator[TraceReader]:
    """A reader for a file, or for standard input if the path is `-`; TraceError for what is no trace."""
    name = str(path)
    if name == STANDARD_INPUT:
        reader = _reader("standard input", None, sys.stdin.buffer, form, options or ReadOptions())
        yield reader
        return
    try:
        file_path = Path(path).expanduser()
    except RuntimeError as error:
        raise TraceError(f"{name}: there is no user whose home this could be in") from error
    if file_path.is_dir():
        raise TraceError(f"{name}: this is a folder; give a trace: {_KINDS}")
    try:
        file = file_path.open("rb")
        note_input(file_path)
    except FileNotFoundError as error:
        raise TraceError(f"{name}: no such file") from error
    except (OSError, ValueError) as error:
        raise TraceError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    with file:
        reader = _reader(name, file_path, file, form, options or ReadOptions())
        try:
            yield reader
        finally:
            reader.close()


def _reader(
    name: str, path: Path | None, file: BinaryIO, form: TraceFormat | None, options: ReadOptions
) -> TraceReader:
    head = PlainSource(name, file).read(_HEAD_BYTES)
    if not head:
        raise TraceError(f"{name}: the file is empty; a trace is {_KINDS}")
    if head.startswith(ZIP_MAGICS):
        if form not in (None, "npz"):
            raise TraceError(f"{name}: this is an .npz archive, not {form} text")
        if path is None or not file.seekable():
            raise TraceError(f"{name}: an .npz archive cannot be read from a pipe; give the file's name")
        return NpzReader(name, path, options)
    if form == "npz":
        raise TraceError(f"{name}: this is not an .npz archive; numpy.savez(…, addr=…, write=…) makes one")
    source: Source = PlainSource(name, file, head)
    if head.startswith(GZIP_MAGIC):
        source = GzipSource(source)
        head = source.look(_HEAD_BYTES)
    chosen = TEXT_FORMATS[form] if form else detect(name, head, source.damage)
    total = path.stat().st_size if path is not None and path.is_file() else None
    return TextReader(name, source, chosen, options, total)


def detect(name: str, head: bytes, damage: str | None = None) -> TextFormat:
    """The form of a text, from its first line that is not blank."""
    if head.startswith(_NPY_MAGIC):
        raise TraceError(f"{name}: this is a single .npy array; save addr and write together with numpy.savez")
    if head.startswith(ZIP_MAGICS):
        raise TraceError(f"{name}: an .npz archive inside gzip is not read; unpack it first")
    for number, line in enumerate(head.split(b"\n"), start=1):
        text = line.decode("utf-8", "replace").strip()
        if not text:
            continue
        if any(byte < 32 and byte not in b"\t\r\f" for byte in line):
            raise TraceError(f"{name}: a binary file; a trace is {_KINDS}")
        first = text.split()[0]
        if first[:2] in ("==", "--", "**") or first in ("I", "L", "S", "M"):
            return TEXT_FORMATS["lackey"]
        if first.isdigit() or first in ("r", "w", "i", "m"):
            return TEXT_FORMATS["din"]
        raise TraceError(
            f"{name}:{number}: {quoted(text)} begins neither a din line ('0 7ffe10': label, address) "
            "nor a lackey line (' L 7ffe10,8')"
        )
    if damage:
        raise TraceError(f"{name}:1: {damage}; no whole line could be read")
    raise TraceError(f"{name}: there are no accesses in this trace: it is empty")
