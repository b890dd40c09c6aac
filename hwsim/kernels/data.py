"""Inputs of a kernel: random ones from a seed, or those that the user gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from hwsim.errors import InputError, ShapeError
from hwsim.numerics.format import Array, Format
from hwsim.numerics.kind import IntFormat

OUTLIER_GAIN = 32
"""How much larger the channels with outliers are: in large language models, some tens of times the rest."""
OUTLIER_SHARE = 128
"""One channel in so many has outliers, and at least one."""
INTEGER_RANGE, NARROW_RANGE = 8, 2
"""Unscaled integers lie between minus the first and one less; those of fewer than 8 bits are -1, 0 and 1, so that what
little a kernel computes with them element by element still has room."""


def make_input(
    seed: int,
    number: int,
    name: str,
    shape: Sequence[int],
    fmt: Format,
    given: Array | None = None,
    positive: bool = False,
    below: int = 0,
    distribution: str = "uniform",
    axis: int = -1,
) -> Array:
    """The user's values in a format or, without any, random ones; `number` tells the tensors of a kernel
    apart, `axis` is the one along which blocks with a common scale run.

    Random values are uniform in [-1, 1), or in [0, 1) where a sum must not cancel, if no other distribution is asked
    for; integers lie between -7 and 7, so that D + (A + B) * C fits 8 bits, or between -1 and 1 where they have fewer
    than 8 bits. Positions in a table are whole numbers from 0 to `below`.
    """
    if given is not None:
        array = check_shape(name, given, shape)
        if below and (array.min() < 0 or array.max() >= below):
            raise ShapeError(
                f"{name} holds positions from {array.min()} to {array.max()}; they must lie from 0 to {below - 1}"
            )
        return fmt.store(array, axis=axis)
    if below:
        return fmt.store(np.random.default_rng([seed, number]).integers(0, below, tuple(shape)))
    if isinstance(fmt, IntFormat):
        return fmt.store(_whole_numbers(seed, number, shape, positive, distribution, fmt))
    return fmt.store(random_values(seed, number, shape, positive, distribution), axis=axis)


def check_shape(name: str, given: Array, shape: Sequence[int]) -> Array:
    array = np.asarray(given)
    if array.shape != tuple(shape):
        raise ShapeError(f"{name} has shape {array.shape}; the sizes of the workload need {tuple(shape)}")
    return array


def random_values(
    seed: int, number: int, shape: Sequence[int], positive: bool = False, distribution: str = "uniform"
) -> Array:
    """Random numbers in float64."""
    random = np.random.default_rng([seed, number])
    if positive and distribution == "uniform":
        return random.random(tuple(shape))
    values = DISTRIBUTIONS[distribution](random, tuple(shape))
    return np.abs(values) if positive else values


def load_inputs(files: Mapping[str, str]) -> dict[str, Array]:
    """Tensors from `.npy` files, by name."""
    found = {}
    for name, file in files.items():
        try:
            array = np.load(Path(file), allow_pickle=False)
        except FileNotFoundError:
            raise InputError(f"inputs.{name}: there is no file {file}") from None
        except (OSError, ValueError, EOFError) as error:
            raise InputError(f"inputs.{name}: {file} is not a .npy file of numbers: {error}") from None
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
            raise InputError(f"inputs.{name}: {file} must hold one array of real numbers")
        found[name] = array
    return found


def _whole_numbers(
    seed: int, number: int, shape: Sequence[int], positive: bool, distribution: str, fmt: IntFormat
) -> Array:
    narrow, nonnegative = fmt.bits < 8, positive or fmt.low == 0
    if distribution == "uniform":
        random = np.random.default_rng([seed, number])
        low, high = (-1, NARROW_RANGE) if narrow else (1 - INTEGER_RANGE, INTEGER_RANGE)
        return random.integers(0 if nonnegative else low, high, tuple(shape))
    values = random_values(seed, number, shape, nonnegative, distribution)
    return np.rint(values * (1 if narrow else INTEGER_RANGE / 4)).astype(np.int64)


def _uniform(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return random.random(shape) * 2 - 1


def _normal(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return random.standard_normal(shape)


def _activations(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    values = random.standard_normal(shape)
    channels = shape[-1] if shape else 1
    chosen = random.choice(channels, max(1, channels // OUTLIER_SHARE), replace=False)
    values[..., chosen] *= OUTLIER_GAIN
    return values


def _relu(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.maximum(random.standard_normal(shape), 0)


DISTRIBUTIONS: Mapping[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "uniform": _uniform,
    "normal": _normal,
    "activations": _activations,
    "relu": _relu,
}
