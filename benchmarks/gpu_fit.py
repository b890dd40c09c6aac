"""Fits constants of a GPU on one random half of measured kernels and reports the error on the other half.

    python benchmarks/gpu_fit.py pool.csv.gz gemm_tensor:a100_80 gemm_8bit:a100_80 -- \
        sm.library.step_latency=180 sm.library.block_start=1150 sm.library.tile_bandwidth=0.73

The groups before `--` count alike; after it come the constants with the values to start from. Each is moved up and
down in turn by ever smaller steps as long as the mean error of the first half shrinks. A share stays at most 1.
"""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path
from statistics import mean

from hwsim.catalog import load_machine
from hwsim.targets.gpu.model import GpuModel
from hwsim.validation.gpu import covered, modelled_seconds
from hwsim.validation.gpu_workload import COLUMNS, MeasuredKernel
from hwsim.validation.report import relative_error
from hwsim.validation.table import read_table

ROWS = 200
"""Of each half of a group."""
Group = list[MeasuredKernel]
Settings = dict[str, tuple[float, str]]


def main(words: list[str]) -> None:
    cut = words.index("--")
    first, second = halves(Path(words[0]), words[1:cut])
    settings = dict(read_setting(word) for word in words[cut + 1 :])
    print(f"start: {error(first, settings):.2%} on the first half, {error(second, settings):.2%} on the second")
    found = search(first, settings)
    print(f"found: {error(first, found):.2%} on the first half, {error(second, found):.2%} on the second")
    print(*overrides(found), sep="\n")


def halves(path: Path, names: list[str]) -> tuple[list[Group], list[Group]]:
    records = read_table(path, COLUMNS)
    first, second = [], []
    for name in names:
        family, machine = name.split(":")
        rows = [MeasuredKernel(path, r) for r in records if (r["family"], r["machine"]) == (family, machine)]
        kept = [row for row in rows if covered(row)]
        random.Random(1).shuffle(kept)
        first.append(kept[0::2][:ROWS])
        second.append(kept[1::2][:ROWS])
    return first, second


def read_setting(word: str) -> tuple[str, tuple[float, str]]:
    path, _, text = word.partition("=")
    number = re.match(r"[\d.]+", text)
    if number is None:
        raise SystemExit(f"{word}: give a constant as path=number, with its unit if it has one")
    return path, (float(number[0]), text[number.end() :])


def overrides(settings: Settings) -> list[str]:
    whole = ("step_latency", "block_start")
    return [
        f"{path}={round(value) if path.endswith(whole) else round(value, 4)}{unit}"
        for path, (value, unit) in settings.items()
    ]


def error(groups: list[Group], settings: Settings) -> float:
    models = {row.machine: row for group in groups for row in group[:1]}
    built = {name: GpuModel(load_machine(name, overrides(settings)).spec) for name in models}
    return mean(
        mean(relative_error(modelled_seconds(built[row.machine], row), row.seconds) for row in group)
        for group in groups
    )


def search(groups: list[Group], settings: Settings) -> Settings:
    best, step = error(groups, settings), 0.3
    while step > 0.02:
        before = best
        for path in settings:
            for factor in (1 + step, 1 / (1 + step)):
                value, unit = settings[path]
                limit = 1.0 if path.endswith(("_share", "_bandwidth")) and not unit else float("inf")
                tried = settings | {path: (min(limit, value * factor), unit)}
                found = error(groups, tried)
                if found < best:
                    best, settings = found, tried
        if best == before:
            step /= 2
    return settings


if __name__ == "__main__":
    main(sys.argv[1:])
