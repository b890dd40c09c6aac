"""Which rows a model may be fitted on, and which it is reported on: halves that a hash of the shape decides.

The machine is no part of the shape, so a constant that was fitted on one GPU has not seen the same shape on another.
Of the rows that are reported on, one half makes the error bars, and the other half judges them.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Literal

Purpose = Literal["fit", "interval", "judge"]
FIT: Purpose = "fit"
INTERVAL: Purpose = "interval"
JUDGE: Purpose = "judge"


def is_held_out(*shape: object) -> bool:
    """Whether rows of this shape are for reporting alone; the others may be fitted on."""
    return _hash(shape)[0] % 2 == 1


def purpose_of(*shape: object) -> Purpose:
    """What rows of this shape are for: to be fitted on, to make error bars, or to judge them."""
    return unfitted_half(*shape) if is_held_out(*shape) else FIT


def unfitted_half(*shape: object) -> Purpose:
    """The same where nothing is fitted to any row: to make error bars, or to judge them."""
    return INTERVAL if _hash(shape)[1] % 2 else JUDGE


def _hash(shape: tuple[object, ...]) -> bytes:
    return sha256("|".join(str(part) for part in shape).encode()).digest()
