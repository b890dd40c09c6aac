"""A result depends on its inputs and on nothing else: not on threads, folders, languages, or what ran before."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import hwsim

SOURCE = Path(hwsim.__file__).resolve().parent.parent

CASES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("course_cpu", "matmul_tiled", {"n": 24, "tile": 8}),
    ("a100_40", "matmul", {"n": 128, "precision": "fp16"}),
    ("tpu_v1", "matmul", {"n": 64}),
    ("zen3", "softmax", {}),
    ("eyeriss", "conv2d", {}),
    ("course_cpu", "attention_fused", {"n": 32}),
)

PROGRAM = f"""
import sys, hwsim
for machine, workload, parameters in {CASES!r}:
    sys.stdout.write(hwsim.run(machine, workload, **parameters).to_json())
"""


def run_all() -> str:
    return "".join(hwsim.run(machine, workload, **given).to_json() for machine, workload, given in CASES)


def in_a_process(folder: Path, **environment: str) -> str:
    variables = {**os.environ, "PYTHONPATH": str(SOURCE), **environment}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, timeout=120, cwd=folder, env=variables, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.fixture(scope="module")
def alone() -> str:
    return run_all()


def test_four_threads_find_what_one_finds(alone: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: run_all(), range(8))) == {alone}


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONHASHSEED": "1", "LC_ALL": "de_DE.UTF-8", "COLUMNS": "40"},
        {"PYTHONHASHSEED": "4242", "LC_ALL": "C", "LANG": "tr_TR", "TZ": "Asia/Tokyo", "COLUMNS": "300"},
    ],
    ids=["German, narrow", "Turkish, wide"],
)
def test_a_result_does_not_depend_on_its_surroundings(alone: str, tmp_path: Path, environment: dict[str, str]) -> None:
    assert in_a_process(tmp_path, **environment, PYTHONIOENCODING="utf-8") == alone


@pytest.mark.parametrize("environment", [{"OPENBLAS_NUM_THREADS": "1"}, {"OPENBLAS_CORETYPE": "Prescott"}])
def test_of_the_linear_algebra_library_only_the_errors_depend(
    alone: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    """What is promised: all but `error` and `numeric` to the byte, those in size; all where nothing is multiplied."""
    decoder = json.JSONDecoder()
    pairs = zip(_each(decoder, alone), _each(decoder, in_a_process(tmp_path, **environment)), strict=True)
    for (_, workload, _), (one, other) in zip(CASES, pairs, strict=True):
        if workload != "softmax":
            for name in ("error", "numeric"):
                for metric in ("max_rel", "rms_rel"):
                    near, far = one[name].pop(metric), other[name].pop(metric)
                    assert near == far or 0.5 < near / far < 2, (workload, name, metric)
                for metric in ("snr_db", "cosine"):
                    one[name].pop(metric, None)
                    other[name].pop(metric, None)
        assert one == other, workload


def _each(decoder: json.JSONDecoder, text: str) -> Iterator[dict[str, Any]]:
    place = 0
    while place < len(text):
        found, place = decoder.raw_decode(text, place)
        yield found
        place += 1


def test_many_runs_in_one_process_do_not_grow() -> None:
    """Forty runs leave no more than a few kilobytes behind; benchmarks/growth.py does it with five hundred."""
    run_all()
    gc.collect()
    tracemalloc.start()
    for _ in range(4):  # what is remembered of the last runs is there
        hwsim.run("course_cpu", "matmul_tiled", n=16, tile=4)
        hwsim.run("a100_40", "matmul", n=128, precision="fp16")
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(20):
        hwsim.run("course_cpu", "matmul_tiled", n=16, tile=4)
        hwsim.run("a100_40", "matmul", n=128, precision="fp16")
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 100_000
