"""Every word that a screen uses as a head, a part, a cause or a bound is in the glossary."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table as RichTable

import hwsim
from hwsim.catalog import lesson_names
from hwsim.glossary import TERMS, find_term, near_terms
from hwsim.results.explanation import explain
from hwsim.results.metrics import METRICS, THROUGHPUT, about, energy_split
from hwsim.target import Table
from tests.cli.command_line import hwsim as command_line

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


SCREENS = (
    "run course_cpu matmul_tiled n=64 packed=true",
    "run course_cpu matmul_parallel n=64",
    "run zen4 sum_columns n=512",
    "run zen3 softmax n=256",
    "run a100_40 matmul n=256 --no-math",
    "run h100 attention_fused n=256 --no-math",
    "run tpu_v1 matmul n=128 --no-math",
    "run eyeriss conv2d --no-math",
    "run gddr6_aim matvec n=256 --no-math",
    "run course_cpu mlp",
    "model llama3_8b h100 prompt=256 generate=8 --no-math",
    "model bert_base a100_80 phase=train --no-math",
    "model llama3_70b 8xh100 tp=8",
    "serve llama3_8b h100 load=4 requests=16",
    "collective 8xh100 all_reduce bytes=1MB",
    "compare h100,zen3 matmul,softmax n=256 --no-math",
    "sweep course_cpu matmul_tiled n=32 tile=8,16",
    "ladder matmul n=64",
)
ROWS = ("part", "why")
"""First heads of tables whose rows have names of parts and of waits."""


@pytest.mark.parametrize("command", SCREENS)
def test_every_head_and_every_row_of_why_that_is_printed_is_a_term(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    printed: set[str] = set()
    column, row = RichTable.add_column, RichTable.add_row

    def add_column(table: RichTable, header: Any = "", *rest: Any, **more: Any) -> None:
        printed.add(str(header))
        column(table, header, *rest, **more)

    def add_row(table: RichTable, *cells: Any, **more: Any) -> None:
        heads = [str(each.header) for each in table.columns]
        if heads and heads[0].startswith(ROWS):
            printed.add(str(cells[0]))
        if "bound by" in heads and len(cells) > heads.index("bound by"):
            printed.add(str(cells[heads.index("bound by")]))
        row(table, *cells, **more)

    monkeypatch.setattr(RichTable, "add_column", add_column)
    monkeypatch.setattr(RichTable, "add_row", add_row)
    assert command_line(*command.split()).code == 0
    if command.startswith(("run", "model")) and "8x" not in command:
        assert command_line("explain").code == 0
    assert len(printed) > 2
    assert {word for word in printed - NOT_WORDS if find_term(word) is None} == set()


def test_every_metric_is_a_term() -> None:
    heads = {word for metric in METRICS.values() for word in (metric.title, metric.head) if word}
    heads |= {about(name).title for name in THROUGHPUT} | {"throughput", "dram energy"}
    assert {head for head in heads if find_term(head) is None} == set()


@pytest.mark.parametrize(
    "word",
    ["static", "control", "operand supply", "stall", "bound", "arithmetic intensity", "hit rate", "Pareto front",
     "launch overhead", "memory traffic", "padding", "ld", "footprint", "tensor parallelism", "tp",
     "store forwarding", "first bytes", "packed", "loop order"],
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
    assert near_terms("bandwith") == ["bandwidth"]


@pytest.mark.parametrize("word", ["nothing", "xx", "elephant"])
def test_a_word_that_is_like_no_term_gets_no_suggestion(word: str) -> None:
    assert near_terms(word) == []


def test_memory_is_what_the_column_of_that_name_says() -> None:
    """`compare` heads the footprint with `memory`; main memory is DRAM."""
    found = {word: find_term(word) for word in ("memory", "main memory")}
    assert [term.name for term in found.values() if term] == ["footprint", "DRAM"]
