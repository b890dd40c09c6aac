"""Hatchling, with compiled code in the wheel: what short runs call is compiled when a wheel is built, so that a user's
first run does not compile. It is LLVM's bitcode for any processor of this kind (see hwsim/machine_code.py). Editable
installs and archives of the sources are Hatchling's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from hatchling import build as hatchling
from hatchling.build import *  # noqa: F403

ROOT = Path(__file__).resolve().parent
CODE = ROOT / "hwsim" / "code"
SCREENS = ("typer", "rich", "matplotlib")
RUNS = """
from hwsim import machine_code, run

machine_code.SHIPPED.mkdir()
machine_code.SHIPPING = True
run("course_cpu", "matmul_tiled", n=256)
run("course_cpu", "matmul_naive", n=64)
run("zen3", "matmul_naive", n=64)
"""


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """What Hatchling needs, and what a run does that draws and prints nothing."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [each for each in project["dependencies"] if not each.startswith(SCREENS)]
    return [*hatchling.get_requires_for_build_wheel(config_settings), *needed]


def build_wheel(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Compile into the tree, pack, and leave the tree as it was."""
    try:
        compile_runs()
        return hatchling.build_wheel(wheel_directory, config_settings, metadata_directory)
    finally:
        shutil.rmtree(CODE, ignore_errors=True)


def compile_runs() -> None:
    """Fill the folder; a run that fails leaves a wheel whose users compile."""
    shutil.rmtree(CODE, ignore_errors=True)
    # pip's own folder of what the build needs is on the path already, and nowhere else
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory() as empty:
        own = {"PYTHONPATH": path, "NUMBA_CACHE_DIR": empty, "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
        done = subprocess.run([sys.executable, "-c", RUNS], env={**os.environ, **own}, cwd=empty, check=False)
    if done.returncode:
        sys.stderr.write("hwsim: not all compiled code is in the wheel; a first run compiles\n")
