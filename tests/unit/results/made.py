"""Results and outcomes made by hand, so that each test states only what matters to it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import hwsim
from hwsim.result import RunResult, TimeBounds


@cache
def small(workload: str = "matmul_tiled", **parameters: Any) -> RunResult:
    """A real run that takes milliseconds."""
    sizes = {"n": 32, "tile": 8} if workload == "matmul_tiled" else {"n": 32}
    return hwsim.run("course_cpu", workload, **{**sizes, **parameters})


def bound_by(part: str, base: RunResult | None = None, **changes: Any) -> RunResult:
    """A result whose time is all in one part."""
    base = base or small()
    parts = {"fma": base.time_s / 10, part: base.time_s}
    bounds = TimeBounds(base.time_s, base.time_s * 1.1, parts)
    return replace(base, bounds=bounds, **changes)


def with_schedule(result: RunResult, **fields: Any) -> RunResult:
    """The same result, as if its workload had been scheduled otherwise."""
    workload = dict(result.resolved.workload)
    workload["schedule"] = {**workload["schedule"], **fields}
    return replace(result, resolved=replace(result.resolved, workload=workload))
