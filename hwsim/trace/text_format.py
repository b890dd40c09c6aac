"""Text formats of traces, one access per line: DineroIV's `din`, and what Valgrind's lackey writes.

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

import numpy as np
from numpy.typing import NDArray

from hwsim.jit import compiled, inlined
from hwsim.trace.nest import U1
from hwsim.trace.text_trace import (
    HEX_DIGIT,
    MAX_ACCESS_BYTES,
    NEWLINE,
    NO_DIGIT,
    RETURN,
    SPACE,
    TAB,
    Parse,
    Parsed,
    ReadOptions,
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


class DinFormat:
    """Text as DineroIV reads it."""

    name = "din"

    def parse(self) -> Parse:
        return parse_din

    def explain(self, line: str, options: ReadOptions) -> str:
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


class LackeyFormat:
    """Text as Valgrind's lackey writes it."""

    name = "lackey"

    def parse(self) -> Parse:
        return parse_lackey

    def explain(self, line: str, options: ReadOptions) -> str:
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
