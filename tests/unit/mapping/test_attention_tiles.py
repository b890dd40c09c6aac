"""Attention on an array, alone or in a chain, takes tiles that fill the array where nobody chose."""

from __future__ import annotations

from typing import Any

import pytest

from hwsim.api import resolve_machine, resolve_workload
from hwsim.target import find_target


def tiles(machine: str, workload: str, **sizes: Any) -> tuple[int, int]:
    task: Any = find_target(resolve_machine(machine)).defaults(resolve_workload(workload, sizes))
    place = task.schedule if task.op == "attention" else next(s for s in task.operations if s.op == "attention")
    return place.br, place.bc


@pytest.mark.parametrize("workload", ["attention_causal", "transformer_block"])
def test_tiles_are_no_smaller_than_the_array(workload: str) -> None:
    sizes = {"n": 512, "d": 512, "heads": 4} if workload == "transformer_block" else {"n": 512, "d": 128}
    rows, columns = tiles("tpu_v4", workload, **sizes)  # an array of 128 x 128
    assert rows >= 128
    assert columns >= 128


def test_tiles_end_where_the_problem_ends() -> None:
    assert tiles("tpu_v4", "attention_decode", n=96)[0] == 1
    assert tiles("tpu_v4", "attention_decode", n=96)[1] <= 96
