"""Every workload that comes with hwsim runs on every machine that comes with it, and every result keeps its word."""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import cycle
from math import fsum

import pytest

import hwsim
from hwsim.api import Run, run_all
from hwsim.catalog import load_machine, load_workload, shipped_folder
from hwsim.errors import CapacityError, InputError
from hwsim.memory.counters import CacheCounters
from hwsim.numerics.format import FORMATS, find_format
from hwsim.result import RunResult
from hwsim.spec.variant import with_parameters
from hwsim.targets.cpu.model import core_spec
from tests.small import FEWER, small, small_on

MACHINES = sorted(path.stem for path in shipped_folder("machine").glob("*.yaml"))
WORKLOADS = sorted(path.stem for path in shipped_folder("workload").glob("*.yaml"))
KINDS = {name: load_machine(name).spec.compute[0].kind for name in MACHINES}
CORES = [name for name in MACHINES if KINDS[name] == "cpu" and not name.startswith("ladder_") and name != "rp2040"]
THOROUGH = ("course_cpu", "zen3")
"""Cores that every workload runs on: a textbook's and a server's. Each of the others takes every fourth
workload, and others than the core before it; `make golden` has them all."""
SHARE = 4
RUNGS = [name for name in MACHINES if name.startswith("ladder_")]
"""Machines of one node from a scalar core to fixed function: made to compare the energy of a few workloads."""
OTHERS = [
    name for name in MACHINES if KINDS[name] in ("systolic", "gpu")
]  # a grid computes convolutions and products alone
ONE_OF_EACH_OTHER_KIND = list({KINDS[name]: name for name in reversed(OTHERS)}.values())
SOMETIMES_REFUSED = ("pointer_chase", "sum_rows", "sum_columns", "gpu_matmul_tensor")
TYPICAL = ("matmul", "conv2d_3x3", "attention_fused", "softmax", "resnet_block")

NATIVE = ("fp64", "fp32", "fp16", "bf16", "int32", "int8")
"""What most CPUs here compute in."""
COMPUTED = {name: [each for each in NATIVE if each in core_spec(load_machine(name).spec).formats] for name in CORES}
OTHER_FORMATS = sorted(FORMATS.keys() - {*NATIVE, "int64"})
# One of each kind of access: along rows, down columns, through gathers, into sums, and into a copy.
ACCESS_PATTERNS = ("contiguous_copy", "fused", "matmul", "matmul_naive", "sum_columns", "view_transpose")

# Every workload in one of three kinds of format: floating point, whole numbers, and blocks that share a scale.
CONVERTED = [
    *zip(cycle(("fp8_e4m3", "int4", "mxfp4")), WORKLOADS, strict=False),
    *((precision, workload) for precision in (*OTHER_FORMATS, "e5m3") for workload in ACCESS_PATTERNS),
]
CONVERTED = [pair for pair in dict.fromkeys(CONVERTED) if pair[1] != "pointer_chase"]
SCALED = (
    "add", "attention_fused", "attention_naive", "conv2d", "conv_bn_folded", "embedding", "layernorm",
    "matmul", "matvec", "maxpool", "mlp", "reduce_max", "softmax", "stream_read", "transformer_block", "view_slice",
)  # fmt: skip

FIRST_KEYS = (
    "machine", "workload", "version", "seed", "verified", "cycles", "time_s", "energy_j", "power_w", "energy", "memory",
    "work", "intensity", "error", "attribution", "peak_memory_bytes", "warnings", "resolved",
)  # fmt: skip
LEVEL_KEYS = {"reads", "writes", "read_misses", "write_misses", "writebacks", "bytes_read", "bytes_written"}


def pairs() -> list[tuple[str, str]]:
    found = [(machine, workload) for machine in THOROUGH for workload in WORKLOADS]
    for number, machine in enumerate(name for name in CORES if name not in THOROUGH):
        found += [(machine, workload) for workload in WORKLOADS[number % SHARE :: SHARE]]
    return found


@cache
def ran(machine: str, workload: str, precision: str | None = None, convert: bool = False) -> Run:
    chosen: dict[str, object] = {} if precision is None else {"precision": precision, "convert": convert}
    if precision is None and machine in COMPUTED and load_workload(workload).spec.precision not in COMPUTED[machine]:
        chosen = {"convert": True}
    return run_all(machine, workload, parameters={**small_on(machine, workload), **FEWER.get(workload, {}), **chosen})


