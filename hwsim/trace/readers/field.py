"""What is wrong with an address or a size in a text trace: for messages, once a parser has refused a line."""

from __future__ import annotations

from string import hexdigits

from hwsim.trace.readers.accesses import MAX_ACCESS_BYTES

_BASES = {10: "decimal", 16: "hexadecimal"}


def explain_address(field: str, limit: int) -> str | None:
    """None where nothing is wrong."""
    digits = field[2:] if field[:2].lower() == "0x" else field
    if not digits or any(character not in hexdigits for character in digits):
        return f"{_quoted(field)} is not a hexadecimal address"
    if len(digits) > 16:
        return f"address {_quoted(field)} has more than 16 digits"
    if int(digits, 16) >= limit:
        return f"address {field} is too large; it must be less than {limit:#x}"
    return None


def explain_size(field: str, base: int) -> str | None:
    """None where nothing is wrong."""
    digits = field[2:] if base == 16 and field[:2].lower() == "0x" else field
    allowed = hexdigits if base == 16 else "0123456789"
    if not digits or any(character not in allowed for character in digits):
        return f"{_quoted(field)} is not a {_BASES[base]} size in bytes"
    size = int(digits, base) if len(digits) <= 64 else MAX_ACCESS_BYTES + 1
    if not 1 <= size <= MAX_ACCESS_BYTES:
        return f"size {_quoted(field)} is not from 1 to {MAX_ACCESS_BYTES} bytes"
    return None


def _quoted(field: str) -> str:
    return repr(field if len(field) <= 40 else field[:40] + "…")
