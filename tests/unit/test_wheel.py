"""A wheel brings compiled code along, wherever it is built."""

from __future__ import annotations

import os
import subprocess
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_what_the_build_needs_stays_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """pip keeps it in a folder of its own: without that, the runs to compile found no NumPy in a fresh environment."""
    spec = spec_from_file_location("build_wheel", ROOT / "build_wheel.py")
    assert spec is not None
    assert spec.loader is not None
    build = module_from_spec(spec)
    spec.loader.exec_module(build)
    seen: dict[str, str] = {}

    def run(words: list[str], *, env: dict[str, str], **options: Any) -> subprocess.CompletedProcess[str]:
        seen.update(env)
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(build, "CODE", tmp_path / "code")
    monkeypatch.setattr(build.subprocess, "run", run)
    monkeypatch.setenv("PYTHONPATH", "needed")
    build.compile_runs()
    assert seen["PYTHONPATH"].split(os.pathsep) == [str(ROOT), "needed"]
    monkeypatch.delenv("PYTHONPATH")
    build.compile_runs()
    assert seen["PYTHONPATH"] == str(ROOT)