def test_there_is_something_to_run() -> None:
    assert len(CORES) >= 5
    assert len(WORKLOADS) >= 60


@pytest.mark.parametrize(("machine", "workload"), pairs())
def test_every_workload_keeps_its_promises_on_every_cpu(machine: str, workload: str) -> None:
    run = ran(machine, workload)
    check_answer(run.result)
    check_json(run.result, machine, workload)
    check_energy(run.result, machine)
    check_ledger(run, machine)
    check_time(run.result)


@pytest.mark.parametrize("workload", TYPICAL)
@pytest.mark.parametrize("machine", RUNGS)
def test_typical_workloads_keep_their_promises_on_the_ladder_of_specialisation(machine: str, workload: str) -> None:
    run = ran(machine, workload)
    check_answer(run.result)
    check_energy(run.result, machine)
    if KINDS[machine] == "cpu":
        check_ledger(run, machine)
    check_time(run.result)


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("machine", ONE_OF_EACH_OTHER_KIND)
def test_every_workload_runs_on_an_accelerator_or_is_refused_with_the_reason(machine: str, workload: str) -> None:
    """An accelerator works on tiles of tensors, in its own formats: what follows pointers is none of its business."""
    try:
        ran(machine, workload)
    except InputError as error:
        assert workload in SOMETIMES_REFUSED, f"{machine} refuses {workload}: {error}"
        assert re.search("with a CPU core|no rate for", str(error))
        return
    assert workload != "pointer_chase"
    check_accelerator(machine, workload)


@pytest.mark.parametrize("workload", TYPICAL)
@pytest.mark.parametrize("machine", OTHERS)
def test_typical_workloads_run_on_every_accelerator(machine: str, workload: str) -> None:
    check_accelerator(machine, workload)


def check_accelerator(machine: str, workload: str) -> None:
    result = ran(machine, workload).result
    check_answer(result)
    check_json(result, machine, workload)
    check_energy(result, machine)
    check_time(result)


def check_answer(result: RunResult) -> None:
    assert result.verified is True
    assert result.cycles > 0
    assert result.work["flops"] >= result.work["useful_flops"]


def check_json(result: RunResult, machine: str, workload: str) -> None:
    """Every key is there, and a result comes back as it was written."""
    data = json.loads(result.to_json())
    assert tuple(data)[: len(FIRST_KEYS)] == FIRST_KEYS
    assert (data["machine"], data["workload"]) == (machine, workload)
    assert set(data["error"]) >= {"max_rel", "rms_rel"}
    assert len(data["memory"]) >= 2
    assert all(set(level) >= LEVEL_KEYS for level in data["memory"].values())
    assert data["resolved"].keys() == {"machine", "workload"}
    assert type(result).from_json(result.to_json()) == result


def check_energy(result: RunResult, machine: str) -> None:
    """An action without a price would have stopped the run; static power is the machine's, over the run's time."""
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


def check_ledger(run: Run, machine: str) -> None:
    """A fill is one more write of a cache and a victim one more read; levels exchange whole lines here."""
    counts = run.outcome.ledger.counts()
    caches = load_machine(machine).spec.caches
    assert [spec.name for spec in caches] == list(run.outcome.levels)
    for spec in caches:
        level = run.outcome.levels[spec.name]
        assert isinstance(level, CacheCounters)
        victims, fills = level.bytes_evicted // spec.line, level.bytes_fetched // spec.line
        assert counts.get(f"{spec.name}.read", 0) == level.reads + level.prefetch_reads + victims
        assert counts.get(f"{spec.name}.write", 0) == level.writes + fills
    dram = run.outcome.dram
    assert counts.get(f"{load_machine(machine).spec.memory[-1].name}.activate", 0) == dram.activates
    issued = run.outcome.instructions.total
    if core_spec(load_machine(machine).spec).vliw:  # several in one long instruction
        assert issued / core_spec(load_machine(machine).spec).issue_width <= counts["core.instruction"] <= issued
    else:
        assert counts["core.instruction"] == issued


