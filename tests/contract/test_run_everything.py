"""Every workload that comes with hwsim runs on every CPU that comes with it, and every result keeps its word."""

from __future__ import annotations

import json
from functools import cache
from math import fsum

import pytest

from hwsim.api import Run, run_all
from hwsim.catalog import load_machine, load_workload, shipped_folder
from hwsim.numerics.format import FORMATS
from hwsim.spec.parameters import parameter_keys

SHIPPED = sorted(path.stem for path in shipped_folder("machine").glob("*.yaml"))
MACHINES = [name for name in SHIPPED if load_machine(name).spec.compute[0].kind == "cpu"]
WORKLOADS = sorted(path.stem for path in shipped_folder("workload").glob("*.yaml"))

SMALL: dict[str, object] = {"n": 100, "i": 40, "j": 40, "k": 40, "bytes": "4 KiB", "steps": 300}
"""Sizes that no tile and no vector divides, so that edges run too."""

FIRST_KEYS = (
    "machine", "workload", "version", "seed", "verified", "cycles", "time_s", "energy_j", "power_w", "energy", "memory",
    "work", "intensity", "error", "attribution", "peak_memory_bytes", "warnings", "resolved",
)  # fmt: skip
LEVEL_KEYS = {"reads", "writes", "read_misses", "write_misses", "writebacks", "bytes_read", "bytes_written"}

# One of each kind of access: along rows, down columns, through gathers, into sums, and into a copy.
ACCESS_PATTERNS = ("contiguous_copy", "fused", "matmul", "matmul_naive", "sum_columns", "view_transpose")

everything = pytest.mark.parametrize(
    ("machine", "workload"), [(machine, workload) for machine in MACHINES for workload in WORKLOADS]
)


def small(workload: str) -> dict[str, object]:
    keys = parameter_keys(load_workload(workload).spec)
    return {key: value for key, value in SMALL.items() if key in keys and not (key == "k" and "n" in keys)}


@cache
def ran(machine: str, workload: str, precision: str | None = None) -> Run:
    chosen = {} if precision is None else {"precision": precision}
    return run_all(machine, workload, parameters={**small(workload), **chosen})


def test_there_is_something_to_run() -> None:
    assert len(MACHINES) >= 5
    assert len(WORKLOADS) >= 20


@everything
def test_the_answer_is_right(machine: str, workload: str) -> None:
    result = ran(machine, workload).result
    assert result.verified is True
    assert result.cycles > 0
    assert result.work["flops"] >= result.work["useful_flops"]


@everything
def test_the_json_has_every_key(machine: str, workload: str) -> None:
    result = ran(machine, workload).result
    data = json.loads(result.to_json())
    assert tuple(data)[: len(FIRST_KEYS)] == FIRST_KEYS
    assert (data["machine"], data["workload"]) == (machine, workload)
    assert set(data["error"]) == {"max_rel", "rms_rel"}
    assert len(data["memory"]) >= 2
    assert all(set(level) >= LEVEL_KEYS for level in data["memory"].values())
    assert data["resolved"].keys() == {"machine", "workload"}
    assert type(result).from_json(result.to_json()) == result


@everything
def test_every_joule_has_a_component_and_a_cause(machine: str, workload: str) -> None:
    """An action without a price would have stopped the run; static power is the machine's, over the run's time."""
    result = ran(machine, workload).result
    assert result.energy_j is not None and result.energy is not None and result.energy_by_cause is not None
    assert result.power_w is not None
    lines = [line["joules"] for actions in result.energy_by_cause.values() for line in actions.values()]
    assert fsum(lines) == pytest.approx(result.energy_j, rel=1e-12)
    assert fsum(result.energy.values()) == pytest.approx(result.energy_j, rel=1e-12)
    assert result.power_w * result.time_s == pytest.approx(result.energy_j, rel=1e-12)
    prices = load_machine(machine).spec.energy
    assert prices is not None
    watts = fsum(float(each.power) for each in prices.static.values())
    static = fsum(line["joules"] for line in result.energy_by_cause["static"].values())
    assert static == pytest.approx(watts * result.time_s, rel=1e-9)
    assert result.energy_j > static


@everything
def test_the_ledger_counts_what_the_caches_counted(machine: str, workload: str) -> None:
    """A fill is one more write of a cache and a victim one more read; levels exchange whole lines here."""
    run = ran(machine, workload)
    counts = run.outcome.ledger.counts()
    caches = load_machine(machine).spec.caches
    assert [spec.name for spec in caches] == list(run.outcome.levels)
    for spec in caches:
        level = run.outcome.levels[spec.name]
        victims, fills = level.bytes_evicted // spec.line, level.bytes_fetched // spec.line
        assert counts.get(f"{spec.name}.read", 0) == level.reads + level.prefetch_reads + victims
        assert counts.get(f"{spec.name}.write", 0) == level.writes + fills
    dram = run.outcome.dram
    assert counts.get("dram.activate", 0) == dram.activates
    assert counts["core.instruction"] == run.outcome.instructions.total


def test_a_store_that_passes_through_is_no_victim_in_the_ledger() -> None:
    run = run_all("course_cpu", "add", set={"l1.write": "through"}, parameters={"n": 4096})
    assert run.outcome.levels["l1"].bytes_evicted == 4 * 4096
    assert run.outcome.ledger.counts()["l1.read"] == run.outcome.levels["l1"].reads


def test_an_exclusive_cache_is_written_by_victims_from_above_alone() -> None:
    run = run_all("course_cpu", "add", set={"l2.inclusion": "exclusive"}, parameters={"n": 16384})
    level = run.outcome.levels["l2"]
    assert level.bytes_fetched > 0
    assert run.outcome.ledger.counts()["l2.write"] == level.writes > 0


@everything
def test_the_cycles_of_every_core_are_all_accounted_for(machine: str, workload: str) -> None:
    result = ran(machine, workload).result
    assert len(result.attribution) == result.work["cores"]
    for groups in result.attribution.values():
        assert set(groups) == {"busy", "waiting"}
        shares = [cycles for group in groups.values() for cycles in group.values()]
        assert min(shares) >= 0
        assert sum(shares) == result.cycles
    assert result.bounds["lower_s"] <= result.time_s * (1 + 1e-12)
    assert result.time_s <= result.bounds["upper_s"] * (1 + 1e-12)


@pytest.mark.parametrize("workload", ACCESS_PATTERNS)
@pytest.mark.parametrize("precision", FORMATS)
@pytest.mark.parametrize("machine", MACHINES)
def test_every_machine_runs_and_prices_every_format(machine: str, precision: str, workload: str) -> None:
    """The widest case is a vector of int8 that is gathered lane by lane: 64 lanes on a machine of 512 bits."""
    result = ran(machine, workload, precision).result
    assert result.verified is True
    assert result.energy_j is not None
    assert any(f".{precision}" in action for action in (result.energy_by_cause or {})["arithmetic"])
