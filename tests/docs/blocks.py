"""The code blocks of a documentation page, and what becomes of each kind in a test.

```console            each `$ …` line is run and must succeed
```console shown      also: every other line of the block is in the output, in this order (`...` skips)
```console exit=2     the last command ends with this code
```python             run, together with the other Python blocks of the page
```python my.py       written to that file
```yaml machines/my.yaml   written to that file, then checked like any other
```yaml               checked if it begins with `format: 1`
```yaml planned       a machine whose compute unit cannot be simulated yet: only its `kind` is refused
```text, ```json …    left alone
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_ROUNDING = re.compile(r"\b\d(?:\.\d+)?e-\d+\b")
"""An error that a screen tells, such as 1.3e-07."""
_FENCE = re.compile(r"^```(\w*)[ ]*(.*?)[ ]*$")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, the words after it, and where it begins."""

    page: str
    line: int
    language: str
    mark: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    """A line to run, and the lines that are said to come out of it."""

    text: str
    shown: tuple[str, ...]


def blocks(page: str, text: str) -> Iterator[Block]:
    start: tuple[int, str, str] | None = None
    body: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        match = _FENCE.match(line)
        if match and start is None:
            start, body = (number, match[1], match[2]), []
        elif match and start is not None:
            yield Block(page, *start, "".join(f"{one}\n" for one in body))
            start = None
        elif start is not None:
            body.append(line)
    if start is not None:
        raise ValueError(f"{page}:{start[0]}: this block is never closed")


def commands(block: Block) -> list[Command]:
    found: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found and line.strip():
            found[-1][1].append(line)
    return [Command(text, tuple(shown)) for text, shown in found]


def missing_line(output: str, shown: tuple[str, ...]) -> str | None:
    """The first line that should be in an output, after those before it, and is not; blanks count as one."""
    rest = iter(output.splitlines())
    for line in shown:
        if line.strip() != "..." and not any(same_line(line, found) for found in rest):
            return line
    return None


def same_line(shown: str, found: str) -> bool:
    """Whether two lines say the same.

    Errors from 1e-4 on come from narrow formats and are the same on every processor, but for a unit of the last digit.
    Smaller ones come from the order of sums in fp32 or fp64, which is that of the processor's BLAS kernels: six of
    OpenBLAS (OPENBLAS_CORETYPE from Prescott to SkylakeX) differ by up to 1.31 times on the pages.
    """
    if _ROUNDING.sub("#", _squeezed(shown)) != _ROUNDING.sub("#", _squeezed(found)):
        return False
    pairs = zip(_ROUNDING.findall(shown), _ROUNDING.findall(found), strict=True)
    return all(_alike(one, other) for one, other in pairs)


NARROW, KERNELS = 1e-4, 1.35
"""From where on an error is that of a format, and by how much errors below differ between BLAS kernels."""


def _alike(one: str, other: str) -> bool:
    low, high = sorted((float(one), float(other)))
    if high < NARROW:
        return high <= KERNELS * low
    digits = len(one.partition("e")[0].partition(".")[2])
    return high - low <= 1.01 * 10.0 ** (int(one.partition("e")[2]) - digits)


def _squeezed(line: str) -> str:
    return " ".join(line.split())


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def page_name(path: Path) -> str:
    return str(path.relative_to(ROOT))
