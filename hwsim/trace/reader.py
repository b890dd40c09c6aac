"""Traces from outside, streamed: din text, Valgrind lackey text, either of them in gzip, and NumPy archives.

    with open_trace("run.din.gz") as trace:
        for addresses, writes, sizes in trace:
            hierarchy.feed(addresses, writes, sizes)

The form is found out from the content, not from the file's name.

A NumPy archive has `addr` uint64, `write` bool, and optionally `size` (any integers), all of one length.
The arrays are read in step through the zip file, so that neither a stored nor a compressed archive is ever in
memory as a whole. Pickled objects are refused.

Text formats of traces, one access per line: DineroIV's `din`, and what Valgrind's lackey writes.

A `din` line is `label address [size]`. The label is 0 or r for a read (m, too), 1 or w for a write, 2 or i for an
instruction fetch. Address and size are hexadecimal, with or without 0x, as in Dinero's extended format. What follows
the size is a comment.

`valgrind --tool=lackey --trace-mem=yes` writes:

    I  04001090,3       an instruction
     L 1ffeffe7e8,8     a load
     S 1ffeffe7e0,8     a store
     M 0421c7cc,4       a modify: a load and then a store

Addresses are hexadecimal and sizes decimal. Valgrind's own lines, which begin with ==, -- or **, are skipped.
"""

from __future__ import annotations

import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from hwsim.errors import TraceError
from hwsim.files import note_input
from hwsim.jit import compiled, inlined
from hwsim.trace.nest import U1
from hwsim.trace.text_trace import (
    GZIP_MAGIC,
    HEX_DIGIT,
    MAX_ACCESS_BYTES,
    NEWLINE,
    NO_DIGIT,
    RETURN,
    SPACE,
    TAB,
    AccessBlock,
    GzipSource,
    Parsed,
    PlainSource,
    ReadOptions,
    Source,
    TextFormat,
    TextReader,
    TraceReader,
    explain_address,
    explain_size,
    quoted,
)

READ, WRITE, FETCH, NO_LABEL = (np.uint8(code) for code in range(4))
_LABELS = {"0": READ, "r": READ, "m": READ, "1": WRITE, "w": WRITE, "2": FETCH, "i": FETCH}
_LABEL_OF_BYTE = np.full(256, NO_LABEL, np.uint8)
for _label, _code in _LABELS.items():
    _LABEL_OF_BYTE[ord(_label)] = _code

_DIN_LINE = "a din line is 'label address [size]', such as '0 7ffe10' (0 read, 1 write, 2 instruction fetch)"
_MAX_BYTES, _ANY = np.uint64(MAX_ACCESS_BYTES), np.uint64(2**64 - 1)


@inlined
def _past_blanks(text: NDArray[np.uint8], at: np.uint64) -> np.uint64:
    """Where the next field begins, or the newline."""
    while text[at] == SPACE or text[at] == TAB or text[at] == RETURN:
        at += U1
    return at


@inlined
def _hex_number(text: NDArray[np.uint8], at: np.uint64, most: np.uint64) -> tuple[np.uint64, np.uint64, np.uint64]:
    """A number, held at `most`, after 0x or without; where its digits begin and end."""
    if text[at] == 48 and (text[at + U1] | 32) == 120:
        at += np.uint64(2)
    first, number, digit = at, np.uint64(0), HEX_DIGIT[text[at]]
    while digit != NO_DIGIT:
        number = min((number << np.uint64(4)) | np.uint64(digit), most)
        at += U1
        digit = HEX_DIGIT[text[at]]
    return number, first, at


def _explain_din(line: str, options: ReadOptions) -> str:
    fields = line.split()
    if not fields:
        return _DIN_LINE
    if fields[0] not in _LABELS:
        return f"{quoted(fields[0])} is not a label; {_DIN_LINE}"
    if len(fields) == 1:
        return f"{quoted(line)} has no address; {_DIN_LINE}"
    wrong = explain_address(fields[1], options.address_limit)
    if wrong is None and len(fields) > 2:
        wrong = explain_size(fields[2], 16)
    return f"{wrong or quoted(line)}; {_DIN_LINE}"


