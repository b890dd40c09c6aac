"""What cores share, they share in time: bandwidth in both directions, rows, and nothing that belongs to one of them."""

from __future__ import annotations

import pytest

import hwsim
from hwsim.api import prepare, resolve_machine, resolve_workload, simulate
from hwsim.engine import play as play_crew
from hwsim.errors import InputError
from hwsim.memory.hierarchy import build_hierarchy
from hwsim.targets.cpu.agent import CoreCrew
from tests.unit.engine.made import Script, adds


def test_a_cache_that_nobody_shares_takes_as_long_as_a_private_one() -> None:
    """One core alone: reads and writes of its L3 overlap, whether the L3 is called shared or not."""
    settings = {"core.count": 1, "l3.bandwidth": "4 B/cycle"}
    cycles = [
        hwsim.run("tinytorch_cpu", "triad", n=200_000, set={**settings, "l3.shared_by": sharing}).cycles
        for sharing in (1, "all")
    ]
    assert cycles[0] == pytest.approx(cycles[1], rel=1e-6)


@pytest.mark.parametrize("cores", [1, 4])
def test_cores_wait_for_each_others_rows(cores: int) -> None:
    """One bank that holds a row for a microsecond, then closes it (13.75 ns): no number of cores makes that shorter."""
    slow = {"dram.banks": 1, "dram.page": "closed", "dram.timing.tras": "1000 ns"}
    result = hwsim.run("course_cpu", "copy", n=2**16, parallel="rows", cores=cores, set=slow)
    rows = result.memory["dram"].row_misses
    assert rows > 8000
    assert result.time_s >= rows * 1013.75e-9 / (1 - 350 / 7800)


def test_a_warm_run_reports_its_own_counts() -> None:
    machine = resolve_machine("course_cpu")
    workload = resolve_workload("matmul_tiled", {"n": 64})
    hierarchy = build_hierarchy(machine)
    cold, warm = (
        play_crew(CoreCrew(machine, prepare(machine, workload, math=False), hierarchy=hierarchy)) for _ in range(2)
    )
    assert warm.levels["l1"].reads == cold.levels["l1"].reads == cold.loads
    assert warm.dram.reads < cold.dram.reads
    assert warm.ledger.counts()["core.instruction"] == cold.ledger.counts()["core.instruction"]


def test_a_price_per_bit_needs_bits() -> None:
    with pytest.raises(InputError, match=r"core.instruction per bit, and it moves no bits"):
        hwsim.run("course_cpu", "add", n=64, set={"energy.actions.core.instruction.energy": "1 pJ/bit"})


def test_a_script_without_memory_takes_its_own_time() -> None:
    assert simulate(resolve_machine("course_cpu"), Script([[adds(1000)]])).cycles == 1000
