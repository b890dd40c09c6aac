"""One case: files and command lines, run inside this process; what must never happen is told as a failure.

An exception that is not an HwsimError shows as the paragraph that asks for a report. A hang shows as time over the
budget. Accepted nonsense shows in the JSON that a command wrote.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from types import FrameType
from typing import Any

from hwsim.cli.app import main
from hwsim.units import HIDDEN

BUDGET_S = 10.0
"""Of this process alone: how busy the computer is does not count."""
OUR_FAULT = "this is a mistake in hwsim"


@dataclass(frozen=True)
class Case:
    """Files by name, and commands that are run among them, one after the other as long as they succeed."""

    kind: str
    files: dict[str, bytes] = field(default_factory=dict)
    commands: tuple[tuple[str, ...], ...] = ()
    must_refuse: bool = False
    """Whether the last command may not succeed."""

    def as_shell(self) -> str:
        """How to see it again."""
        import shlex

        lines = [f"printf %s {shlex.quote(_shown(content))} > {name}" for name, content in self.files.items()]
        return "\n".join([*lines, *(shlex.join(["hwsim", *command]) for command in self.commands)])


@dataclass(frozen=True)
class Failure:
    """What a case did that it must not."""

    what: str
    detail: str = ""

    @property
    def signature(self) -> str:
        """Equal for failures that have one cause."""
        return self.what + self.detail.strip().rpartition("\n")[2][:100]


class TooLong(BaseException):
    """The budget of a case is spent; no `except Exception` keeps it."""


def run_case(case: Case, budget_s: float = BUDGET_S) -> Failure | None:
    """Run the commands of a case in a folder of their own."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="fuzz") as folder:
        os.chdir(folder)
        try:
            for name, content in case.files.items():
                Path(name).parent.mkdir(parents=True, exist_ok=True)
                Path(name).write_bytes(content)
            return _run(case, budget_s)
        finally:
            os.chdir(before)


def _run(case: Case, budget_s: float) -> Failure | None:
    started = time.monotonic()
    code = 0
    for command in case.commands:
        try:
            with _alarm(budget_s):
                code, out, err = _call(command)
        except TooLong:
            return Failure(f"took longer than {budget_s:g} s", shortened(traceback.format_exc()))
        except BaseException as error:  # noqa: BLE001 - that nothing comes through is what is tested
            return Failure(f"{type(error).__name__} came through: {error}", traceback.format_exc())
        if OUR_FAULT in err:
            return Failure(err.partition(OUR_FAULT)[2].partition("Please")[0], _traceback(command))
        if code not in (0, 1, 2):
            return Failure(f"exit code {code}", err)
        if "WRONG ANSWER" in out + err:
            return Failure("a wrong answer", err)
        if HIDDEN.search(out.replace("\r", "")) or HIDDEN.search(err):
            found = HIDDEN.search(out) or HIDDEN.search(err)
            return Failure(f"control character {found[0]!r} reached the terminal" if found else "", out + err)
        if code == 0 and "--json" in command and (wrong := nonsense(out)):
            return Failure(f"accepted nonsense: {wrong}", out[:2000])
        if code:
            break
    if case.must_refuse and code == 0:
        return Failure("accepted what it must refuse", str(time.monotonic() - started))
    return None


def nonsense(text: str) -> str:
    """What in the JSON of a run cannot be; nothing where all can."""
    try:
        data = json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        return f"no JSON: {error}"
    if not isinstance(data, dict) or "time_s" not in data:
        return ""
    for name in ("time_s", "energy_j", "power_w"):
        value = data[name]
        if value is None and name != "time_s":
            continue
        if not isinstance(value, int | float) or not isfinite(value) or value <= 0:
            return f"{name} is {value!r}"
    negative = next(_negative(data), "")
    return negative or ("cycles is 0" if not data["cycles"] else "")


def _negative(data: Any, path: str = "") -> Iterator[str]:
    if isinstance(data, dict):
        for name, each in data.items():
            if name not in ("resolved", "numeric", "error", "formulas", "explanation"):
                yield from _negative(each, f"{path}.{name}")
    elif isinstance(data, list):
        for number, each in enumerate(data):
            yield from _negative(each, f"{path}[{number}]")
    elif isinstance(data, int | float) and data < 0:
        yield f"{path} is {data!r}"


def _refuse(word: str) -> float:
    raise ValueError(word)


def _call(command: tuple[str, ...]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(command))
    return code, out.getvalue(), err.getvalue()


def _traceback(command: tuple[str, ...]) -> str:
    try:
        with _alarm(BUDGET_S):
            _call((*command, "--debug"))
    except BaseException:  # noqa: BLE001
        return shortened(traceback.format_exc())
    return ""


def shortened(text: str) -> str:
    return "\n".join(text.splitlines()[-12:])


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _shown(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return repr(content[:2000])
