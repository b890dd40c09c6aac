"""A kernel that does what a test says: blocks of steps with given work, no memory and no math."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hwsim.api import simulate
from hwsim.catalog import load_machine
from hwsim.engine import Outcome
from hwsim.numerics.format import Array, find_format
from hwsim.program.kernel import Kernel, OutputBlock, Setting, Stage, Step
from hwsim.trace.nest import Instructions, Nest, Work


class Script(Kernel):
    """Plays the given steps, block by block, one stage after the other."""

    def __init__(self, *stages: Sequence[Sequence[Step]], cores: int = 1) -> None:
        super().__init__("script", find_format("fp32"), Setting(cores=cores, math=False))
        self.script = stages

    @property
    def useful_flops(self) -> int:
        return 0

    def stages(self) -> Sequence[Stage]:
        def play(steps: Sequence[Step]) -> Iterator[Step]:
            yield from steps

        def stage(number: int, blocks: Sequence[Sequence[Step]]) -> Stage:
            made = (OutputBlock(index, lambda steps=steps: play(steps)) for index, steps in enumerate(blocks))
            return Stage(f"stage {number}", tuple(made))

        return [stage(number, blocks) for number, blocks in enumerate(self.script)]

    def _output(self) -> Array:
        return np.zeros(1)

    def _reference(self) -> Array:
        return np.zeros(1)


def adds(count: int, *nests: Nest) -> Step:
    """A step of so many additions, one after the other through one port: as many cycles."""
    return Step("add", Work(count, 0, Instructions(add=count)), nests)


def play(blocks: Sequence[Sequence[Step]], *settings: str, cores: int = 1, timeline: bool = False) -> Outcome:
    """The script on course_cpu, whose cycles are 500,000 fs."""
    machine = load_machine("course_cpu", settings).spec
    return simulate(machine, Script(blocks, cores=cores), timeline=timeline)


CYCLE_FS = 500_000
SPAWN_FS, BARRIER_FS = 5 * 10**9, 10**9
