"""Compiled functions: Numba is imported where their machine code is not kept yet; also where they call each other."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
import pytest
from llvmlite import binding as llvm

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
    assert isinstance(entry, StandIn), "the module is left as it was"


@compiled
def counted(numbers: Any, weights: Any, room: Any, scale: Any, turned: Any) -> Any:
    total = 0
    for row in range(numbers.shape[0]):
        for column in range(numbers.shape[1]):
            room.sums[row] += numbers[row, column] * weights[column]
            total += numbers[row, column] * (2 if turned else 1)
    return np.uint64(total), np.int64(total * scale)


class Room(NamedTuple):
    sums: Any
    spare: Any


@pytest.mark.parametrize("layout", ["C", "F", "strided"])
def test_arguments_arrive_as_they_were_given(layout: str) -> None:
    """Arrays of every layout, a named tuple of arrays, whole numbers, fractions and truths, against NumPy."""
    numbers = np.arange(12, dtype=np.int64).reshape(3, 4)
    given = {"C": numbers, "F": np.asfortranarray(numbers), "strided": np.repeat(numbers, 2, axis=1)[:, ::2]}[layout]
    weights = np.array([1, 10, 100, 1000])
    for turned in (False, True):
        room = Room(np.zeros(3, np.int64), np.zeros(1))
        total = int(numbers.sum()) * (2 if turned else 1)
        assert counted(given, weights, room, -0.5, turned) == (total, -total // 2)
        assert room.sums.tolist() == (numbers @ weights).tolist()


@compiled
def grown(numbers: Any) -> Any:
    return len(numbers.copy())


@compiled
def halved(number: Any) -> Any:
    return number / 2


def test_code_that_could_not_stand_alone_is_refused() -> None:
    with pytest.raises(TypeError, match="allocates nothing"):
        grown(np.arange(3))
    with pytest.raises(TypeError, match="returns whole numbers of 64 bits, not float64"):
        halved(3)
    with pytest.raises(TypeError, match="not list"):
        entry([1, 2])


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


def test_a_replay_imports_numba_once_on_a_computer() -> None:
    run = "import hwsim; hwsim.run('course_cpu', 'matmul', n=8)"
    imported(run)
    assert "numba" not in imported(run)


def test_a_short_gpu_run_does_not_import_numba() -> None:
    assert "numba" not in imported("import hwsim; hwsim.run('a100_40', 'matmul', n=512, precision='fp16')")


def test_functions_without_a_file_do_not_share_code() -> None:
    """As in a notebook or `python -c`: the same name and line, and another text."""
    found = []
    for text in ("number + 3", "number * 3"):
        room: dict[str, Any] = {"__name__": "typed"}
        exec(compile(f"def asked(number):\n    return {text}", "<typed>", "exec"), room)
        found.append(compiled(room["asked"])(5))
    assert found == [8, 15]


SHIPPED = """
import sys
from pathlib import Path
import numpy as np
from hwsim import jit, machine_code
machine_code.SHIPPED = Path(sys.argv[1])
if sys.argv[2] == "build":
    machine_code.SHIPPING = True
elif sys.argv[2] == "use":
    sys.modules["numba"] = None  # importing it is an error
from tests.unit.test_jit import entry
print(entry(np.arange(5)), sys.modules.get("numba") is not None)
"""


def ship(tmp_path: Path, what: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Call `entry` in a fresh process whose own folder of compiled code is empty."""
    own = tmp_path / f"own-{len(list(tmp_path.iterdir()))}"
    own.mkdir(0o700)
    (tmp_path / "code").mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-c", SHIPPED, str(tmp_path / "code"), what], capture_output=True, text=True, check=False,
        cwd=Path(__file__).parents[2], env={**os.environ, "NUMBA_CACHE_DIR": str(own), **variables},
    )  # fmt: skip


def test_shipped_code_runs_where_numba_cannot_be_imported(tmp_path: Path) -> None:
    assert ship(tmp_path, "use").returncode == 1, "nothing is shipped yet"
    built = ship(tmp_path, "build", NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")
    assert built.stdout == "21 True\n", built.stderr
    (file,) = (tmp_path / "code").iterdir()
    used = ship(tmp_path, "use")
    assert used.stdout == "21 False\n", used.stderr
    assert [each.name for each in (tmp_path / "code").iterdir()] == [file.name]


@pytest.mark.parametrize("other", ["newer LLVM", "system", "damaged"])
def test_shipped_code_that_does_not_fit_is_compiled_instead(tmp_path: Path, other: str) -> None:
    ship(tmp_path, "build", NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")
    (file,) = (tmp_path / "code").iterdir()
    head, _, code = file.read_bytes()[32:].partition(b"\n")
    if other == "newer LLVM":
        head = json.dumps({**json.loads(head), "llvm": [999, 0, 0]}).encode()
    elif other == "system":
        module = llvm.parse_bitcode(code)
        module.triple = "riscv64-unknown-linux-gnu"
        code = module.as_bitcode()
    whole = head + b"\n" + code
    file.write_bytes(hashlib.sha256(whole).digest() + (whole[:-1] if other == "damaged" else whole))
    done = ship(tmp_path, "compile")
    assert done.stdout == "21 True\n", done.stderr


def test_shipped_code_asks_nothing_of_a_processor_beyond_its_kind(tmp_path: Path) -> None:
    """Vectors no wider than every x86-64 and AArch64 has, and no features of the processor that built it."""
    ship(tmp_path, "build", NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")
    (file,) = (tmp_path / "code").iterdir()
    text = str(llvm.parse_bitcode(file.read_bytes()[32:].partition(b"\n")[2]))
    assert "target-cpu" not in text
    assert "target-features" not in text
    widths = [int(count) * int(bits) for count, bits in re.findall(r"<(\d+) x i(\d+)>", text)]
    assert max(widths) == 128, "the sum is a loop that LLVM makes of vectors"
