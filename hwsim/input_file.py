"""Files from outside, read once and whole: what is no file, cannot be read or is far too large is told so."""

from __future__ import annotations

import stat
from pathlib import Path

from hwsim.errors import InputError
from hwsim.text import data


def read_file(path: Path, most_bytes: int) -> bytes:
    """The content of a regular file. Raises FileNotFoundError where there is none, InputError for what is no file."""
    try:
        kind = path.stat().st_mode
        if stat.S_ISDIR(kind):
            raise InputError("this is a folder")
        if not stat.S_ISREG(kind):
            raise InputError("a pipe or a device, not a file")
        with path.open("rb") as stream:
            content = stream.read(most_bytes + 1)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(content) > most_bytes:
        raise InputError(f"larger than {data(most_bytes)}")
    return content
