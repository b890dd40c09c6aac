"""Compiled functions: Numba is imported when one is called, not before; also for functions that call each other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

import hwsim
from hwsim.jit import StandIn, called, compiled, inlined


@inlined
def doubled(number: Any) -> Any:
    return 2 * number


@called
def summed(numbers: Any) -> Any:
    total = 0
    for number in numbers:
        total += doubled(number)
    return total


@compiled
def entry(numbers: Any) -> Any:
    return summed(numbers) + 1


def imported(statements: str) -> list[str]:
    """The modules of `numba` and of targets that a fresh process has imported after some statements."""
    program = f"import sys\n{statements}\nprint('imported:', *sorted(sys.modules))"
    source = Path(hwsim.__file__).resolve().parent.parent
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=source, check=True)
    return done.stdout.splitlines()[-1].split()[1:]


def test_compiled_functions_call_each_other_as_python_would() -> None:
    numbers = np.arange(5)
    assert isinstance(entry.py_func, type(imported))  # type: ignore[attr-defined]
    assert entry(numbers) == 21
    assert summed(numbers) == 20
    assert not isinstance(summed, StandIn), "the module now refers to Numba's function"


def test_threads_may_call_for_the_first_time_at_once() -> None:
    functions = [StandIn(lambda number: number + 1) for _ in range(4)]
    found: list[int] = []
    threads = [Thread(target=lambda one=one: found.append(one(1))) for one in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [2] * 4


@pytest.mark.parametrize("module", ["hwsim.api", "hwsim.memory.hierarchy", "hwsim.memory.coupled", "hwsim.trace.walk"])
def test_importing_does_not_import_numba(module: str) -> None:
    assert "numba" not in imported(f"import {module}")


def test_a_replay_imports_numba() -> None:
    assert "numba" in imported("import hwsim; hwsim.run('course_cpu', 'matmul', n=8)")


def test_a_short_gpu_run_does_not_import_numba() -> None:
    assert "numba" not in imported("import hwsim; hwsim.run('a100_40', 'matmul', n=512, precision='fp16')")
