"""Every error that hwsim raises on purpose.

    HwsimError
    ├── InputError          what the user gave is wrong                exit code 2
    │   ├── SpecError       a machine or workload file (file:line, field, what is allowed)
    │   ├── CatalogError    no machine or workload of that name
    │   ├── OverrideError   a --set or key=value that does not fit
    │   ├── TraceError      an access trace that cannot be read
    │   ├── ShapeError      operands whose shapes do not fit together (also a ValueError)
    │   ├── CapacityError   something that does not fit a memory or a register file
    │   ├── OutputError     a file that cannot be written, or that was read and would be replaced
    │   └── PassingError    what is missing now and may be there later: a file, a worker, room on a disk
    │       └── HostMemoryError   memory of this computer, for a run that needs more
    └── CheckFailedError    a comparison, or a run's own verification, failed   exit code 1

Every class passes all its constructor arguments on to ``super().__init__``, so that an error survives
pickling (sweep workers) and re-raising (SimPy).
"""

from __future__ import annotations

from dataclasses import dataclass


class HwsimError(Exception):
    """The root of the tree above."""

    exit_code = 1


class InputError(HwsimError):
    """What the user gave is wrong."""

    exit_code = 2


@dataclass(frozen=True, order=True)
class Problem:
    """One thing that is wrong in one file: where, which field, what, and what to do."""

    file: str
    line: int
    field: str
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.field}: {self.message}" if self.field else f"{where}: {self.message}"


class SpecError(InputError):
    """A file that is not what it should be; carries every problem found, in line order."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__(problems)
        self.problems = tuple(sorted(problems))

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class CatalogError(InputError):
    """No machine or workload of that name."""


class OverrideError(InputError):
    """A ``--set path=value`` or ``key=value`` that does not fit."""


class TraceError(InputError):
    """An access trace that cannot be read."""


class ShapeError(InputError, ValueError):
    """Operands whose shapes do not fit together."""


class CapacityError(InputError):
    """Something that does not fit into a memory or a register file."""


class OutputError(InputError):
    """A file that cannot be written, or that was read and would be replaced."""


class PassingError(InputError):
    """What is missing now and may be there later: it says nothing about the model, and is tried again."""


class HostMemoryError(PassingError):
    """A run that this computer has too little memory for; another one, or the same one later, may have enough."""


class CheckFailedError(HwsimError):
    """A comparison with the outside, or a run's own verification, failed."""
