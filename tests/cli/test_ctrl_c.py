"""Ctrl-C ends every command soon, also in the middle of compiled code or with workers under way, with 130."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import hwsim as package
from hwsim.cli.arguments import INTERRUPTED
from hwsim.sweep.executor import usable_cores

ROOT = Path(package.__file__).resolve().parent.parent
SOON_S = 5.0
"""Half a second is what users get; other tests may run beside this one."""


@pytest.fixture(autouse=True)
def _somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


STUCK = """
import sys, time
import numpy
from hwsim.cli.arguments import CTRL_C

CTRL_C.kept = sys.argv[1]
CTRL_C.heed()
while True:
    try:
        print("begun", flush=True)
        {waiting}
    except KeyboardInterrupt:
        pass  # as some libraries do
"""
IN_MACHINE_CODE = "numpy.broadcast_to(1.0, 10**12).sum()  # minutes; nothing is stored"
IN_PYTHON = "time.sleep(60)"
FINISHING = """
import sys, time
from hwsim.cli.arguments import CTRL_C

CTRL_C.heed()
CTRL_C.finishing = True
try:
    print("begun", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(1)
    print("all of it", file=sys.stderr)
"""


def start(*words: str) -> subprocess.Popen[str]:
    """A process that hears Ctrl-C, also where the tests themselves run in the background and do not."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def interrupt(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and words; fails where it does not end, and leaves nothing behind then."""
    assert process.poll() is None, "it ended by itself"
    own = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    try:
        _, said = process.communicate(timeout=SOON_S)
    except subprocess.TimeoutExpired:
        for pid in (process.pid, *own):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        raise
    return process.returncode, said


@pytest.mark.parametrize("waiting", [IN_MACHINE_CODE, IN_PYTHON], ids=["machine code", "loop"])
def test_a_process_that_python_cannot_end_is_ended(waiting: str) -> None:
    process = start("-c", STUCK.format(waiting=waiting), "3 points are kept")
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    assert interrupt(process) == (INTERRUPTED, "3 points are kept\nerror: interrupted\n")


def test_what_is_being_printed_is_printed() -> None:
    process = start("-c", FINISHING)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    assert interrupt(process) == (0, "all of it\n")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="Linux alone tells which processes a process has")
@pytest.mark.parametrize(
    ("words", "workers"),
    [
        (("validate", "cpu"), 4),  # Python's own two among them
        (("validate",), 4),
        (("sweep", "course_cpu", "matmul_tiled", "n=16..800:4", "tile=4", "--executor", "processes", "--jobs", "2"), 4),
        (("measure", "matmul_naive", "n=1024"), 1),
    ],
    ids=lambda words: " ".join(words[:2]) if isinstance(words, tuple) else None,
)
def test_commands_with_workers_end_soon_and_leave_none(words: tuple[str, ...], workers: int) -> None:
    process = start("-m", "hwsim", *words)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and len(descendants(process.pid)) < min(workers, 2 + usable_cores()):
        time.sleep(0.1)
    own = descendants(process.pid)
    code, said = interrupt(process)
    assert own and code == INTERRUPTED
    assert said.splitlines()[-1] == "error: interrupted" and "Traceback" not in said
    deadline = time.monotonic() + SOON_S
    while time.monotonic() < deadline and any(is_alive(pid) for pid in own):
        time.sleep(0.05)
    assert not [pid for pid in own if is_alive(pid)]


def descendants(pid: int) -> list[int]:
    """Processes that a process has started, and those that they have; none where Linux does not tell."""
    found = []
    with suppress(OSError):  # it may have ended meanwhile
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, children.read_text().split()):
                found += [child, *descendants(child)]
    return found


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