def check_time(result: RunResult) -> None:
    """The cycles of every core, array or GPU are all accounted for."""
    assert len(result.attribution) == result.work["cores"]
    for groups in result.attribution.values():
        assert set(groups) == {"busy", "waiting"}
        shares = [cycles for group in groups.values() for cycles in group.values()]
        assert min(shares) >= 0
        assert sum(shares) == result.cycles
    assert result.bounds["lower_s"] <= result.time_s * (1 + 1e-12)
    assert result.time_s <= result.bounds["upper_s"] * (1 + 1e-12)


def test_a_store_that_passes_through_is_no_victim_in_the_ledger() -> None:
    run = run_all("course_cpu", "add", set={"l1.write": "through"}, parameters={"n": 4096})
    assert run.outcome.levels["l1"].bytes_evicted == 4 * 4096
    assert run.outcome.ledger.counts()["l1.read"] == run.outcome.levels["l1"].reads


def test_an_exclusive_cache_is_written_by_victims_from_above_alone() -> None:
    run = run_all("course_cpu", "add", set={"l2.inclusion": "exclusive"}, parameters={"n": 16384})
    level = run.outcome.levels["l2"]
    assert level.bytes_fetched > 0
    assert run.outcome.ledger.counts()["l2.write"] == level.writes > 0


@pytest.mark.parametrize("workload", ACCESS_PATTERNS)
@pytest.mark.parametrize(
    ("machine", "precision"), [(machine, precision) for machine in THOROUGH for precision in COMPUTED[machine]]
)
def test_every_machine_runs_and_prices_every_format_that_it_has(machine: str, precision: str, workload: str) -> None:
    """The widest case is a vector of int8 that is gathered lane by lane: 64 lanes on a machine of 512 bits."""
    result = ran(machine, workload, precision).result
    assert result.verified is True
    assert result.energy_j is not None
    assert any(f".{precision}" in action for action in (result.energy_by_cause or {})["arithmetic"])
    assert result.work["instructions"]["convert"] == 0


@pytest.mark.parametrize(("precision", "workload"), CONVERTED)
def test_every_workload_runs_in_every_other_format_if_it_may_convert(precision: str, workload: str) -> None:
    """Packed tensors, short vectors and all: the answer is what its stored inputs give, and conversions are counted.

    Integers without a scale have no exponentials, roots and fractions. A chain without scales may leave the range of a
    narrow format; then the answer is wrong, and the warning says why.
    """
    fmt = find_format(precision)
    try:
        result = ran("zen3", workload, precision, convert=True).result
    except InputError as error:
        assert fmt.is_integer
        assert "fp32" in str(error)
        return
    overflows = load_workload(workload).spec.op == "chain" and fmt.largest < 500
    if overflows and result.verified is False:
        assert any(f"beyond the range of {precision}" in warning for warning in result.warnings)
        return
    assert result.verified is True
    assert result.energy_j is not None
    assert (result.work["instructions"]["convert"] > 0) == (fmt.bits < 32)
    assert type(result).from_json(result.to_json()) == result


@pytest.mark.parametrize("workload", SCALED)
@pytest.mark.parametrize(("precision", "scale"), [("int8", "row"), ("fp8_e4m3", "tensor"), ("int4", "block")])
def test_any_workload_runs_with_scales(precision: str, scale: str, workload: str) -> None:
    """With scales, integers too have roots and exponentials, and nothing leaves its range."""
    spec = load_workload(workload).spec
    sizes = {**small(workload), **FEWER.get(workload, {})}
    result = hwsim.run("zen3", with_parameters(spec, sizes), precision=precision, scale=scale, convert=True)
    assert result.verified is True
    assert result.numeric is not None
    assert result.numeric.rms_rel < 0.5


@pytest.mark.parametrize("machine", CORES)
def test_a_format_that_a_machine_lacks_is_refused_with_those_it_has(machine: str) -> None:
    with pytest.raises(InputError, match=r"does not compute in fp8_e4m3; it has .*fp32.*convert=true"):
        run_all(machine, "add", parameters={"n": 16, "precision": "fp8_e4m3"})


def test_a_microcontroller_runs_what_fits_its_memory_and_refuses_the_rest() -> None:
    """264 KiB of SRAM (Raspberry Pi, RP2040 data sheet): three matrices of 128 x 128 fp32 fit, of 160 x 160 do not."""
    assert hwsim.run("rp2040", "matmul_naive", n=128, math=False).time_s > 0
    with pytest.raises(CapacityError, match="in sram, which has 264 KiB"):
        hwsim.run("rp2040", "matmul_naive", n=160, math=False)
