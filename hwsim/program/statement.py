"""Statements, and the text that they are written in.

    mean:  m[...] += X[...,c]
           m[...] = m[...] / |c|
    scale: s[...] += (X[...,c] - m[...]) ** 2
           s[...] = rsqrt(s[...] / |c| + epsilon)
    apply: Y[...,c] = (X[...,c] - m[...]) * s[...] * gamma[c] + beta[c]

A statement assigns (`=`), adds up (`+=`) or keeps the largest or smallest (`max=`, `min=`). Loops over all its indices
are implied; an index that the left side lacks is reduced. `...` stands for any number of axes. A name without brackets
on the left is a value in a register. What follows a label, up to the next one, runs in the same loops where it can.
`for i by 32:` begins an indented block that runs for one tile of an index after the other; what it keeps from tile to
tile is its state.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

from hwsim.errors import InputError
from hwsim.program.expression import (
    CASTS,
    FUNCTIONS,
    Affine,
    Apply,
    Element,
    Expr,
    Extent,
    Local,
    Number,
    Symbol,
    apply,
    elements,
    indices_of,
    walk,
)
from hwsim.spec.fields import did_you_mean

Sign = Literal["=", "+=", "max=", "min="]

_TOKEN = re.compile(
    r"\s*(?:(?P<dots>\.\.\.)|(?P<name>[A-Za-z_]\w*)|(?P<number>\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+)"
    r"|(?P<sign>\*\*|\+=|<=|>=|==|[-+*/=<>\[\](),|]))"
)
_LABEL = re.compile(r"\s*([A-Za-z(][\w ,'()=+-]*?)\s*:\s*(?=\S)")
_FOR = re.compile(r"\s*for\s+(\w+)\s+by\s+(\w+)(?:\s+while\s+(.+?))?\s*:\s*$")

DOTS = Symbol("...")
"""Any number of axes."""


@dataclass(frozen=True)
class Statement:
    """``target sign value`` for each point of the loops that its indices imply."""

    target: Element | Local
    sign: Sign
    value: Expr
    label: str = ""
    source: str = ""
    """Its text, as far to the right as in its line."""
    line: int = 0

    @property
    def text(self) -> str:
        return self.source.lstrip()

    @property
    def accumulates(self) -> bool:
        return self.sign != "="

    @cached_property
    def indices(self) -> tuple[str, ...]:
        """The loops of a bound statement: the target's indices first, then those that are reduced."""
        own = self.target.indices if isinstance(self.target, Element) else ()
        return tuple(dict.fromkeys((*own, *indices_of(self.value))))

    @cached_property
    def reads(self) -> tuple[Element, ...]:
        """Elements that it reads; not those that it adds to."""
        return elements(self.value)

    @property
    def name(self) -> str:
        return self.target.tensor if isinstance(self.target, Element) else self.target.name

    @cached_property
    def elements(self) -> tuple[Element, ...]:
        """Everything that is read and the target, positions that are looked up included."""
        found: list[Element] = []
        for part in (*walk(self.value), self.target):
            if isinstance(part, Element):
                found.append(part)
                for position in part.positions:
                    if isinstance(position, Affine) and position.lookup is not None:
                        found.append(position.lookup)
                    elif isinstance(position, Element):
                        found.append(position)
        return tuple(found)

    def __hash__(self) -> int:
        """Of its text alone: statements are looked up often, and those of one text are mostly one."""
        return hash((self.source, self.line))


@dataclass(frozen=True)
class TileBlock:
    """Statements that run for one tile of an index after the other."""

    index: str
    size: str
    """A number, or the name of a parameter."""
    body: tuple[Line, ...]
    condition: Expr | None = None
    """Which points of a tile mean something: ``while j <= i``."""
    line: int = 0


Line = Statement | TileBlock


def statement_error(statement: str, column: int, message: str, line: int = 0) -> InputError:
    where = f"line {line}, column {column + 1}" if line > 1 else f"column {column + 1}"
    return InputError(f"formula, {where}: {message}\n  {statement}\n  {' ' * column}^")


