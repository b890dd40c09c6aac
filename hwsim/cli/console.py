"""What all commands print with: two consoles, and one way to show an error."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from hwsim.errors import InputError

_WIDTH_IN_PIPES = 110


def out() -> Console:
    """For results, to whatever stdout is now; plain text where that is no terminal."""
    return _console(stderr=False)


def err() -> Console:
    """For errors, warnings and progress."""
    return _console(stderr=True)


def print_json(data: Any) -> None:
    """Machine-readable output: indented JSON and nothing else."""
    sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def write_json(path: Path, data: Any) -> None:
    """The same into a file; a folder that is missing or cannot be written is the user's to mend."""
    try:
        path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error


def print_error(message: str) -> None:
    """An error for people: the message as it is, never wrapped, so that file:line stays clickable."""
    console = err()
    for line in message.splitlines() or ["unknown error"]:
        console.print(Text("error: ", style="bold red") + Text(line), soft_wrap=True)


def print_plain(text: str) -> None:
    """Text that someone may pipe into a file or a program: no wrapping, no colour."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else max(_WIDTH_IN_PIPES, shutil.get_terminal_size((0, 0)).columns)
    return Console(stderr=stderr, width=width, highlight=False)
