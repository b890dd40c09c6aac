"""Text traces: bytes from a file, standard input or gzip in, accesses out; the compiled parsers do the work.

A block ends where its last whole line ends; the rest waits for the next block. So no line is looked at twice,
and a trace of any length needs the memory of one block.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from string import hexdigits
from typing import BinaryIO, NamedTuple, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from hwsim.errors import TraceError

MAX_ACCESS_BYTES = 4096
"""The largest single access that a trace may contain: a page."""


class AccessBlock(NamedTuple):
    """A stretch of a trace, in order."""

    addresses: NDArray[np.uint64]
    writes: NDArray[np.bool_]
    sizes: NDArray[np.uint16]

    def part(self, start: int, stop: int) -> AccessBlock:
        return AccessBlock(self.addresses[start:stop], self.writes[start:stop], self.sizes[start:stop])


@dataclass(frozen=True)
class ReadOptions:
    """What a reader needs to know besides the file."""

    access_bytes: int = 4
    """Size of an access whose size the trace does not tell."""
    address_limit: int = (1 << 64) - 2 * MAX_ACCESS_BYTES
    """Addresses from here on are refused."""


class TraceReader(Protocol):
    """A trace that is read once, from its start to its end; never more than a chunk of it is in memory."""

    @property
    def format(self) -> str:
        """`din`, `lackey` or `npz`."""
        ...

    @property
    def instructions(self) -> int:
        """Instruction fetches met so far; they are left out."""
        ...

    @property
    def position(self) -> int:
        """Bytes of the file read so far."""
        ...

    @property
    def total_bytes(self) -> int | None:
        """Bytes of the file, where that is known."""
        ...

    def __iter__(self) -> Iterator[AccessBlock]: ...

    def close(self) -> None: ...


_BASES = {10: "decimal", 16: "hexadecimal"}


def explain_address(field: str, limit: int) -> str | None:
    """None where nothing is wrong."""
    digits = field[2:] if field[:2].lower() == "0x" else field
    if not digits or any(character not in hexdigits for character in digits):
        return f"{quoted(field, 40)} is not a hexadecimal address"
    if len(digits) > 16:
        return f"address {quoted(field, 40)} has more than 16 digits"
    if int(digits, 16) >= limit:
        return f"address {field} is too large; it must be less than {limit:#x}"
    return None


def explain_size(field: str, base: int) -> str | None:
    """None where nothing is wrong."""
    digits = field[2:] if base == 16 and field[:2].lower() == "0x" else field
    allowed = hexdigits if base == 16 else "0123456789"
    if not digits or any(character not in allowed for character in digits):
        return f"{quoted(field, 40)} is not a {_BASES[base]} size in bytes"
    size = int(digits, base) if len(digits) <= 64 else MAX_ACCESS_BYTES + 1
    if not 1 <= size <= MAX_ACCESS_BYTES:
        return f"size {quoted(field, 40)} is not from 1 to {MAX_ACCESS_BYTES} bytes"
    return None


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
        self._inner = inner
        self._head = b""
        self._damage: str | None = None
        self._member = zlib.decompressobj(_GZIP_WINDOW)
        self._waiting = b""

    @property
    def position(self) -> int:
        return self._inner.position

    @property
    def damage(self) -> str | None:
        return None if self._head else self._damage

    def look(self, count: int) -> bytes:
        """The first bytes, which are given out again."""
        self._head = self.read(count)
        return self._head

    def read(self, count: int) -> bytes:
        if self._head:
            data, self._head = self._head[:count], self._head[count:]
            return data
        pieces: list[bytes] = []
        while count > 0 and self._damage is None and self._find_member():
            self._waiting = self._waiting or self._inner.read(_COMPRESSED_BYTES)
            at_end = not self._waiting
            try:
                piece = self._member.decompress(self._waiting, count)
            except zlib.error as error:
                self._damage = f"the gzip data is damaged from about here on ({_reason(error)})"
                break
            self._waiting = self._member.unconsumed_tail or self._member.unused_data
            if at_end and not piece and not self._member.eof:
                self._damage = "the gzip data is cut short here"
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


BLOCK_BYTES = 1 << 22
LONGEST_LINE = 1 << 16
SHORTEST_ACCESS = 3
"""Bytes of text per access, at least: a lackey line such as `M 1,1`, with its newline, makes two accesses."""

SPACE, TAB, RETURN, NEWLINE = (np.uint8(ord(character)) for character in " \t\r\n")
NO_DIGIT = np.uint8(255)
HEX_DIGIT = np.full(256, NO_DIGIT, np.uint8)
for _character in hexdigits:
    HEX_DIGIT[ord(_character)] = int(_character, 16)

Parsed = tuple[np.int64, np.int64, np.int64, np.int64]
"""Accesses, instructions, whole lines before a bad line or the end, and where the bad line starts (or -1)."""
Parse = Callable[
    [NDArray[np.uint8], np.uint64, np.uint16, NDArray[np.uint64], NDArray[np.bool_], NDArray[np.uint16]],
    Parsed,
]
"""(text, address limit, default size, addresses, writes, sizes): the last three are filled."""


@dataclass(frozen=True)
class TextFormat:
    """A form of text trace."""

    name: str
    parse: Parse
    """The compiled parser."""
    explain: Callable[[str, ReadOptions], str]
    """What is wrong with a line that the parser refused, and what is expected."""


class TextReader:
    """A din or lackey trace."""

    def __init__(
        self,
        name: str,
        source: Source,
        form: TextFormat,
        options: ReadOptions,
        total_bytes: int | None = None,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self.format = form.name
        self.instructions = 0
        self.total_bytes = total_bytes
        self._name = name
        self._source = source
        self._form = form
        self._options = options
        self._block_bytes = block_bytes
        self._lines = 0
        self._accesses = 0

    @property
    def position(self) -> int:
        return self._source.position

    def close(self) -> None:
        """Nothing to do: the file belongs to whoever opened it."""

    def __iter__(self) -> Iterator[AccessBlock]:
        rest = b""
        while block := self._source.read(self._block_bytes):
            end = block.rfind(b"\n") + 1
            if end:
                yield from self._parse(rest + block[:end] if rest else memoryview(block)[:end])
                rest = block[end:]
            else:
                rest += block
            if len(rest) > LONGEST_LINE:
                expected = self._form.explain("", self._options)
                self._refuse(f"this line has more than {LONGEST_LINE:,} characters; {expected}")
        self._check_end(rest)

    def _parse(self, text: bytes | memoryview) -> Iterator[AccessBlock]:
        most = len(text) // SHORTEST_ACCESS + 1
        chunk = AccessBlock(np.empty(most, np.uint64), np.empty(most, np.bool_), np.empty(most, np.uint16))
        options = self._options
        accesses, instructions, lines, bad = self._form.parse(
            np.frombuffer(text, np.uint8),
            np.uint64(options.address_limit),
            np.uint16(options.access_bytes),
            *chunk,
        )
        self._lines += int(lines)
        if bad >= 0:
            line = bytes(text[bad : bad + LONGEST_LINE]).split(b"\n", 1)[0]
            self._refuse(self._form.explain(line.decode("utf-8", "replace"), options))
        self._accesses += int(accesses)
        self.instructions += int(instructions)
        if accesses:
            yield chunk.part(0, int(accesses))

    def _check_end(self, rest: bytes) -> None:
        if self._source.damage:
            so_far = f"{self.position:,} bytes of the file and {self._accesses:,} accesses"
            self._refuse(f"{self._source.damage}, after {so_far}")
        if rest.strip():
            shown = quoted(rest.decode("utf-8", "replace"))
            self._refuse(
                f"the file ends in the middle of this line, {shown}: the trace is cut short (or lacks its last newline)"
            )
        if self._accesses == 0:
            fetches = f"; only {self.instructions:,} instruction fetches" if self.instructions else ""
            raise TraceError(f"{self._name}: there are no reads and writes in this trace{fetches}")

    def _refuse(self, message: str) -> NoReturn:
        raise TraceError(f"{self._name}:{self._lines + 1}: {message}")


def quoted(text: str, longest: int = 60) -> str:
    """Part of a trace, fit for a message."""
    text = text.strip()
    return repr(text if len(text) <= longest else text[:longest] + "…")
