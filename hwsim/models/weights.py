"""Weights from a file: NumPy's .npz without pickles, or safetensors, whose header is a line of JSON."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from hwsim.errors import InputError
from hwsim.files import note_input
from hwsim.models.evaluate import GivenWeights
from hwsim.numerics.format import Array
from hwsim.text import data as shown_bytes

MOST_BYTES = 2_000_000_000
MOST_HEADER = 50_000_000
TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1"}
"""Number types of safetensors that are read; bf16 is the upper half of fp32."""


def read_weights(path: Path) -> GivenWeights:
    """All tensors of a file, by name. Raises InputError for what is no such file, or a damaged one."""
    note_input(path)
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    if path.stat().st_size > MOST_BYTES:
        raise InputError(f"{path}: larger than {shown_bytes(MOST_BYTES)}; give the weights of a small model")
    if path.suffix == ".npz":
        return GivenWeights(_npz(path), str(path))
    if path.suffix == ".safetensors":
        return GivenWeights(_safetensors(path), str(path))
    raise InputError(f"{path}: weights are read from .npz and .safetensors")


def _npz(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: np.asarray(archive[name]) for name in archive.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: not a .npz of numbers, or a damaged one: {error}") from error


def _safetensors(path: Path) -> dict[str, Array]:
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or not 2 <= length <= min(MOST_HEADER, len(content) - 8):
        raise InputError(f"{path}: not a safetensors file: its header does not fit it")
    try:
        header = json.loads(content[8 : 8 + length].decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a safetensors file: {error}") from error
    if not isinstance(header, dict):
        raise InputError(f"{path}: not a safetensors file: its header is no list of tensors")
    body = memoryview(content)[8 + length :]
    return {name: _tensor(path, name, about, body) for name, about in header.items() if name != "__metadata__"}


def _tensor(path: Path, name: str, about: Any, body: memoryview) -> Array:
    try:
        kind, shape, (begin, end) = TYPES[about["dtype"]], tuple(about["shape"]), about["data_offsets"]
        wanted = np.dtype(kind).itemsize * int(np.prod(shape, dtype=object))
        if not all(isinstance(size, int) and size >= 0 for size in shape):
            raise ValueError("a negative size")
        if not 0 <= begin <= end <= len(body) or end - begin != wanted:
            raise ValueError(f"{wanted:,} bytes are needed, and {end - begin:,} given")
        found: Array = np.frombuffer(body[begin:end], dtype=kind).reshape(shape)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: tensor {str(name)[:60]!r} cannot be read: {error}") from error
    if about["dtype"] == "BF16":
        return (found.astype(np.uint32) << 16).view(np.float32)
    return found
