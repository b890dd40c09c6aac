"""The families of `hwsim validate`, found by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import cast

from hwsim.errors import InputError
from hwsim.validation.report import Report, Row

Progress = Iterator[Row | int | Report]
"""The number of rows to come, then each row as it is done, then the report."""

FAMILIES = {
    "cache": "exact hits, misses and write-backs against an independent cache simulator",
    "energy": "energy of Eyeriss layers and GPUs against measurements, and counts against other programs",
    "cpu": "time of matmuls over tile size against a measured Zen 3 core",
    "gpu": "time of library kernels against measured GPUs",
    "systolic": "folds of a systolic array against SCALE-Sim, exactly",
    "tpu": "speed and stalls of the first TPU against what Google published",
}


def start(family: str, data: Path | None, count: int | None, seed: int) -> Progress:
    """Begin a comparison; its module is imported only now."""
    if family not in FAMILIES:
        raise InputError(f"there is no family {family!r} to validate; known: {', '.join(FAMILIES)}")
    validate = import_module(f"hwsim.validation.{family}").validate
    return cast(Callable[[Path | None, int | None, int], Progress], validate)(data, count, seed)
