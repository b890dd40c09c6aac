"""The last run, kept for `hwsim explain`: one file in the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hwsim.errors import InputError

if TYPE_CHECKING:
    from hwsim.results.result import RunResult


def last_run_file() -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "hwsim" / "last-run.json"


def remember(result: RunResult) -> None:
    """Keep a result; where nothing can be written, `hwsim explain` will say that there is none."""
    target = last_run_file()
    fresh = target.with_suffix(f".{os.getpid()}.new")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(result.to_json(), encoding="utf-8")
        fresh.replace(target)
    except OSError:
        return


def recall(path: Path | None) -> RunResult:
    """A stored result, or the last one."""
    from hwsim.results.result import RunResult

    source = path or last_run_file()
    try:
        text = source.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        if path is None:
            raise InputError("there is no last run to explain; try: hwsim run") from error
        raise InputError(f"there is no file {path}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{source} cannot be read: {error}") from error
    try:
        return RunResult.from_json(text)
    except InputError as error:
        raise InputError(f"{source}: {error}") from error
