"""Traces from outside, streamed: din text, Valgrind lackey text, either of them in gzip, and NumPy archives.

    with open_trace("run.din.gz") as trace:
        for addresses, writes, sizes in trace:
            hierarchy.feed(addresses, writes, sizes)

The form is found out from the content, not from the file's name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

from hwsim.errors import TraceError
from hwsim.trace.readers.accesses import ReadOptions, TraceReader
from hwsim.trace.readers.din import DinFormat
from hwsim.trace.readers.lackey import LackeyFormat
from hwsim.trace.readers.npz import ZIP_MAGICS, NpzReader
from hwsim.trace.readers.source import GZIP_MAGIC, GzipSource, PlainSource, Source
from hwsim.trace.readers.text import TextFormat, TextReader, quoted

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
    file_path = Path(path).expanduser()
    if file_path.is_dir():
        raise TraceError(f"{name}: this is a folder; give a trace: {_KINDS}")
    try:
        file = file_path.open("rb")
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
        packed = GzipSource(source)
        head = packed.read(_HEAD_BYTES)
        source = _Again(head, packed)
    chosen = TEXT_FORMATS[form] if form else detect(name, head, source.damage)
    total = path.stat().st_size if path is not None and path.is_file() else None
    return TextReader(name, source, chosen, options, total)


class _Again:
    """A source from its start, although its head has been looked at."""

    def __init__(self, head: bytes, rest: Source) -> None:
        self._head = head
        self._rest = rest

    @property
    def position(self) -> int:
        return self._rest.position

    @property
    def damage(self) -> str | None:
        return None if self._head else self._rest.damage

    def read(self, count: int) -> bytes:
        data, self._head = self._head[:count], self._head[count:]
        return data or self._rest.read(count)


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
