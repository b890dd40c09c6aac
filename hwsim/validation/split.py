"""Which rows a model may be fitted on, and which it is reported on: halves that a hash of the shape decides.

The machine is no part of the shape, so a constant that was fitted on one GPU has not seen the same shape on another.
The rows that are reported on make the error bars, in two halves, each of which judges the bars of the other one.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Literal

Purpose = Literal["fit", "first", "second"]
FIT: Purpose = "fit"
FIRST: Purpose = "first"
SECOND: Purpose = "second"


def is_held_out(*shape: object) -> bool:
    """Whether rows of this shape are for reporting alone; the others may be fitted on."""
    return _hash(shape)[0] % 2 == 1


def purpose_of(*shape: object) -> Purpose:
    """What rows of this shape are for: to be fitted on, or one of the halves that make error bars and judge them."""
    return unfitted_half(*shape) if is_held_out(*shape) else FIT


def unfitted_half(*shape: object) -> Purpose:
    """The same where nothing is fitted to any row."""
    return FIRST if _hash(shape)[1] % 2 else SECOND


def _hash(shape: tuple[object, ...]) -> bytes:
    return sha256("|".join(str(part) for part in shape).encode()).digest()