@lru_cache(maxsize=256)
def parse_statements(text: str) -> tuple[Line, ...]:
    """All statements of a text, one on each line or with ``;`` between; raises InputError at the place that makes no
    sense."""
    lines: list[tuple[int, int, str]] = []
    for number, whole in enumerate(text.expandtabs(4).split("\n"), start=1):
        bare = whole.split("#")[0].rstrip()
        if bare.strip():
            indent = len(bare) - len(bare.lstrip())
            pieces = bare.split(";")
            before = [" " * (len(";".join(pieces[:n])) + 1 if n else 0) for n in range(len(pieces))]
            lines += [
                (number, indent, each + piece) for each, piece in zip(before, pieces, strict=True) if piece.strip()
            ]
    if not lines:
        raise statement_error(
            text.strip(), 0, "nothing is computed: write a statement such as C[i,j] += A[i,k] * B[k,j]"
        )
    body, rest = _parse_block(lines, lines[0][1])
    if rest:
        number, _, bare = rest[0]
        raise statement_error(bare, 0, "this line begins further left than the block that it follows", number)
    return body


def parse_expression(text: str) -> Expr:
    """A single expression, such as ``2 / (n * d)``."""
    return _Parser(text, 1).condition()


def all_statements(lines: tuple[Line, ...]) -> tuple[Statement, ...]:
    """Every statement once, in program order."""
    found: list[Statement] = []
    for line in lines:
        found += [line] if isinstance(line, Statement) else all_statements(line.body)
    return tuple(found)


def _parse_block(lines: list[tuple[int, int, str]], indent: int) -> tuple[tuple[Line, ...], list[tuple[int, int, str]]]:
    body: list[Line] = []
    while lines:
        number, own, bare = lines[0]
        if own < indent:
            break
        head = _FOR.match(bare)
        if head is None:
            body.append(_Parser(bare, number).statement())
            lines = lines[1:]
            continue
        if len(lines) < 2 or lines[1][1] <= own:
            raise statement_error(
                bare, own, f"what runs for each tile of {head[1]} follows, further to the right", number
            )
        condition = _Parser(head[3], number).condition() if head[3] else None
        inner, lines = _parse_block(lines[1:], lines[1][1])
        body.append(TileBlock(head[1], head[2], inner, condition, number))
    return tuple(body), lines


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    column: int


_LEVELS: tuple[tuple[str, ...], ...] = (("<", "<=", ">", ">=", "=="), ("+", "-"), ("*", "/"))
"""Operators that bind equally, the loosest first."""


