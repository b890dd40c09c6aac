"""Reads formulas such as ``C[i,j] += A[i,k] * B[k,j]`` or ``O[h,w] += I[h+kh,2*w+kw] * W[kh,kw]``.

formula   = reference ("+=" | "=") term {("+" | "-") term}
term      = factor {"*" factor}
factor    = reference | number
reference = NAME "[" position {"," position} "]"
position  = part {("+" | "-") part}           part = INDEX | NUMBER | NUMBER "*" INDEX
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hwsim.errors import InputError

_TOKEN = re.compile(r"\s*(?:(?P<name>[A-Za-z_]\w*)|(?P<number>\d+\.\d*|\.\d+|\d+)|(?P<sign>\+=|[-+*=\[\],]))")


@dataclass(frozen=True)
class Position:
    """Where along one axis: a constant and a multiple of each index."""

    factors: tuple[tuple[str, int], ...]
    constant: int = 0

    def last(self, sizes: Mapping[str, int]) -> int:
        return self.constant + sum(factor * (sizes[index] - 1) for index, factor in self.factors)


@dataclass(frozen=True)
class Reference:
    """An element of a tensor."""

    tensor: str
    positions: tuple[Position, ...]
    column: int = 0

    @property
    def indices(self) -> tuple[str, ...]:
        """In the order in which they appear."""
        return tuple(dict.fromkeys(index for position in self.positions for index, _ in position.factors))

    def same(self, other: Reference) -> bool:
        return (self.tensor, self.positions) == (other.tensor, other.positions)


@dataclass(frozen=True)
class Term:
    """A product of elements and a number."""

    references: tuple[Reference, ...]
    scale: float = 1.0


@dataclass(frozen=True)
class FormulaText:
    """A formula, read."""

    text: str
    output: Reference
    accumulates: bool
    terms: tuple[Term, ...]

    @property
    def references(self) -> tuple[Reference, ...]:
        """What is read, each element once."""
        found: list[Reference] = []
        for ref in (ref for term in self.terms for ref in term.references):
            if not any(ref.same(old) for old in found):
                found.append(ref)
        return tuple(found)

    @property
    def indices(self) -> tuple[str, ...]:
        """The output's first, then the others as they appear."""
        every = [*self.output.indices, *(index for ref in self.references for index in ref.indices)]
        return tuple(dict.fromkeys(every))


def parse_formula(text: str) -> FormulaText:
    """Raises InputError that points at the place where the text stops making sense."""
    return _Parser(text).formula()


def formula_error(text: str, column: int, message: str) -> InputError:
    return InputError(f"formula, column {column + 1}: {message}\n  {text}\n  {' ' * column}^")


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    column: int


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(self._split())
        self.next = 0

    def formula(self) -> FormulaText:
        output = self._reference()
        sign = self._expect("'+=' or '='", "+=", "=")
        terms = [self._term(1.0)]
        while self._here.text in ("+", "-"):
            terms.append(self._term(-1.0 if self._take().text == "-" else 1.0))
        if self._here.kind != "end":
            raise self._wrong("'+', '-', '*' or the end")
        formula = FormulaText(self.text, output, sign.text == "+=", tuple(terms))
        self._check(formula)
        return formula

    def _check(self, formula: FormulaText) -> None:
        output = formula.output
        plain = [position.factors for position in output.positions if not position.constant]
        if len(plain) != len(output.positions) or any(len(f) != 1 or f[0][1] != 1 for f in plain):
            raise formula_error(self.text, output.column, f"each axis of {output.tensor} must be one index")
        if len(set(plain)) != len(plain):
            raise formula_error(self.text, output.column, f"an index of {output.tensor} appears twice")
        axes: dict[str, int] = {}
        for ref in formula.references:
            if ref.tensor == output.tensor:
                hint = f"write {output.tensor}[…] += … to add to it"
                raise formula_error(self.text, ref.column, f"{ref.tensor} is the output; {hint}")
            if axes.setdefault(ref.tensor, len(ref.positions)) != len(ref.positions):
                message = f"{ref.tensor} has {axes[ref.tensor]} axes elsewhere, here {len(ref.positions)}"
                raise formula_error(self.text, ref.column, message)
        if not formula.references:
            raise formula_error(self.text, len(self.text), "nothing is read; name at least one tensor")
        summed = set(formula.indices) - set(output.indices)
        if summed and not formula.accumulates:
            names = ", ".join(sorted(summed))
            raise formula_error(self.text, output.column, f"{names} is summed over: write '+=' instead of '='")

    def _term(self, scale: float) -> Term:
        references: list[Reference] = []
        while True:
            if self._here.kind == "number":
                scale *= float(self._take().text)
            else:
                references.append(self._reference())
            if self._here.text != "*":
                return Term(tuple(references), scale)
            self._take()

    def _reference(self) -> Reference:
        if self._here.kind != "name":
            raise self._wrong("a tensor such as A[i,k]")
        name = self._take()
        self._expect("'[' and the indices of " + name.text, "[")
        positions = [self._position()]
        while self._expect("',' or ']'", ",", "]").text == ",":
            positions.append(self._position())
        return Reference(name.text, tuple(positions), name.column)

    def _position(self) -> Position:
        factors: dict[str, int] = {}
        constant = 0
        sign = 1
        while True:
            index, factor = self._part()
            if index:
                factors[index] = factors.get(index, 0) + sign * factor
            else:
                constant += sign * factor
            if self._here.text not in ("+", "-"):
                break
            sign = -1 if self._take().text == "-" else 1
        if any(factor < 0 for factor in factors.values()):
            raise self._wrong("an index that is added, not subtracted")
        return Position(tuple((index, factor) for index, factor in factors.items() if factor), constant)

    def _part(self) -> tuple[str, int]:
        if self._here.kind == "name":
            return self._take().text, 1
        if self._here.kind != "number" or "." in self._here.text:
            raise self._wrong("an index or a whole number")
        number = int(self._take().text)
        if self._here.text != "*":
            return "", number
        self._take()
        if self._here.kind != "name":
            raise self._wrong("an index")
        return self._take().text, number

    @property
    def _here(self) -> _Token:
        return self.tokens[self.next]

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
        return formula_error(self.text, self._here.column, f"expected {expected}, found {found}")

    def _split(self) -> list[_Token]:
        tokens = []
        position = 0
        while self.text[position:].strip():
            match = _TOKEN.match(self.text, position)
            if match is None:
                column = position + len(self.text[position:]) - len(self.text[position:].lstrip())
                raise formula_error(self.text, column, f"'{self.text[column]}' has no meaning here")
            kind = match.lastgroup or ""
            tokens.append(_Token(kind, match[kind], match.start(kind)))
            position = match.end()
        return [*tokens, _Token("end", "", len(self.text))]
