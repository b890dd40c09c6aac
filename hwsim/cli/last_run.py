"""The last run, kept for `hwsim explain` and `hwsim report`: of this terminal, of this folder, of all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from time import time
from typing import TYPE_CHECKING

from hwsim.cli.console import err
from hwsim.errors import HwsimError, InputError, OutputError
from hwsim.files import note_input, private_folders, read_file, why_none, write_text

if TYPE_CHECKING:
    from hwsim.result import RunResult

_MOST_RESULT_BYTES = 200_000_000


def last_run_files() -> list[Path]:
    """Where the last run may be kept: in folders of the user's own, the usual one first."""
    return [folder / "last-run.json" for folder in private_folders()]


def remember(result: RunResult) -> None:
    """Keep a result for `hwsim explain`: as the last one, and as the last of this folder and terminal.

    Where it cannot be kept, older ones go: they would be explained instead.
    """
    kept, reason = None, why_none()
    for file in last_run_files():
        here = _here(file)
        if kept is None:
            try:
                here.parent.mkdir(parents=True, exist_ok=True)
                write_text(file, result.to_json())
                kept = file
                write_text(here, result.to_json())
                for old in sorted(here.parent.glob("*.json"), key=lambda each: -each.stat().st_mtime_ns)[_MOST_KEPT:]:
                    old.unlink(missing_ok=True)
            except (OSError, OutputError) as error:
                reason = str(error)
                _remove(here)
        if file != kept:
            _remove(file)
            _remove(here)
    if kept is None:
        err().print(f"this run is not kept for hwsim explain: {reason}", style="dim", soft_wrap=True, markup=False)


_MOST_KEPT = 16
"""Folders and terminals whose last run is kept."""


def _here(file: Path) -> Path:
    """Where the last run of this folder and this terminal is kept, beside the last one of all."""
    folder = ""
    with suppress(OSError):  # the folder may have been deleted
        folder = str(Path.cwd())
    session = os.getsid(0) if hasattr(os, "getsid") else os.getppid()
    return file.parent / "runs" / f"{sha256(folder.encode()).hexdigest()[:16]}-{session}.json"


def last_run() -> tuple[Path, str]:
    """The run to explain where none is named, and in words which one that is: of this terminal, else of this folder,
    else the last one of all."""
    here = [_here(file) for file in last_run_files()]
    folder = [file for each in here for file in each.parent.glob(f"{each.name.partition('-')[0]}-*.json")]
    for files, where in (
        (here, ""),
        (folder, " in this folder, from another terminal"),
        (last_run_files(), ", from another folder"),
    ):
        kept = {file: file.stat().st_mtime for file in files if file.exists()}
        if kept:
            newest = max(kept, key=lambda file: kept[file])
            return newest, f"the last run{where}, {_ago(time() - kept[newest])}"
    raise InputError("there is no last run to explain; try: hwsim run")


def _ago(passed_s: float) -> str:
    for size, unit in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if passed_s >= size:
            count = int(passed_s // size)
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"


def _remove(file: Path) -> None:
    """Away with an older run; emptied where even that fails."""
    try:
        file.unlink(missing_ok=True)
    except OSError:
        with suppress(OSError):
            os.truncate(file, 0)


def recall(path: Path | None) -> RunResult:
    """A stored result, or the last one."""
    from hwsim.result import RunResult

    source = path or last_run()[0]
    if path is not None:
        note_input(path)
    try:
        text = read_file(source, _MOST_RESULT_BYTES).decode("utf-8")
    except FileNotFoundError as error:
        raise InputError(f"there is no file {source}") from error
    except InputError as error:
        raise InputError(f"{source}: {error}{_AGAIN if path is None else ''}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{source} cannot be read: {error}{_AGAIN if path is None else ''}") from error
    try:
        return RunResult.from_json(text)
    except InputError as error:
        raise InputError(f"{source}: {error}{_AGAIN if path is None else ''}") from error


@contextmanager
def blaming(path: Path | None) -> Iterator[None]:
    """What a class of machines tells of its runs has no declared form: where it does not fit, the file is to blame."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if path is None or isinstance(error, HwsimError):
            raise
        raise InputError(f"{path}: damaged, it cannot be explained ({type(error).__name__}: {error})") from error


_AGAIN = "; the last run was not kept whole: give its command again"
