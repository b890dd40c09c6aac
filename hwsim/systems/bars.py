"""Error bars of collectives and of serving: from measurements that nothing was fitted to, as those of kernels."""

from __future__ import annotations

from math import exp

from hwsim.error_bar import NEVER_COMPARED, interval_words
from hwsim.results.bar_table import COVERAGE, TIME, BarTable, shipped_table
from hwsim.systems.communicate import Communication
from hwsim.systems.spec import SystemSpec

COLLECTIVE, TOKEN, FIRST_TOKEN = "collective", "serving_token", "serving_first_token"
"""Families of measurements, as `hwsim validate --write` keeps them."""


def collective_bar(system: SystemSpec, found: Communication, table: BarTable | None = None) -> str:
    """How far off a collective is likely to be, in words."""
    if system.count > system.node_size or found.op in ("broadcast", "send"):
        return NEVER_COMPARED
    return bar_words(COLLECTIVE, system, found.seconds, table)


def bar_words(family: str, system: SystemSpec, seconds: float, table: BarTable | None = None) -> str:
    """The interval of a family on the machine of a system; where it was never measured there, of others like it."""
    known = shipped_table() if table is None else table
    if "fitted" not in _sources(system) or not seconds:
        return NEVER_COMPARED
    measured = system.machine if system.machine in known.machines(TIME, family) else None
    interval = known.interval(TIME, family, measured, seconds)
    if interval is None:
        return NEVER_COMPARED
    ends = (seconds * exp(interval.low), seconds * exp(interval.high))
    rows = f"{interval.rows} measured" if measured else f"{interval.rows} measured on {interval.machines} others"
    return f"{interval_words(seconds, ends)} for {COVERAGE:.0%} of {rows}"


def _sources(system: SystemSpec) -> str:
    """Where the constants of its libraries come from: those of an assumption were never compared."""
    return " ".join(str(library.source) for library in system.libraries.values())
