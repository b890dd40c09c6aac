"""What every class of machines promises, on every workload that comes with hwsim: see hwsim/target.py."""

from __future__ import annotations

import csv
import json
import re
from functools import cache
from io import StringIO
from math import fsum
from pathlib import Path

import pytest

from hwsim.api import Run, resolve_machine, resolve_workload, run_all
from hwsim.catalog import load_machine, workload_names
from hwsim.engine import FEMTOSECONDS
from hwsim.errors import CapacityError, InputError
from hwsim.memory.counters import CacheCounters, ScratchpadCounters
from hwsim.spec.machine import KINDS
from hwsim.spec.variant import parameter_keys
from hwsim.spec.workload import LAYOUT
from hwsim.target import Table, check_choices, find_target
from tests.cli.command_line import hwsim
from tests.small import FEWER, small_sizes

MACHINES = {"cpu": "course_cpu", "gpu": "a100_40", "grid": "eyeriss", "pim": "gddr6_aim", "systolic": "tpu_v3"}
"""One machine of each class."""
WORKLOADS = sorted(workload_names())
TYPICAL = ("matmul", "conv2d", "attention_fused", "softmax", "add", "mlp")
MOST_EVENTS = 50_000


def sizes_of(workload: str) -> dict[str, object]:
    return small_sizes(workload) | FEWER.get(workload, {})


@cache
def ran(kind: str, workload: str, timeline: bool = False) -> Run | None:
    """A small run; None where the class refuses the workload, with its reason."""
    try:
        return run_all(MACHINES[kind], workload, timeline=timeline, parameters=sizes_of(workload))
    except CapacityError:
        raise
    except InputError as error:
        assert kind != "cpu", f"a CPU refuses {workload}: {error}"
        assert re.search(r"with a CPU core|no rate for|computes with|has no unit for", str(error)), str(error)
        return None


def test_every_class_has_a_machine_here() -> None:
    assert set(MACHINES) == set(KINDS)
    assert all(load_machine(name).spec.kind == kind for kind, name in MACHINES.items())


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("kind", KINDS)
def test_bytes_time_and_energy_are_all_accounted_for(kind: str, workload: str) -> None:
    run = ran(kind, workload)
    if run is None:
        return
    check_bytes(run)
    check_time(run)
    check_energy(run)
    assert run.result.verified is True
    assert 0 < run.outcome.events <= MOST_EVENTS


def check_bytes(run: Run) -> None:
    """Main memory exchanges no more than what passed the levels above it."""
    levels, dram = run.outcome.levels, run.outcome.dram
    caches = [level for level in levels.values() if isinstance(level, CacheCounters)]
    pads = [level for level in levels.values() if isinstance(level, ScratchpadCounters)]
    if caches:
        passed = caches[-1].bytes_fetched + caches[-1].bytes_evicted
    else:
        passed = sum(pad.bytes_filled + pad.bytes_drained for pad in pads)
    assert dram.bytes_read + dram.bytes_written <= passed
    assert all(count >= 0 for level in (*levels.values(), dram) for count in level.to_dict().values())


def check_time(run: Run) -> None:
    """Every agent's time is busy or waiting for something with a name, and lies between its bounds."""
    result = run.result
    for agent in run.outcome.agents:
        assert sum(agent.busy.values()) + sum(agent.waiting.values()) == agent.elapsed_fs
        assert min([*agent.busy.values(), *agent.waiting.values()]) >= 0
    for groups in result.attribution.values():
        assert sum(cycles for group in groups.values() for cycles in group.values()) == result.cycles
    assert result.bounds["lower_s"] <= result.time_s * (1 + 1e-9)
    assert result.time_s <= result.bounds["upper_s"] * (1 + 1e-9)
    assert sum(stage.elapsed_fs for stage in run.outcome.stages) <= run.outcome.elapsed_fs


