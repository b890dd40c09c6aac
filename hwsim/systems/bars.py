"""Error bars of collectives and of serving: from measurements that nothing was fitted to, as those of kernels."""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING

from hwsim.record import CLASS, MACHINE, NEVER, NEVER_COMPARED, ErrorBar, interval_words
from hwsim.results.bar_table import COVERAGE, SO_FEW, TIME, BarTable, is_shipped, shipped_table
from hwsim.systems.communicate import Communication
from hwsim.systems.spec import SystemSpec

if TYPE_CHECKING:
    from hwsim.systems.serve import ServeResult
    from hwsim.systems.serve_model import Service

COLLECTIVE = "collective"
FIRST_TOKEN, OUTPUT_TOKEN = "served_first_token", "served_output_token"
"""Families of measurements, as `hwsim validate --write` keeps them."""


def collective_bar(system: SystemSpec, found: Communication) -> str:
    """How far off a collective is likely to be, in words: by the machine's own measurements, or by those of others."""
    known, seconds = shipped_table(), found.seconds
    between = system.count > system.node_size
    if between or found.op in ("broadcast", "send") or "fitted" not in _sources(system) or not seconds:
        return NEVER_COMPARED
    measured = system.machine if system.machine in known.machines(TIME, COLLECTIVE) else None
    interval = known.interval(TIME, COLLECTIVE, measured, seconds)
    if interval is None:
        return NEVER_COMPARED
    ends = (seconds * exp(interval.low), seconds * exp(interval.high))
    few = "only " if interval.rows < SO_FEW else ""
    rows = f"{few}{interval.rows} measured" + ("" if measured else f" on {interval.machines} others")
    return f"{interval_words(seconds, ends)} for {COVERAGE:.0%} of {rows}"


def compared_words(system: SystemSpec) -> str:
    """What collectives of a system were held against, whatever their size."""
    table = shipped_table()
    if "fitted" not in _sources(system):
        return NEVER_COMPARED
    if system.machine not in table.machines(TIME, COLLECTIVE):
        return f"collectives of {len(table.machines(TIME, COLLECTIVE))} other machines"
    own = TIME, COLLECTIVE, system.machine
    rows = sum(each.rows for each in table.groups if (each.quantity, each.family, each.machine) == own)
    inside = " inside a node" if system.between is not None else ""
    return f"{rows} collectives{inside}, measured on {system.machine} and not fitted to; hwsim validate collectives"


def served_bars(service: Service, result: ServeResult, table: BarTable | None = None) -> dict[str, ErrorBar]:
    """Of the mean times to the first token and for each further one: of users who come back, a model that tensor
    parallelism divides if anything, and a stock machine; anything else was never compared."""
    known, layout = shipped_table() if table is None else table, service.price.layout
    compared = result.users is not None and layout.pp == layout.ep == 1 and is_shipped(service.price.machine)
    found = {"ttft": (FIRST_TOKEN, result.ttft.mean)}
    if result.tpot is not None:
        found["tpot"] = (OUTPUT_TOKEN, result.tpot.mean)
    return {name: _served(known, service, *each, compared=compared) for name, each in found.items()}


def _served(table: BarTable, service: Service, family: str, seconds: float, *, compared: bool) -> ErrorBar:
    machine = service.price.machine.name
    own = machine if machine in table.machines(TIME, family) else None
    interval = table.interval(TIME, family, own, seconds) if compared else None
    if interval is None:
        return ErrorBar(seconds, "s", None, None, COVERAGE, 0, NEVER, NEVER_COMPARED)
    where = f"on {machine}" if own else f"on {interval.machines} other machines"
    few = "only " if interval.rows < SO_FEW else ""
    source = f"{few}{interval.rows} measured {where}, other models and engines among them"
    low, high = (seconds * exp(end) for end in (interval.low, interval.high))
    return ErrorBar(seconds, "s", low, high, COVERAGE, interval.rows, MACHINE if own else CLASS, source)


def _sources(system: SystemSpec) -> str:
    """Where the constants of its libraries come from: those of an assumption were never compared."""
    return " ".join(str(library.source) for library in system.libraries.values())
