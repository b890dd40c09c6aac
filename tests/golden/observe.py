"""What a user sees of one small run: its JSON, the screen of `hwsim run` and that of `hwsim explain`.

Only the command line and the catalog are used, so that this still works when everything inside hwsim has moved.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from typer.main import get_command

from hwsim import run as _loaded  # noqa: F401 - compiled code is looked for where the user has it, not in an empty folder
from hwsim.catalog import shipped_folder
from hwsim.cli.app import COMMANDS, make_app
from hwsim.errors import HwsimError
from tests.small import small_on

MACHINES = sorted(path.stem for path in shipped_folder("machine").glob("*.yaml"))
WORKLOADS = sorted(path.stem for path in shipped_folder("workload").glob("*.yaml"))
COLOURS = ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "HWSIM_DEBUG")
"""Variables that would change what a screen looks like."""
VERSION = re.compile(r'^  "version": .*\n', re.MULTILINE)


@dataclass(frozen=True)
class Seen:
    """One run; a run that is refused has an error and nothing else."""

    run: str = ""
    explain: str = ""
    json: str = ""
    """As it was written, without the version."""
    error: str = ""

    @property
    def result(self) -> dict[str, Any]:
        return json.loads(self.json)


def observe(machine: str, workload: str, folder: Path) -> Seen:
    """Run a small workload on a machine and explain it; files go to the folder, which is best empty."""
    file = folder / "result.json"
    file.unlink(missing_ok=True)
    words = [f"{name}={value}" for name, value in small_on(machine, workload).items()]
    with in_its_own_place(folder):
        screen, error = _screen("run", machine, workload, *words, "--json", file.name)
        if not file.is_file():
            return Seen(error=error)
        explanation, trouble = _screen("explain", file.name)
    return Seen(screen + error, explanation + trouble, VERSION.sub("", file.read_text(encoding="utf-8"), count=1))


@cache
def program() -> Any:
    """The program, put together once; that takes longer than many a run."""
    return get_command(make_app(COMMANDS))


def _screen(*words: str) -> tuple[str, str]:
    """What a command prints, and the error with which it ended if it did."""
    out, error = io.StringIO(), ""
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            program().main(list(words), prog_name="hwsim", standalone_mode=False)
        except HwsimError as refusal:
            error = f"{type(refusal).__name__}: {refusal}"
    return out.getvalue(), error


@contextlib.contextmanager
def in_its_own_place(folder: Path) -> Iterator[None]:
    """No colours, nobody's cache folder, and no folder with machines of somebody's own."""
    before = dict(os.environ)
    for name in COLOURS:
        os.environ.pop(name, None)
    os.environ |= {"NO_COLOR": "1", "COLUMNS": "110", "XDG_CACHE_HOME": str(folder)}
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)