def check_energy(run: Run) -> None:
    result = run.result
    assert result.energy_j is not None and result.energy_by_cause is not None
    lines = [line["joules"] for actions in result.energy_by_cause.values() for line in actions.values()]
    assert fsum(lines) == pytest.approx(result.energy_j, rel=1e-12)
    assert all(line >= 0 for line in lines)


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_run_says_why_in_words_and_tables(kind: str, workload: str) -> None:
    run = ran(kind, workload)
    if run is None:
        return
    why = find_target(resolve_machine(MACHINES[kind])).why(run.result)
    assert why.bound.words.endswith(".") and 0 <= why.bound.share <= 1 + 1e-9
    assert why.advice.why and (why.advice.parameters or why.advice.settings)
    sections = [table for section in why.details.sections for table in section.body if isinstance(table, Table)]
    for table in (why.levels, *(each for each in why.body if isinstance(each, Table)), *sections):
        assert table.rows and all(len(row) <= len(table.columns) for row in table.rows)


@pytest.mark.parametrize("workload", TYPICAL)
@pytest.mark.parametrize("kind", KINDS)
def test_the_timeline_has_bars_and_power(kind: str, workload: str) -> None:
    """The energy of all pulses is the dynamic energy of the run."""
    run = ran(kind, workload, timeline=True)
    if run is None:
        return
    outcome, machine = run.outcome, resolve_machine(MACHINES[kind])
    assert machine.energy is not None
    assert len({span.lane for span in outcome.spans}) >= (2 if workload == "matmul" else 1)
    assert max(span.end_fs for span in outcome.spans) <= outcome.elapsed_fs * 1.001
    spent = fsum(
        entry.joules
        for pulse in outcome.pulses
        for entry in pulse.ledger.priced(machine.energy, 0, machine.name)  # type: ignore[arg-type]
        if entry.cause != "static"
    )
    whole = fsum(
        entry.joules
        for entry in outcome.ledger.priced(machine.energy, 0, machine.name)  # type: ignore[arg-type]
        if entry.cause != "static"
    )
    assert spent == pytest.approx(whole, rel=0.02)
    assert outcome.elapsed_fs < FEMTOSECONDS


@pytest.mark.parametrize("kind", KINDS)
def test_energy_as_csv_and_a_page_are_written(kind: str, tmp_path: Path) -> None:
    from hwsim.results.html import render_page, run_page
    from hwsim.results.metrics import energy_csv

    run = ran(kind, "matmul")
    assert run is not None
    rows = list(csv.DictReader(StringIO(energy_csv(run.result))))
    assert fsum(float(row["joules"]) for row in rows) == pytest.approx(run.result.energy_j, rel=1e-9)
    assert "<html" in render_page(run_page(run.result))
    assert json.loads(run.result.to_json())["machine"] == MACHINES[kind]


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_choice_is_read_or_refused(kind: str, workload: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A choice that the class lists is accepted; one that it does not list is refused by name, with the list."""
    target = find_target(resolve_machine(MACHINES[kind]))
    spec = resolve_workload(workload, small_sizes(workload))
    reads = target.reads(spec)
    monkeypatch.setattr(type(target), "reads", lambda self, work: reads)  # of the same workload again and again
    read = {name for name, knob in reads.items() if knob.group == "schedule"}
    read |= {name for knob in reads.values() for name in knob.also}
    for name, key in parameter_keys(spec).items():
        if key.path[0] != "schedule" or key.path[1] in LAYOUT:
            continue
        now = getattr(getattr(spec, "schedule", None), key.path[1], None)
        value = now if isinstance(now, str) else 1
        if name in read:
            check_choices(target, spec, {name: value})
            continue
        words = rf"{re.escape(name)}(=\w+)? means nothing on {MACHINES[kind]}; for {workload} it reads"
        with pytest.raises(InputError, match=words):
            check_choices(target, spec, {name: value})


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_class_searches_is_what_it_reads(kind: str) -> None:
    target = find_target(resolve_machine(MACHINES[kind]))
    spec = target.defaults(resolve_workload("matmul", {"n": 256}))
    space = target.space(spec)
    assert space and set(space) <= set(target.reads(spec))


@pytest.mark.parametrize("kind", KINDS)
def test_tune_is_never_slower_than_the_default(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed: so many times better than the default, or that the default is the best of those tried."""
    monkeypatch.chdir(tmp_path)
    found = hwsim("tune", MACHINES[kind], "matmul", "n=96", "--budget", "6", "--no-math")
    assert found.code == 0, found.err
    gain = re.search(r"([\d.,]+) times better than the default", found.out)
    assert gain is not None or "is the best that was found" in found.out.replace("\n", " ")
    assert gain is None or float(gain[1].replace(",", "")) >= 1
