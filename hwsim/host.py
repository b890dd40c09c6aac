"""What a run takes of this computer, known before it is spent: memory for the tensors, seconds for the arithmetic.

The numbers are rough, on purpose: they tell a run that cannot end from one that can, not ten seconds from twelve.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from hwsim.errors import HostMemoryError
from hwsim.program.kernel import Kernel
from hwsim.text import data

BYTES_PER_ELEMENT = 20
"""Of memory for each element of the tensors: its random value in float64, as it is stored, its reference, the answer
and what is computed on the way; between 13 and 37 were measured."""
FIXED_BYTES = 400_000_000
"""What the compiler and NumPy take beside the tensors before a run is over."""
SMALL_BYTES = 100_000_000
"""Tensors that take less are not asked for: there is always room, or no hwsim either."""
SMALL_ELEMENTS = SMALL_BYTES // BYTES_PER_ELEMENT
OPERATIONS_PER_S = 5e8
"""Of arithmetic in NumPy with the checks around it; a low guess."""
LONG_S = 30
"""A run that takes longer than this says so before it starts."""

_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def free_bytes() -> int | None:
    """Memory that this process can still take: the least of what is free, what its group and what it itself may have.

    None where the system does not tell.
    """
    rooms = [room for room in (_available(), _within_group(), _within_limit()) if room is not None]
    return min(rooms) if rooms else None


def needed_bytes(kernel: Kernel) -> int:
    """Memory that the math of a kernel takes, from what its tensors take in the simulated machine."""
    bits = float(kernel.fmt.stored_bits) or 32.0
    return int(kernel.space.peak_bytes * 8 / bits) * BYTES_PER_ELEMENT


def math_seconds(kernel: Kernel) -> float:
    """How long the arithmetic of a kernel takes, roughly."""
    return kernel.useful_flops / OPERATIONS_PER_S


def check_memory(kernel: Kernel, name: str) -> None:
    """Raises HostMemoryError where the tensors of a kernel cannot be computed here, before any is made."""
    needed = needed_bytes(kernel)
    free = free_bytes() if needed > SMALL_BYTES else None
    if free is not None and needed + FIXED_BYTES > free:
        raise HostMemoryError(
            f"the tensors of {name} need about {data(needed)} of memory to be computed with, and this computer has "
            f"{data(max(0, free))} left; --no-math (math=False) leaves the answer out and needs none of that, or "
            "choose smaller sizes"
        )


def _available() -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _within_group() -> int | None:
    for limit, used in _CGROUPS:
        with suppress(OSError, ValueError):
            return int(Path(limit).read_text()) - int(Path(used).read_text())
    return None


def _within_limit() -> int | None:
    """Of the address space, where `ulimit -v` set a limit."""
    try:
        import resource
    except ImportError:  # Windows has none
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return None
    with suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        return soft - pages * os.sysconf("SC_PAGE_SIZE")
    return soft
