"""Runs `hwsim` inside the test's own process, which takes milliseconds, or in a process of its own."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hwsim as hwsim_package
from hwsim.cli.app import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


def hwsim(*words: str) -> Outcome:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(words))
    return Outcome(code, out.getvalue(), err.getvalue())


def hwsim_process(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A real process, which also works where hwsim is not installed."""
    source = str(Path(hwsim_package.__file__).resolve().parent.parent)
    environment = {**os.environ, "PYTHONPATH": source}
    command = [sys.executable, "-m", "hwsim", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment, **options)
