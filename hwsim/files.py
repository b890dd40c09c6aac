"""Files that hwsim writes, whole or not at all and never onto what was read; and how files from outside are read.

Every output goes through `written`. It is written under another name in the same folder, brought to the disk, and only
then given its name: whatever fails on the way, the file that was there before stays as it was. Whoever reads a file of
the user's tells `note_input`; an output onto one of those is refused, also through links and other spellings of a path.

Folders of the user's own, for what hwsim keeps between runs: nobody else may have written what is read from them.

Compiled code that is found is run. So a folder counts only where it belongs to the user,
others cannot write in it, and no folder above it lets them put another in its place. Without one, nothing is kept.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from hwsim.errors import InputError, OutputError
from hwsim.units import data

_INPUTS: dict[str, None] = {}
"""Paths of what was read, resolved, in the order of reading."""


def note_input(path: Path | str) -> None:
    """Remember a file that was read: no output may replace it."""
    _INPUTS[os.path.realpath(path)] = None


def forget_inputs() -> None:
    """A new command begins: what others have read is not its business."""
    _INPUTS.clear()


def check_output_file(path: Path | str, inputs: Iterable[Path | str] = (), name: str = "") -> None:
    """Raises OutputError where writing this file would replace an input; `name` is how the user calls the output."""
    target = os.path.realpath(path)
    for each in (*_INPUTS, *inputs):
        source = os.path.realpath(each)
        if source == target or _is_same(source, target):
            raise OutputError(f"{name or path}: this file is read here, and would be replaced; choose another name")


def write_text(path: Path, text: str) -> None:
    """A text file, in UTF-8."""
    with written(path) as file:
        file.write(text.encode())


@contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """A file to write into, which takes its name when the block ends without an error.

    Raises OutputError where that is not possible; what was there before is then still there, whole.
    """
    check_output_file(path)
    with _in_words(path):
        if path.exists() and not path.is_file():  # a device, a pipe: nothing to keep, and nothing to rename
            with path.open("wb") as file:
                yield file
            return
        target = Path(os.path.realpath(path))
        mode = _mode(target)
        fresh = target.with_name(f".hwsim-{secrets.token_hex(6)}.new")
        try:
            with _opened(fresh) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if mode is not None:
                fresh.chmod(mode)
            fresh.replace(target)
        finally:
            with suppress(OSError):
                fresh.unlink(missing_ok=True)
        _sync_folder(target.parent)


def _opened(path: Path) -> BinaryIO:
    """A new file with the permissions that new files have here, and never one that someone has put there."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666), "wb")


def _mode(path: Path) -> int | None:
    """The permissions of a file that will be replaced; one that may not be written stays."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return None
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return mode


def _sync_folder(folder: Path) -> None:
    """The new name, too, is to survive a loss of power; not every file system can promise that."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


@contextmanager
def _in_words(path: Path) -> Iterator[None]:
    """Errors of the file system as the user's to mend; a pipe that nobody reads any more is not one of them."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"the disk is full ({error.strerror}); nothing was changed: make room, and give the same command again"
    return error.strerror or str(error)


def _is_same(one: str, other: str) -> bool:
    """Whether two paths are one file by another name: a hard link, a mount."""
    try:
        return Path(one).samefile(other)
    except OSError:
        return False


_SETTLED_NS = 2_000_000_000
"""A file that was written later than so long ago may be written again within one tick of the file system's clock."""


def content_digest(path: Path | str) -> str:
    """SHA-256 of what is in a file; remembered as long as the file is not touched. Raises OSError."""
    facts = Path(path).stat()
    if time.time_ns() - facts.st_mtime_ns < _SETTLED_NS:
        return _digest(str(path))
    return _known_digest(os.path.realpath(path), facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size, facts.st_ino)


@lru_cache(maxsize=256)
def _known_digest(path: str, *facts: int) -> str:
    return _digest(path)


def _digest(path: str) -> str:
    with open(path, "rb") as file:  # noqa: PTH123 - a path as the user wrote it
        return hashlib.file_digest(file, "sha256").hexdigest()


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


def why_none() -> str:
    """What is wrong with each place where a folder could have been."""
    found = {folder: trouble(folder) or "it cannot be written" for folder in _roots()}
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
