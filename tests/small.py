"""Sizes at which every workload that comes with hwsim runs in some hundredths of a second."""

from __future__ import annotations

from hwsim.catalog import load_machine, load_workload

SMALL: dict[str, object] = {
    "n": 100, "i": 40, "j": 40, "k": 40, "bytes": "4 KiB", "steps": 300, "batch": 3, "rank": 13, "cutoff": 40, "d": 20,
    "tokens": 50, "vocabulary": 70, "width": 33, "co": 6, "ci": 3, "h": 11, "w": 13, "height": 13, "channels": 13,
    "br": 24, "bc": 40,
}  # fmt: skip
"""Sizes that no tile and no vector divides, so that edges run too."""
ROWS = 37
"""For workloads whose rows are not as many as their columns."""
SMALL_BY_NAME: dict[str, dict[str, object]] = {
    "formula_conv": {"n": 2},
    "group_norm": {"channels": 16},
    "rope": {"pairs": 10},
    "transpose": {"m": ROWS},
    "transpose_tiled": {"m": ROWS},
    "conv3d": {"depth": 4, "height": 5, "width": 6},
    "resnet_block": {"n": 2, "c": 5},
    "resnet_block_plain": {"n": 2, "c": 5},
}

FEWER: dict[str, dict[str, object]] = {
    "attention_multihead": {"n": 52, "heads": 2, "batch": 2},
    "attention_gqa": {"n": 52, "heads": 4},
    "attention_backward": {"n": 52},
    "attention_backward_fused": {"n": 52},
    "transformer_block": {"n": 52, "heads": 2},
}
"""Sizes of the largest ones: still with edges in both directions, and several heads."""


def small(workload: str) -> dict[str, object]:
    """The parameters that make a workload small."""
    spec = load_workload(workload).spec.model_dump()
    sizes, schedule = spec.get("sizes") or {}, spec.get("schedule") or {}
    keys = {*sizes, *schedule}
    values = {key: value for key, value in SMALL.items() if key in keys and not (key == "k" and "n" in keys)}
    if sizes.get("m") is not None:
        values["m"] = ROWS
    return values | SMALL_BY_NAME.get(workload, {})


def small_sizes(workload: str) -> dict[str, object]:
    """The same without the schedule of a CPU, which other classes of machines refuse where it is typed."""
    sizes = load_workload(workload).spec.model_dump().get("sizes") or {}
    return {name: value for name, value in small(workload).items() if name in sizes}


def small_on(machine: str, workload: str) -> dict[str, object]:
    """What makes a workload small on a machine: tiles too, where it is a CPU."""
    return small(workload) if load_machine(machine).spec.kind == "cpu" else small_sizes(workload)
