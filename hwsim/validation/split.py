"""Which rows a model may be fitted on, and which it is reported on: halves that a hash of the shape decides.

The machine is no part of the shape, so a constant that was fitted on one GPU has not seen the same shape on another.
"""

from __future__ import annotations

from hashlib import sha256


def is_held_out(*shape: object) -> bool:
    """Whether rows of this shape are for reporting alone; the others may be fitted on."""
    text = "|".join(str(part) for part in shape)
    return sha256(text.encode()).digest()[0] % 2 == 1
