"""Text traces: blocks of bytes in, accesses out; the compiled parsers of din.py and lackey.py do the work.

A block ends where its last whole line ends; the rest waits for the next block. So no line is looked at twice,
and a trace of any length needs the memory of one block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from string import hexdigits
from typing import NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from hwsim.errors import TraceError
from hwsim.trace.readers.accesses import Accesses, ReadOptions
from hwsim.trace.readers.source import Source

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


class TextFormat(Protocol):
    """A form of text trace."""

    name: str

    def parse(self) -> Parse:
        """The compiled parser."""
        ...

    def explain(self, line: str, options: ReadOptions) -> str:
        """What is wrong with a line that the parser refused, and what is expected."""
        ...


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

    def __iter__(self) -> Iterator[Accesses]:
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

    def _parse(self, text: bytes | memoryview) -> Iterator[Accesses]:
        most = len(text) // SHORTEST_ACCESS + 1
        chunk = Accesses(np.empty(most, np.uint64), np.empty(most, np.bool_), np.empty(most, np.uint16))
        options = self._options
        accesses, instructions, lines, bad = self._form.parse()(
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
