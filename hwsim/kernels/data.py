"""Inputs of a kernel: random ones from a seed, or those that the user gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hwsim.errors import ShapeError
from hwsim.numerics.format import Array, Format


def make_input(
    seed: int,
    number: int,
    name: str,
    shape: Sequence[int],
    fmt: Format,
    given: Array | None = None,
    positive: bool = False,
    below: int = 0,
) -> Array:
    """The user's values in a format or, without any, random ones; `number` tells the tensors of a kernel
    apart.

    Random values are uniform in [-1, 1), or in [0, 1) where a sum must not cancel; integers lie between -8
    and 7. Positions in a table are whole numbers from 0 to `below`.
    """
    if given is not None:
        array = np.asarray(given)
        if array.shape != tuple(shape):
            raise ShapeError(f"{name} has shape {array.shape}; the sizes of the workload need {tuple(shape)}")
        if below and (array.min() < 0 or array.max() >= below):
            raise ShapeError(
                f"{name} holds positions from {array.min()} to {array.max()}; they must lie from 0 to {below - 1}"
            )
        return fmt.store(array)
    random = np.random.default_rng([seed, number])
    if below:
        return fmt.store(random.integers(0, below, tuple(shape)))
    if fmt.is_integer:
        return fmt.store(random.integers(0 if positive else -8, 8, tuple(shape)))
    values = random.random(tuple(shape))
    return fmt.store(values if positive else values * 2 - 1)
