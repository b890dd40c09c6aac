"""The whole run: a crew does its work on a floor, and what happened there is put together."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from hwsim.engine.floor import Floor
from hwsim.engine.outcome import Outcome


class Crew(Protocol):
    """A kernel laid out for a machine: agents with their steps. Each class of machines has its own."""

    def work(self, floor: Floor) -> None:
        """Do all the work: real math, replays, time. Returns when nothing is left to do."""

    def outcome(self) -> Outcome:
        """What was counted, once the work is done."""


def play(crew: Crew, *, timeline: bool = False) -> Outcome:
    """Let a crew work; `timeline` writes down who was busy when, and what was spent meanwhile."""
    floor = Floor(timeline=timeline)
    crew.work(floor)
    pulses = tuple(sorted(floor.pulses, key=lambda pulse: (pulse.start_fs, pulse.end_fs)))
    return replace(crew.outcome(), events=floor.events, spans=tuple(floor.spans), pulses=pulses)
