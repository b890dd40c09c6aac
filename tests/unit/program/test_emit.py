"""Loops over tiles with a condition: what it costs is asked where it may not hold, and nowhere else."""

from __future__ import annotations

from collections import Counter

import pytest

from hwsim.catalog import load_workload
from hwsim.program.loop_kernel import build_kernel

SIDE = 8


def work(queries: int, keys: int, causal: bool, lanes: int = 1) -> tuple[int, Counter[str]]:
    """Operations and instructions of fused attention in square tiles."""
    sizes = {"n": keys, "queries": queries, "d": 4, "causal": str(causal).lower()}
    asked = [f"sizes.{name}={value}" for name, value in sizes.items()]
    spec = load_workload("attention_fused", [*asked, f"schedule.br={SIDE}", f"schedule.bc={SIDE}"]).spec
    made = build_kernel(spec, math=False, lanes=lanes)
    found: Counter[str] = Counter()
    for block in made.blocks():
        for step in block.steps():
            found.update(vars(step.work.instructions))
    return made.useful_flops, found


@pytest.mark.parametrize("lanes", [1, 4])
def test_below_the_diagonal_causal_attention_does_what_attention_does(lanes: int) -> None:
    """Rows of 1, 2, 3 and 4 tiles without a mask, and a choice for each score of the tiles at its edge: one by one also
    where there are vectors, which sum a score along d."""
    flops, instructions = work(4 * SIDE, 4 * SIDE, True, lanes)
    rows = [work(SIDE, (row + 1) * SIDE, False, lanes) for row in range(4)]
    choices = 4 * SIDE * SIDE
    assert flops == sum(each for each, _ in rows) + choices
    expected = sum((each for _, each in rows), Counter({"add": choices}))
    assert {name: instructions[name] for name in ("fma", "mul", "special", "add")} == {
        name: expected[name] for name in ("fma", "mul", "special", "add")
    }


def test_a_mask_that_hides_nothing_costs_nothing() -> None:
    """The last query sees all keys."""
    assert work(1, 3 * SIDE, True) == work(1, 3 * SIDE, False)
