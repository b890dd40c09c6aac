"""A model in time: phases, layers, operations and kernels one below the other, and the power that they draw.

Every step that was priced stands there once: a prompt, then the steps of a long answer at the lengths at which they
were simulated. Within a step kernels follow each other as they are started; where the host is slower than they are,
there are gaps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

from hwsim.energy import static_watts
from hwsim.engine.outcome import FEMTOSECONDS, Span
from hwsim.models.price import OperationCost, PassCost
from hwsim.results.plot.timeline import PowerBin

if TYPE_CHECKING:
    from hwsim.models.run import ModelRun

PHASE, LAYER, OPERATION, KERNEL = "1 phase", "2 layer", "3 operation", "4 kernel"
"""Lanes, from top to bottom."""


@dataclass
class ModelTimeline:
    """Spans and power of all steps."""

    spans: list[Span] = field(default_factory=list)
    power: list[PowerBin] = field(default_factory=list)
    """Empty where the machine has no prices."""
    operations: list[Span] = field(default_factory=list)
    """A lane for each operation, for a plot; spans are called as their phase."""


def model_timeline(found: ModelRun) -> ModelTimeline:
    """Who was at work when; power is that of each kernel, and between kernels that of a machine that waits."""
    made = ModelTimeline()
    energy = found.machine.energy
    idle_w = static_watts(energy) if energy is not None else None
    now_s = 0.0
    for each in found.phases:
        _LaneWriter(made, each.step, idle_w).write(now_s, _phase_words(each.step, each.times))
        now_s += each.step.seconds
    return made


def _phase_words(step: PassCost, times: float) -> str:
    phase = step.phase
    if phase.name == "decode":
        at = f"decode at {phase.context:,} tokens"
        return at if times == 1 else f"{at} (stands for {times:g} steps)"
    return phase.name


class _LaneWriter:
    """One step."""

    def __init__(self, made: ModelTimeline, step: PassCost, idle_w: float | None) -> None:
        self.made, self.step, self.idle_w, self.words = made, step, idle_w, ""
        busy = sum(each.seconds for each in step.operations)
        self.stretch = step.seconds / busy if busy else 1.0
        """Longer than one where the host takes longer to start kernels than they take."""

    def write(self, start_s: float, words: str) -> None:
        self.words, now = words, start_s
        for (block, part), own in groupby(self.step.operations, key=lambda each: (each.block, each.part)):
            operations = list(own)
            repeat = operations[0].repeat
            for number in range(repeat):
                begun = now
                for operation in operations:
                    now = self._operation(operation, now)
                layer = repeat - number if part == "backward" else number + 1
                shown = f"{block} {layer}" if repeat > 1 else block
                self._span(LAYER, f"{shown}, backward" if part == "backward" else shown, begun, now)
        self._span(PHASE, words, start_s, now)

    def _operation(self, operation: OperationCost, start_s: float) -> float:
        now = start_s
        for name, taken_s, joules in _kernels(operation):
            self._span(KERNEL, name, now, now + taken_s)
            self._power(now, now + taken_s, None if joules is None else joules / taken_s if taken_s else 0.0)
            if self.stretch > 1:
                self._power(now + taken_s, now + taken_s * self.stretch, self.idle_w)
            now += taken_s * self.stretch
        self._span(OPERATION, operation.name, start_s, now)
        whole = self.made.spans[-1]
        lane = f"{operation.block}.{operation.name}"
        self.made.operations.append(Span(lane, self.words, whole.start_fs, whole.end_fs))
        return now

    def _span(self, lane: str, name: str, start_s: float, end_s: float) -> None:
        self.made.spans.append(Span(lane, name, _femtoseconds(start_s), _femtoseconds(end_s)))

    def _power(self, start_s: float, end_s: float, watts: float | None) -> None:
        if watts is not None and end_s > start_s:
            self.made.power.append(PowerBin(_femtoseconds(start_s), _femtoseconds(end_s), watts))


def _kernels(operation: OperationCost) -> Iterator[tuple[str, float, float | None]]:
    """Kernels of one repetition: what each is, how long it takes with its start, and what it spends."""
    for call, price, count in operation.kernels:
        times = count / operation.repeat
        sizes = " x ".join(str(size) for _, size in call.sizes if not isinstance(size, bool))
        name = f"{call.op} {sizes} {call.precision}" + (f", {times:.3g} times" if times > 1 else "")
        taken_s = times * (price.seconds + price.starts * price.each_s)
        yield name, taken_s, None if price.joules is None else times * price.joules


def _femtoseconds(seconds: float) -> int:
    return round(seconds * FEMTOSECONDS)
