"""hwsim: what would this kernel cost on that machine, and why?

import hwsim
result = hwsim.run("course_cpu", "matmul_tiled", n=256, tile=32)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hwsim.api import run
    from hwsim.lessons import Lesson, lesson
    from hwsim.ops.formula import operation
    from hwsim.result import RunResult
    from hwsim.sweep.compare import Comparison, compare
    from hwsim.sweep.result_set import ResultSet
    from hwsim.sweep.runner import sweep
    from hwsim.sweep.tune import Tuned, tune

__version__ = "0.3.0"

__all__ = [
    "Comparison",
    "Lesson",
    "ResultSet",
    "RunResult",
    "Tuned",
    "__version__",
    "compare",
    "lesson",
    "operation",
    "run",
    "sweep",
    "tune",
]

_HOMES = {
    "operation": "hwsim.ops.formula",
    "run": "hwsim.api",
    "RunResult": "hwsim.result",
    "sweep": "hwsim.sweep.runner",
    "ResultSet": "hwsim.sweep.result_set",
    "compare": "hwsim.sweep.compare",
    "Comparison": "hwsim.sweep.compare",
    "tune": "hwsim.sweep.tune",
    "Tuned": "hwsim.sweep.tune",
    "lesson": "hwsim.lessons",
    "Lesson": "hwsim.lessons",
}
"""Loaded when they are first asked for, so that `import hwsim` and `hwsim --help` stay quick."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hwsim' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """What a prompt completes: what is meant for users, also where it is not loaded yet."""
    return sorted(__all__)
