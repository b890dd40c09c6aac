"""Every count of the cache table, which an independent simulator made, through the public API.

The `tb_*` columns are textbook write-back, write-allocate counts. Rows with `dinero_checked` 1 equal DineroIV 7.
"""

from __future__ import annotations

import csv
from importlib import resources

import pytest

from hwsim.memory.hierarchy import Hierarchy
from hwsim.spec.machine import CacheSpec
from hwsim.validation.cache import Sizes, nests

COUNTERS = ("reads", "writes", "read_miss", "write_miss", "writebacks")
SIZES = ("n", "m", "k", "T", "elem", "base_a", "base_b", "base_c", "lda", "ldb", "ldc")
with (resources.files("hwsim.validation") / "data" / "cache.csv").open(encoding="utf-8", newline="") as table:
    ROWS = list(csv.DictReader(table))


def levels(row: dict[str, str]) -> list[CacheSpec]:
    specs = []
    for number, text in enumerate(row["levels"].split(";"), start=1):
        shape, policy = text.split(":")
        sets, ways = map(int, shape.split("x"))
        size, line = f"{sets * ways * int(row['line'])} B", f"{row['line']} B"
        given = {"kind": "cache", "name": f"l{number}", "size": size, "line": line, "ways": ways}
        specs.append(CacheSpec.model_validate({**given, "replacement": policy.lower()}))
    return specs


@pytest.mark.parametrize("fast", [True, False], ids=["compressed and warped", "plain walk"])
@pytest.mark.parametrize("row", ROWS, ids=[f"{row['id']} {row['kernel']}" for row in ROWS])
def test_every_counter_of_every_level_is_equal(row: dict[str, str], fast: bool) -> None:
    hierarchy = Hierarchy(levels(row), compress=fast, warp=fast)
    accesses = 0
    for nest in nests(row["kernel"], Sizes(*(int(row[name]) for name in SIZES))):
        accesses += hierarchy.replay(nest).accesses
    found = {"accesses": accesses}
    for number, (name, counters) in enumerate(hierarchy.counters().items(), start=1):
        for column in COUNTERS:
            field = column.replace("_miss", "_misses")
            found[f"tb_L{number}_{column}"] = getattr(counters, field)
        dirty = sum(modified for group in hierarchy.contents(name) for _, modified in group)
        found[f"tb_L{number}_dirty_end"] = dirty
    memory = hierarchy.dram.counters
    found |= {"tb_MEM_reads": memory.reads, "tb_MEM_writes": memory.writes}
    wanted = {name for name in row if name.startswith("tb_") and row[name]} | {"accesses"}
    assert found == {name: int(row[name]) for name in wanted}


def test_the_table_is_whole() -> None:
    assert len(ROWS) == 40
    assert len({row["kernel"] for row in ROWS}) == 13