class _Parser:
    """Reads one statement; every error points at a column."""

    def __init__(self, text: str, line: int) -> None:
        self.text = text
        self.line = line
        label = _LABEL.match(text)
        self.label = label[1] if label is not None else ""
        self.tokens = self._split(label.end() if label is not None else 0)
        self.next = 0

    def statement(self) -> Statement:
        target = self._target()
        sign = self._sign()
        value = self._expression()
        self._end()
        if isinstance(target, Local) and sign != "=":
            raise self._error(0, f"{target.name} has no axes: a sum needs a tensor, such as {target.name}[i]")
        return Statement(target, sign, value, self.label, self.text.rstrip(), self.line)

    def condition(self) -> Expr:
        value = self._expression()
        self._end()
        return value

    def _target(self) -> Element | Local:
        if self._here.kind != "name":
            raise self._wrong("a tensor such as C[i,j]")
        name = self._take()
        return self._element(name) if self._here.text == "[" else Local(name.text)

    def _sign(self) -> Sign:
        if self._here.text in ("max", "min") and self._after.text == "=":
            name = self._take().text
            self._take()
            return "max=" if name == "max" else "min="
        token = self._expect("'=', '+=' or 'max='", "=", "+=")
        return "+=" if token.text == "+=" else "="

    def _expression(self, level: int = 0) -> Expr:
        if level == len(_LEVELS):
            return self._unary()
        value = self._expression(level + 1)
        while self._here.text in _LEVELS[level]:
            sign = self._take().text
            value = Apply(sign, (value, self._expression(level + 1)))
        return value

    def _unary(self) -> Expr:
        if self._here.text == "-":
            self._take()
            return apply("neg", self._unary())
        value = self._primary()
        if self._here.text == "**":
            token = self._take()
            power = self._take()
            if power.text == "2":
                return Apply("square", (value,))
            if power.text == "3":
                return Apply("*", (Apply("square", (value,)), value))
            raise self._error(token.column, "only ** 2 and ** 3 are known; write exp(y * log(x)) for other powers")
        return value

    def _primary(self) -> Expr:
        token = self._here
        if token.kind == "number":
            return Number(float(self._take().text))
        if token.text == "(":
            self._take()
            value = self._expression()
            self._expect("')'", ")")
            return value
        if token.text == "|":
            self._take()
            if self._here.kind != "name":
                raise self._wrong("an index, as in |k|")
            name = self._take()
            self._expect("'|'", "|")
            return Extent(name.text, name.column)
        if token.kind != "name":
            raise self._wrong("a tensor such as A[i,k], a number or a function")
        self._take()
        if self._here.text == "[":
            return self._element(token)
        if self._here.text == "(":
            return self._call(token)
        return Symbol(token.text, token.column)

    def _call(self, name: _Token) -> Expr:
        self._take()
        arguments = [self._expression()]
        while self._expect("',' or ')'", ",", ")").text == ",":
            arguments.append(self._expression())
        if name.text in CASTS and len(arguments) == 1:
            return Apply(name.text, tuple(arguments))
        function = FUNCTIONS.get(name.text) if name.text.isalpha() else None
        if function is None:
            known = sorted(each for each in FUNCTIONS if each.isalpha() and each not in ("neg", "square"))
            near = did_you_mean(name.text, [*known, *CASTS])
            raise self._error(name.column, f"there is no function {name.text}{near}; there are {', '.join(known)}")
        if len(arguments) != function.arity:
            raise self._error(name.column, f"{name.text} takes {function.arity} values, found {len(arguments)}")
        return Apply(name.text, tuple(arguments))

    def _element(self, name: _Token) -> Element:
        self._expect("'['", "[")
        positions = [self._position()]
        while self._expect("',' or ']'", ",", "]").text == ",":
            positions.append(self._position())
        return Element(name.text, tuple(positions), name.column)

    def _position(self) -> Expr:
        if self._here.kind == "dots":
            self._take()
            return DOTS
        return self._expression(1)

    def _end(self) -> None:
        if self._here.kind != "end":
            raise self._wrong("an operator or the end")

    @property
    def _here(self) -> _Token:
        return self.tokens[self.next]

    @property
    def _after(self) -> _Token:
        return self.tokens[min(self.next + 1, len(self.tokens) - 1)]

    def _take(self) -> _Token:
        token = self._here
        self.next += 1
        return token

    def _expect(self, what: str, *allowed: str) -> _Token:
        if self._here.text not in allowed:
            raise self._wrong(what)
        return self._take()

    def _wrong(self, expected: str) -> InputError:
        found = f"'{self._here.text}'" if self._here.text else "the end"
        return self._error(self._here.column, f"expected {expected}, found {found}")

    def _error(self, column: int, message: str) -> InputError:
        return statement_error(self.text, column, message, self.line)

    def _split(self, position: int) -> list[_Token]:
        tokens = []
        while self.text[position:].strip():
            match = _TOKEN.match(self.text, position)
            if match is None:
                column = position + len(self.text[position:]) - len(self.text[position:].lstrip())
                raise self._error(column, f"'{self.text[column]}' has no meaning here")
            kind = match.lastgroup or ""
            tokens.append(_Token(kind, match[kind], match.start(kind)))
            position = match.end()
        return [*tokens, _Token("end", "", len(self.text))]
