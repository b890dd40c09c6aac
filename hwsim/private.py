"""Folders of the user's own, for what hwsim keeps between runs: nobody else may have written what is read from them.

Compiled code that is found is run. So a folder counts only where it belongs to the user,
others cannot write in it, and no folder above it lets them put another in its place. Without one, nothing is kept.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

NAME = "hwsim"


def private_folder(name: str = "") -> Path | None:
    """A folder that is safe to read from and can be written, made if need be; None where there is none."""
    return next(iter(private_folders(name)), None)


def private_folders(name: str = "") -> Iterator[Path]:
    """All such folders, the usual one first: below the user's cache folder, else below the temporary one."""
    for root in _roots():
        folder = root / name if name else root
        if not trouble(folder, make=True) and os.access(folder, os.W_OK | os.X_OK):
            yield folder


def why_none(name: str = "") -> str:
    """What is wrong with each place where a folder could have been."""
    places = (root / name if name else root for root in _roots())
    found = {folder: trouble(folder) or "it cannot be written" for folder in places}
    return "; ".join(f"{folder}: {reason}" for folder, reason in found.items()) or "there is no home folder"


def trouble(folder: Path, *, make: bool = False) -> str:
    """Why a folder is not the user's own; nothing where it is."""
    try:
        if make:
            _make(folder)
        facts = folder.stat()
        if not stat.S_ISDIR(facts.st_mode):
            return "it is not a folder"
        return "" if os.name == "nt" else _lent(folder.resolve(), facts)
    except OSError as error:
        return error.strerror or str(error)


def _roots() -> Iterator[Path]:
    """Where folders of the user's own may be; relative and empty names do not count."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if not Path(cache).is_absolute():
        home = _home()
        cache = str(home / ".cache") if home is not None else ""
    if cache:
        yield Path(cache) / NAME
    owner = os.geteuid() if hasattr(os, "geteuid") else "user"
    yield Path(tempfile.gettempdir()).absolute() / f"{NAME}-{owner}"


def _home() -> Path | None:
    try:
        home = Path.home()
    except RuntimeError:  # neither HOME nor an entry for this user
        return None
    return home if home.is_absolute() else None


def _make(folder: Path) -> None:
    """Folders are made for the user alone, whatever the umask."""
    if not folder.parent.exists():
        _make(folder.parent)
    if not folder.exists():
        folder.mkdir(mode=0o700, exist_ok=True)


def _lent(folder: Path, facts: os.stat_result) -> str:
    """Whether others may write in a folder, or put another in its place."""
    if facts.st_uid != os.geteuid():
        return "it belongs to another user"
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "others may write in it"
    for above in folder.parents:
        found = above.stat()
        if found.st_uid not in (0, os.geteuid()):
            return f"{above} belongs to another user"
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            return f"everyone may write in {above}"
    return ""
