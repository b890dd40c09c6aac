"""Error bars of collectives: from measurements that nothing was fitted to, as those of kernels."""

from __future__ import annotations

from math import exp

from hwsim.error_bar import NEVER_COMPARED, interval_words
from hwsim.results.bar_table import COVERAGE, TIME, BarTable, shipped_table
from hwsim.systems.communicate import Communication
from hwsim.systems.spec import SystemSpec

COLLECTIVE = "collective"
"""The family of measurements, as `hwsim validate --write` keeps them."""


def collective_bar(system: SystemSpec, found: Communication, table: BarTable | None = None) -> str:
    """How far off a collective is likely to be, in words: by the machine's own measurements, or by those of others."""
    known, seconds = shipped_table() if table is None else table, found.seconds
    between = system.count > system.node_size
    if between or found.op in ("broadcast", "send") or "fitted" not in _sources(system) or not seconds:
        return NEVER_COMPARED
    measured = system.machine if system.machine in known.machines(TIME, COLLECTIVE) else None
    interval = known.interval(TIME, COLLECTIVE, measured, seconds)
    if interval is None:
        return NEVER_COMPARED
    ends = (seconds * exp(interval.low), seconds * exp(interval.high))
    rows = f"{interval.rows} measured" if measured else f"{interval.rows} measured on {interval.machines} others"
    return f"{interval_words(seconds, ends)} for {COVERAGE:.0%} of {rows}"


def _sources(system: SystemSpec) -> str:
    """Where the constants of its libraries come from: those of an assumption were never compared."""
    return " ".join(str(library.source) for library in system.libraries.values())
