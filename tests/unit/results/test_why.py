"""Why as data, on a machine of every class: what screens, pages and plots draw without asking for the class."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import cache

import pytest

import hwsim
from hwsim import RunResult
from hwsim.engine import summed
from hwsim.result import RunResult as Stored
from hwsim.results.explanation import explain
from hwsim.spec.machine import KINDS
from hwsim.target import Line, Table

MACHINES = {
    "cpu": "course_cpu", "gpu": "a100_40", "grid": "eyeriss", "pim": "gddr6_aim", "systolic": "edge_npu",
}  # fmt: skip
LOOPS = {"algorithm", "order", "tile", "unroll", "vector", "v1", "v2", "parallel", "split", "cores", "accumulate"}
"""Choices that are loops of a core."""


@cache
def run(kind: str, workload: str = "matmul") -> RunResult:
    return hwsim.run(MACHINES[kind], workload, n=48)


def test_every_class_has_a_machine_here() -> None:
    assert sorted(MACHINES) == sorted(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_class_says_what_decided(kind: str) -> None:
    why = explain(run(kind))
    assert why.bound.words.startswith("Bound by")
    assert 0 < why.bound.share <= 1.001
    assert why.advice.parameters or why.advice.settings
    assert why.advice.why
    assert why.used
    assert why.units >= 1
    assert "if all parts overlapped" in why.bounds


def test_waits_for_first_bytes_do_not_bound_a_run_from_below() -> None:
    bounds = hwsim.run("gemmini16", "matmul", n=128, math=False).bounds
    waits = bounds.parts["first bytes"]
    assert bounds.lower_s == max(seconds for name, seconds in bounds.parts.items() if name != "first bytes") < waits
    assert bounds.upper_s == pytest.approx(sum(bounds.parts.values()))


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"cpu"}))
def test_the_bound_is_the_largest_row_of_the_table(kind: str) -> None:
    result = run(kind)
    assert explain(result).bound.part == next(iter(summed(result.attribution)))[1]


@pytest.mark.parametrize("kind", KINDS)
def test_tables_have_a_cell_for_each_column_at_most(kind: str) -> None:
    why = explain(run(kind))
    assert [row[0] for row in why.levels.rows] == list(run(kind).memory)
    body = [item for section in why.details.sections for item in section.body]
    assert why.details.sections
    for item in (why.levels, *why.body, *body):
        if isinstance(item, Line):
            assert item.text
        else:
            assert isinstance(item, Table)
            assert all(0 < len(row) <= len(item.columns) for row in item.rows)


@pytest.mark.parametrize("kind", KINDS)
def test_advice_can_be_followed(kind: str) -> None:
    """The command that is proposed is one that the machine and the workload take."""
    advice = explain(run(kind)).advice
    changed = hwsim.run(MACHINES[kind], "matmul", set=advice.settings, **{"n": "48", **dict(advice.parameters)})
    assert changed.time_s > 0


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"cpu"}))
def test_loops_of_a_core_are_not_said_to_be_choices_elsewhere(kind: str) -> None:
    assert explain(run("cpu")).schedule.keys() & LOOPS
    assert not explain(run(kind)).schedule.keys() & LOOPS


def test_an_array_names_its_own_tiles_and_mapping() -> None:
    fused = hwsim.run("tpu_v4", "attention_fused", n=64, math=False)
    assert {"br": 64, "bc": 64}.items() <= explain(fused).schedule.items()
    mapped = hwsim.run("edge_npu", "matmul", n=48, **{"mapping.order": "nmk"})
    assert explain(mapped).schedule["mapping.order"] == "nmk"


def test_a_result_is_explained_once_and_looked_at_only_when_asked() -> None:
    result = replace(run("cpu", "matmul_naive"))
    why = explain(result)
    assert explain(result) is why
    assert "details" not in vars(why)
    assert why.details.pressure is not None
    assert why.details is why.details


def test_what_was_explained_is_no_part_of_the_result() -> None:
    result = replace(run("gpu"))
    explain(result)
    again = pickle.loads(pickle.dumps(result))
    assert again == result
    assert "why" not in vars(again)
    assert "why" not in result.to_dict()
    assert Stored.from_json(result.to_json()).to_json() == result.to_json()


def test_a_part_without_words_is_waited_for() -> None:
    assert explain(run("gpu")).part("unheard of") == "waits for unheard of"
