"""What a command imports before it does anything: counted, as time would depend on the computer."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

import pytest

from hwsim.cli.app import COMMANDS, command_module
from hwsim.spec.machine import KINDS
from hwsim.spec.workload import known_operations, workload_model

ROOT = Path(__file__).resolve().parents[2]

GPU_RUN = ("run", "a100_40", "matmul", "n=512", "precision=fp16")
MOST_MODULES = 140
"""Modules of hwsim that a GPU's matrix product may import; there are some 220."""


def imported(*words: str) -> set[str]:
    """All modules that are loaded at the end of a command."""
    program = (
        "import json, sys\n"
        "from hwsim.cli.app import main\n"
        f"code = main({list(words)!r})\n"
        "print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, env=environment, check=True
    )
    code, modules = json.loads(done.stderr.splitlines()[-1])
    assert code == 0
    return set(modules)


def _below(modules: Iterable[str], package: str) -> list[str]:
    return sorted(name for name in modules if name == package or name.startswith(f"{package}."))


@pytest.fixture(scope="module")
def gpu_run() -> set[str]:
    return imported(*GPU_RUN)


@pytest.mark.parametrize("library", ["numba", "llvmlite", "matplotlib", "numpy.ma"])
def test_a_short_gpu_run_does_without(library: str, gpu_run: set[str]) -> None:
    assert _below(gpu_run, library) == []


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_target_of_the_machine_is_imported(kind: str, gpu_run: set[str]) -> None:
    assert bool(_below(gpu_run, f"hwsim.targets.{kind}")) == (kind == "gpu")


def test_only_the_operation_of_the_workload_is_imported(gpu_run: set[str]) -> None:
    assert _below(gpu_run, "hwsim.ops") == ["hwsim.ops", "hwsim.ops.matmul"]


def test_only_the_command_that_is_named_is_imported(gpu_run: set[str]) -> None:
    commands = {name for name in COMMANDS if f"hwsim.cli.{name}" in gpu_run}
    assert commands == {"run"}


def test_a_gpu_run_imports_few_modules(gpu_run: set[str]) -> None:
    assert len(_below(gpu_run, "hwsim")) <= MOST_MODULES


def test_the_help_imports_no_command_and_no_numpy() -> None:
    modules = imported("--help")
    assert {name for name in COMMANDS if f"hwsim.cli.{name}" in modules} == set()
    assert [name for library in ("numpy", "pydantic", "yaml", "simpy") for name in _below(modules, library)] == []
    assert len(_below(modules, "hwsim")) <= 10


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_says_of_a_command_what_its_function_says(name: str) -> None:
    function = getattr(command_module(name), f"{name}_command")
    first = (inspect.getdoc(function) or "").split("\n\n")[0]
    assert COMMANDS[name] == " ".join(first.split())


def test_every_workload_has_an_operation_that_makes_its_kernel_or_a_runner() -> None:
    for op in known_operations():
        if (runner := workload_model(op).runner) is not None:
            assert callable(import_module(runner).run) and callable(import_module(runner).explain)
            continue
        assert callable(getattr(workload_model(op).operation, "kernel", None)), op
