"""Bytes of one element of a number format, by its name; formats narrower than a byte count as parts of one."""

from __future__ import annotations

import re

from hwsim.errors import InputError


def element_bytes(precision: str) -> float:
    """`fp16` 2, `fp8_e4m3` 1, `int4` 0.5: the first number of a format's name is its bits."""
    found = re.match(r"[a-z]+(\d+)", precision)
    if found is None:
        raise InputError(f"'{precision}' is no number format: its name has no number of bits, as in fp16 or int8")
    return int(found[1]) / 8
