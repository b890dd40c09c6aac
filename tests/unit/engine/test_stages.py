"""Stages: all cores wait for each other between them, and each is accounted for by itself."""

from __future__ import annotations

import pytest

from hwsim.api import simulate
from hwsim.catalog import load_machine
from tests.unit.engine.made import BARRIER_FS, CYCLE_FS, SPAWN_FS, Script, adds

COURSE = load_machine("course_cpu", ["core.count=2"]).spec


def test_a_stage_begins_when_the_slowest_core_of_the_one_before_is_done() -> None:
    outcome = simulate(COURSE, Script([[adds(100)], [adds(300)]], [[adds(200)], [adds(50)]], cores=2))
    assert [stage.elapsed_fs for stage in outcome.stages] == [
        SPAWN_FS + 300 * CYCLE_FS + BARRIER_FS,
        SPAWN_FS + 200 * CYCLE_FS + BARRIER_FS,
    ]
    assert outcome.elapsed_fs == sum(stage.elapsed_fs for stage in outcome.stages)
    assert [agent.waiting["barrier"] for agent in outcome.agents] == [
        200 * CYCLE_FS + 2 * BARRIER_FS,
        150 * CYCLE_FS + 2 * BARRIER_FS,
    ]


def test_a_stage_of_one_block_needs_no_spawn_and_leaves_the_others_waiting() -> None:
    outcome = simulate(COURSE, Script([[adds(100)], [adds(100)]], [[adds(70)]], cores=2))
    assert outcome.stages[1].elapsed_fs == 70 * CYCLE_FS
    assert outcome.agents[1].waiting["barrier"] == BARRIER_FS + 70 * CYCLE_FS
    assert all(agent.elapsed_fs == outcome.elapsed_fs for agent in outcome.agents)


@pytest.mark.parametrize("cores", [1, 2])
def test_work_is_put_down_to_its_stage(cores: int) -> None:
    outcome = simulate(COURSE, Script([[adds(30)]], [[adds(40)], [adds(2)]], cores=cores))
    assert [(stage.name, stage.flops) for stage in outcome.stages] == [("stage 0", 30), ("stage 1", 42)]
