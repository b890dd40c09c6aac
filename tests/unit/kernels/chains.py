"""Chains for tests: made from a few lines, and run."""

from __future__ import annotations

from typing import Any

import numpy as np

from hwsim.ops.chain import ChainKernel
from hwsim.program.chain_workload import ChainWorkload
from hwsim.program.loop_kernel import build_kernel
from hwsim.spec.workload import WorkloadSpec


def chain(operations: list[dict[str, Any]], tensors: dict[str, list[Any]], /, **more: Any) -> ChainWorkload:
    data = {
        "format": 1, "name": "made", "description": "A chain for a test.", "op": "chain",
        "sizes": {"n": 6, "d": 8, "h": 10},
        "tensors": {name: tuple(shape) for name, shape in tensors.items()},
        "operations": tuple({**step, "inputs": tuple(step["inputs"])} for step in operations),
        "precision": "fp64",
    }  # fmt: skip
    spec = WorkloadSpec.model_validate(data | more)
    assert isinstance(spec, ChainWorkload)
    return spec


def run(workload: ChainWorkload, **setting: Any) -> ChainKernel:
    made = build_kernel(workload, **setting)
    assert isinstance(made, ChainKernel)
    for block in made.blocks():
        list(block.steps())
    return made


def step(name: str, op: str, *inputs: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "op": op, "inputs": list(inputs), **more}


LAYER = [
    step("up", "matmul", "x", "w"),
    step("biased", "add", "up", "b"),
    step("act", "relu", "biased"),
    step("y", "mul", "act", "scale"),
]
LAYER_TENSORS = {"x": ["n", "d"], "w": ["d", "h"], "b": ["h"], "scale": ["n", "h"]}


def layer(a: dict[str, np.ndarray]) -> np.ndarray:
    return np.maximum(a["x"] @ a["w"] + a["b"], 0) * a["scale"]


def convolved(x: np.ndarray, w: np.ndarray, padding: int = 0) -> np.ndarray:
    """A convolution with stride 1, all windows at once."""
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], axis=(2, 3))
    return np.einsum("nchwuv,ocuv->nohw", windows, w)


def largest(x: np.ndarray, side: int) -> np.ndarray:
    """The largest value of each square of an image; what is left over at the edges is not looked at."""
    rows, columns = x.shape[2] // side, x.shape[3] // side
    cut = x[:, :, : rows * side, : columns * side]
    return cut.reshape(*x.shape[:2], rows, side, columns, side).max(axis=(3, 5))
