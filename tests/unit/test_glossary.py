"""Every word that a screen uses as a head, a part, a cause or a bound is in the glossary."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import hwsim
from hwsim.catalog import lesson_names
from hwsim.glossary import TERMS, find_term, near_terms
from hwsim.results.explanation import explain
from hwsim.results.metrics import METRICS, THROUGHPUT, about, energy_split
from hwsim.target import Table

RUNS = (
    ("course_cpu", "matmul_parallel", {"n": 32}),
    ("course_cpu", "add", {"n": 4096}),
    ("a100_40", "matmul", {"n": 128, "math": False}),
    ("tpu_v1", "matmul", {"n": 64, "math": False}),
    ("eyeriss", "conv2d", {"math": False}),
    ("gddr6_aim", "matvec", {"n": 64, "math": False}),
)
"""One of each class of machines, and a core that waits for memory."""
NOT_WORDS = {"", "meaning"}
"""A column without a head, and one whose head says that it explains."""
NAMES_OF_LEVELS = {"regs", "l1", "l2", "l3", "dram", "sm.shared"}
"""What machines call their memories; `level` is the term."""


def words_of(machine: str, workload: str, parameters: dict[str, object]) -> Iterator[str]:
    result = hwsim.run(machine, workload, **parameters)  # type: ignore[arg-type]
    why = explain(result)
    yield why.bound.short
    yield from why.levels.columns
    yield from energy_split(result)
    for agent in result.attribution.values():
        for group in agent.values():
            yield from group
            yield from (why.part(name) for name in group)
    for body in (why.body, *(section.body for section in why.details.sections)):
        for item in body:
            if isinstance(item, Table):
                yield from item.columns


@pytest.mark.parametrize(("machine", "workload", "parameters"), RUNS)
def test_every_word_of_a_screen_is_a_term(machine: str, workload: str, parameters: dict[str, object]) -> None:
    found = {word for word in words_of(machine, workload, parameters) if word not in NOT_WORDS | NAMES_OF_LEVELS}
    assert {word for word in found if find_term(word) is None} == set()


def test_every_metric_is_a_term() -> None:
    heads = {word for metric in METRICS.values() for word in (metric.title, metric.head) if word}
    heads |= {about(name).title for name in THROUGHPUT} | {"throughput", "dram energy"}
    assert {head for head in heads if find_term(head) is None} == set()


@pytest.mark.parametrize(
    "word",
    ["static", "control", "operand supply", "stall", "bound", "arithmetic intensity", "hit rate", "Pareto front",
     "launch overhead", "memory traffic"],
)  # fmt: skip
def test_the_words_of_the_field_are_defined(word: str) -> None:
    term = find_term(word)
    assert term is not None
    assert len(term.meaning) > 30


def test_terms_name_terms_and_lessons_that_exist() -> None:
    assert {name for term in TERMS.values() for name in term.see if find_term(name) is None} == set()
    assert {term.lesson for term in TERMS.values() if term.lesson} <= set(lesson_names())


def test_a_typo_is_answered_with_what_may_be_meant() -> None:
    assert find_term("hitrate") is None
    assert "hit rate" in near_terms("hitrate")
