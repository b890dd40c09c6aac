"""Where the bytes of a text trace come from: a file, standard input, or either of them through gzip."""

from __future__ import annotations

import zlib
from typing import BinaryIO, Protocol

from hwsim.errors import TraceError

GZIP_MAGIC = b"\x1f\x8b"
_COMPRESSED_BYTES = 1 << 16
_GZIP_WINDOW = 31
"""zlib's code for a gzip header and trailer around the data; the check sum is verified."""


class Source(Protocol):
    """Bytes, once from start to end."""

    @property
    def position(self) -> int:
        """Bytes of the file read so far: of the compressed file, where it is compressed."""
        ...

    @property
    def damage(self) -> str | None:
        """Why the rest cannot be read, where the bytes ended too early."""
        ...

    def read(self, count: int) -> bytes:
        """At most `count` bytes; none at the end."""
        ...


class PlainSource:
    """A file as it is; what was looked at to find out its kind comes first."""

    damage: str | None = None

    def __init__(self, name: str, file: BinaryIO, head: bytes = b"") -> None:
        self.position = 0
        self._name = name
        self._file = file
        self._head = head

    def read(self, count: int) -> bytes:
        data, self._head = self._head[:count], self._head[count:]
        try:
            data = data or self._file.read(count)
        except OSError as error:
            raise TraceError(f"{self._name}: cannot be read: {error.strerror}") from error
        self.position += len(data)
        return data


class GzipSource:
    """The text inside a gzip file of one or more members; what comes before damage is given out."""

    def __init__(self, inner: Source) -> None:
        self.damage: str | None = None
        self._inner = inner
        self._member = zlib.decompressobj(_GZIP_WINDOW)
        self._waiting = b""

    @property
    def position(self) -> int:
        return self._inner.position

    def read(self, count: int) -> bytes:
        pieces: list[bytes] = []
        while count > 0 and self.damage is None and self._find_member():
            self._waiting = self._waiting or self._inner.read(_COMPRESSED_BYTES)
            at_end = not self._waiting
            try:
                piece = self._member.decompress(self._waiting, count)
            except zlib.error as error:
                self.damage = f"the gzip data is damaged from about here on ({_reason(error)})"
                break
            self._waiting = self._member.unconsumed_tail or self._member.unused_data
            if at_end and not piece and not self._member.eof:
                self.damage = "the gzip data is cut short here"
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)

    def _find_member(self) -> bool:
        """Whether there is anything left to unpack; begins the next member when one is done."""
        if not self._member.eof:
            return True
        self._waiting = self._waiting.lstrip(b"\0")  # tapes and some tools pad with zeros
        while not self._waiting and (block := self._inner.read(_COMPRESSED_BYTES)):
            self._waiting = block.lstrip(b"\0")
        if self._waiting:
            self._member = zlib.decompressobj(_GZIP_WINDOW)
        return bool(self._waiting)


def _reason(error: zlib.error) -> str:
    return str(error).rpartition(": ")[2]