@compiled
def parse_din(
    text: NDArray[np.uint8],
    limit: np.uint64,
    default_size: np.uint16,
    addresses: NDArray[np.uint64],
    writes: NDArray[np.bool_],
    sizes: NDArray[np.uint16],
) -> Parsed:
    """Parse whole lines: every loop over the characters of a field ends at the newline at the latest."""
    end = np.uint64(len(text))
    at = np.uint64(0)
    accesses = np.uint64(0)
    instructions = np.int64(0)
    lines = np.int64(0)
    bad = np.int64(-1)
    while at < end:
        start = at
        at = _past_blanks(text, at)
        if text[at] == NEWLINE:
            at += U1
            lines += 1
            continue
        label = _LABEL_OF_BYTE[text[at]]
        at += np.uint64(label != NO_LABEL)
        if text[at] != SPACE and text[at] != TAB:
            bad = np.int64(start)
            break
        while text[at] == SPACE or text[at] == TAB:
            at += U1
        address, first, at = _hex_number(text, at, _ANY)
        if at == first or at - first > np.uint64(16) or (address >= limit and label != FETCH):
            bad = np.int64(start)
            break
        size = np.uint64(default_size)
        if text[at] != NEWLINE:
            if text[at] != SPACE and text[at] != TAB and text[at] != RETURN:
                bad = np.int64(start)
                break
            at = _past_blanks(text, at)
            if text[at] != NEWLINE:
                size, first, at = _hex_number(text, at, _MAX_BYTES + U1)
                closed = text[at] == SPACE or text[at] == TAB or text[at] == RETURN or text[at] == NEWLINE
                if at == first or not closed or size == 0 or size > _MAX_BYTES:
                    bad = np.int64(start)
                    break
                while text[at] != NEWLINE:
                    at += U1
        at += U1
        lines += 1
        if label == FETCH:
            instructions += 1
        else:
            addresses[accesses] = address
            writes[accesses] = label == WRITE
            sizes[accesses] = size
            accesses += U1
    return np.int64(accesses), instructions, lines, bad


_INSTRUCTION, _LOAD, _STORE, _MODIFY, _EQUALS, _MINUS, _STAR, _COMMA = (np.uint8(ord(letter)) for letter in "ILSM=-*,")
_LACKEY_LINE = (
    "a lackey line is ' L address,size' (L load, S store, M modify, I instruction); "
    "valgrind's --log-file keeps other output out"
)


def _explain_lackey(line: str, options: ReadOptions) -> str:
    letter, *fields = line.split(maxsplit=1) or [""]
    if not letter:
        return _LACKEY_LINE
    if letter not in ("I", "L", "S", "M"):
        return f"{quoted(line)} does not begin with I, L, S or M and a space; {_LACKEY_LINE}"
    if not fields:
        return f"{quoted(line)} has no address; {_LACKEY_LINE}"
    address, comma, size = fields[0].strip().partition(",")
    wrong = explain_address(address, options.address_limit)
    if wrong is None:
        wrong = explain_size(size, 10) if comma else f"{quoted(line)} has no size"
    return f"{wrong or quoted(line)}; {_LACKEY_LINE}"


@compiled
def parse_lackey(
    text: NDArray[np.uint8],
    limit: np.uint64,
    default_size: np.uint16,
    addresses: NDArray[np.uint64],
    writes: NDArray[np.bool_],
    sizes: NDArray[np.uint16],
) -> Parsed:
    """Parse whole lines: every loop over the characters of a field ends at the newline at the latest."""
    end = np.uint64(len(text))
    at = np.uint64(0)
    accesses = np.uint64(0)
    instructions = np.int64(0)
    lines = np.int64(0)
    bad = np.int64(-1)
    while at < end:
        start = at
        at = _past_blanks(text, at)
        kind = text[at]
        if kind == NEWLINE:
            at += U1
            lines += 1
            continue
        if kind in (_EQUALS, _MINUS, _STAR) and text[at + U1] == kind:
            while text[at] != NEWLINE:
                at += U1
            at += U1
            lines += 1
            continue
        known = kind in (_INSTRUCTION, _LOAD, _STORE, _MODIFY)
        at += np.uint64(known)
        if text[at] != SPACE and text[at] != TAB:
            bad = np.int64(start)
            break
        while text[at] == SPACE or text[at] == TAB:
            at += U1
        address, first, at = _hex_number(text, at, _ANY)
        if at == first or at - first > np.uint64(16) or text[at] != _COMMA:
            bad = np.int64(start)
            break
        if address >= limit and kind != _INSTRUCTION:
            bad = np.int64(start)
            break
        at += U1
        first = at
        size = np.uint64(0)
        digit = HEX_DIGIT[text[at]]
        while digit < 10:
            size = min(size * np.uint64(10) + np.uint64(digit), _MAX_BYTES + U1)
            at += U1
            digit = HEX_DIGIT[text[at]]
        if at == first or size == 0 or size > _MAX_BYTES:
            bad = np.int64(start)
            break
        at = _past_blanks(text, at)
        if text[at] != NEWLINE:
            bad = np.int64(start)
            break
        at += U1
        lines += 1
        if kind == _INSTRUCTION:
            instructions += 1
            continue
        if kind != _STORE:
            addresses[accesses] = address
            writes[accesses] = False
            sizes[accesses] = size
            accesses += U1
        if kind != _LOAD:
            addresses[accesses] = address
            writes[accesses] = True
            sizes[accesses] = size
            accesses += U1
    return np.int64(accesses), instructions, lines, bad


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
        return _Column(stream, dtype, shape[0])

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


class _Column(NamedTuple):
    """One array, read from its start to its end."""

    stream: IO[bytes]
    dtype: np.dtype[np.generic]
    length: int


TraceFormat = Literal["din", "lackey", "npz"]
TEXT_FORMATS = {
    "din": TextFormat("din", parse_din, _explain_din),
    "lackey": TextFormat("lackey", parse_lackey, _explain_lackey),
}
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
