"""Sweeps: a grid of points, a store that survives, executors, and what was found.

`hwsim.sweep` is this package and, as everybody expects beside `hwsim.run`, also a function: calling the package calls
`hwsim.sweep.runner.sweep`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """A package that can be called."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        from hwsim.sweep.runner import sweep

        return sweep(*arguments, **named)


sys.modules[__name__].__class__ = _Callable
