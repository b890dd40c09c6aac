"""The explorer: a sweep that was made before, and sliders in the browser that redraw it.

python docs/site/explorer.py explorer.html      a page by itself, without anything from elsewhere
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import hwsim
from hwsim.files import write_text
from hwsim.result import RunResult, machine_of
from hwsim.results.explanation import explain
from hwsim.results.metrics import metrics_of
from hwsim.results.plot.run import level_bandwidths

HERE = Path(__file__).resolve().parent
MACHINES = ("course_cpu", "zen3", "cortex_a78")
TILES = (4, 8, 16, 32, 64, 128)
PRECISIONS = ("fp64", "fp32", "bf16", "int8")
CACHES = ("8 KiB", "32 KiB", "64 KiB")
LOOPS: Mapping[str, Mapping[str, object]] = {
    "one number at a time": {"vector": False},
    "vectors, four rows in registers": {"vector": True, "v1": 4},
}
N = 128


def make_data(
    machines: Sequence[str] = MACHINES,
    tiles: Sequence[int] = TILES,
    precisions: Sequence[str] = PRECISIONS,
    caches: Sequence[str] = CACHES,
    loops: Sequence[str] = tuple(LOOPS),
    n: int = N,
) -> dict[str, Any]:
    """Every point of the sweep, in the order of its axes, and the roofs of each machine."""
    points: list[dict[str, Any]] = []
    roofs: dict[str, dict[str, Any]] = {}
    for machine, way, precision, cache, tile in product(machines, loops, precisions, caches, tiles):
        chosen = {"n": n, "tile": tile, "precision": precision, **LOOPS[way]}
        made = hwsim.run(machine, "matmul_tiled", set={"l1.size": cache}, convert=True, **chosen)
        points.append(_point(made))
        roofs.setdefault(machine, {"bandwidth": _bandwidth(made), "peaks": {}})
        roofs[machine]["peaks"][precision] = made.work.peak_flops_per_s
    names = ("machine", "loops", "precision", "cache", "tile")
    axes = dict(zip(names, map(list, (machines, loops, precisions, caches, tiles)), strict=True))
    title = f"A product of two {n} x {n} matrices, tile by tile"
    return {"axes": axes, "points": points, "roofs": roofs, "workload": title}


def _point(made: RunResult) -> dict[str, Any]:
    row = metrics_of(made)
    return {
        "time": made.time_s,
        "energy": made.energy_j,
        "error": row["error_rms_rel"],
        "misses": row["l1.misses"],
        "speed": made.work.flops_per_s,
        "intensity": made.intensity.levels["dram"],
        "bound": explain(made).bound.short,
    }


def _bandwidth(made: RunResult) -> float:
    """Bytes that DRAM moves in a second."""
    return level_bandwidths(machine_of(made), 1)["dram"]


def fragment(data: dict[str, Any]) -> str:
    """Style, controls, charts and data: a piece of HTML that needs nothing else."""
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    style, script = ((HERE / "static" / f"explorer.{ending}").read_text(encoding="utf-8") for ending in ("css", "js"))
    body = (HERE / "static" / "explorer.html").read_text(encoding="utf-8")
    return (
        f"<style>{style}</style>\n{body}\n"
        f'<script type="application/json" id="explorer-data">{text}</script>\n<script>{script}</script>\n'
    )


def page(data: dict[str, Any]) -> str:
    """The fragment as a page by itself."""
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>hwsim explorer</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"></head>'
        f'<body style="margin:1rem auto;max-width:60rem;padding:0 1rem">{fragment(data)}</body></html>'
    )


if __name__ == "__main__":
    write_text(Path(sys.argv[1]), page(make_data()))
