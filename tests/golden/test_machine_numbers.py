"""Numbers that were published or measured elsewhere, and that the shipped machine files must carry.

Zen 3: the measured EPYC 7003-class host (latency and bandwidth tables), LLVM's scheduling model of the core.
Skylake-SP: AnandTech's cache table (2017), Tom's Hardware (2017) for operations per cycle.
Cortex-A78: WikiChip. The two teaching machines: the course notes and TinyTorch's module 11.
GPUs: NVIDIA's data sheets of P100 PCIe, V100 SXM2, A100, H100 SXM5, T4 and L4, without sparsity.
Energy: Horowitz, ISSCC 2014 (45 nm); Jouppi et al., ISCA 2021 (7 nm), the rows that are quoted in public.
"""

from __future__ import annotations

import pytest

import hwsim
from hwsim.catalog import load_machine
from hwsim.errors import InputError
from hwsim.spec.machine import CacheSpec, Level, MachineSpec
from hwsim.targets.cpu.spec import CpuSpec

MACHINES = ["course_cpu", "cortex_a78", "skylake_avx512", "tinytorch_cpu", "zen3"]
CPU_FORMATS = ("fp64", "fp32", "fp16", "bf16", "int32", "int8")
KIB = 1024


def machine(name: str) -> MachineSpec:
    return load_machine(name).spec


def cache(spec: MachineSpec, name: str) -> CacheSpec:
    level = spec.level(name)
    assert isinstance(level, CacheSpec)
    return level


def core(spec: MachineSpec) -> CpuSpec:
    (unit,) = spec.compute
    return unit


def nanoseconds(spec: MachineSpec, level: Level) -> float:
    assert level.latency is not None
    return float(level.latency.seconds(spec.clock_hz(level.clock)) * 10**9)


def cycles(spec: MachineSpec, level: Level) -> float:
    """Load-to-use time in cycles of the core."""
    assert level.latency is not None
    return float(level.latency.seconds(spec.clock_hz(level.clock)) * spec.clock_hz(None))


def gigabytes_per_second(spec: MachineSpec, level: Level) -> float:
    bandwidth = level.unit_bandwidth or level.bandwidth
    assert bandwidth is not None
    hz = spec.clock_hz(level.clock)
    per_cycle = bandwidth.bytes_per_cycle(hz)
    assert per_cycle is not None
    return float(per_cycle * hz / 10**9)


def flops_per_cycle(spec: MachineSpec, bits: int) -> int:
    unit = core(spec)
    assert unit.simd is not None
    return unit.ports.fma * (unit.simd.bits // bits) * 2


def picojoules(spec: MachineSpec, action: str) -> float:
    assert spec.energy is not None
    return float(spec.energy.actions[action].energy.picojoules)


@pytest.mark.parametrize(
    ("name", "level", "kib", "ways", "latency_cycles"),
    [
        ("zen3", "l1", 32, 8, 4),
        ("zen3", "l2", 512, 8, 12),
        ("skylake_avx512", "l1", 32, 8, 4),
        ("skylake_avx512", "l2", 1024, 16, None),
        ("skylake_avx512", "l3", 16 * 1408, 11, 77),  # 1.375 MiB for each core
        ("cortex_a78", "l1", 64, 4, None),
        ("cortex_a78", "l2", 512, 8, None),
        ("cortex_a78", "l3", 4096, 16, None),
        ("course_cpu", "l1", 32, 8, 1),  # 0.5 ns at 2 GHz
        ("course_cpu", "l2", 256, 8, 14),  # 7 ns at 2 GHz
        ("tinytorch_cpu", "l1", 32, None, 1),
        ("tinytorch_cpu", "l2", 256, None, 10),
        ("tinytorch_cpu", "l3", 8192, None, 50),
    ],
)
def test_caches_have_the_published_geometry_and_latency(
    name: str, level: str, kib: int, ways: int | None, latency_cycles: int | None
) -> None:
    """None where no published number was found and the file makes a choice."""
    spec = machine(name)
    found = cache(spec, level)
    assert found.size == kib * KIB
    assert ways is None or found.ways == ways
    assert latency_cycles is None or cycles(spec, found) == latency_cycles


def test_tinytorch_reaches_dram_in_200_cycles_of_the_core() -> None:
    spec = machine("tinytorch_cpu")
    assert cycles(spec, spec.level("dram")) == 200


@pytest.mark.parametrize(
    ("name", "bits", "expected"),
    [
        ("skylake_avx512", 64, 32),  # Tom's Hardware: 32 in double and 64 in single precision
        ("skylake_avx512", 32, 64),
        ("zen3", 32, 32),  # two pipes of 256 bits
        ("cortex_a78", 32, 16),  # two pipes of 128 bits
    ],
)
def test_operations_per_cycle_follow_from_ports_and_lanes(name: str, bits: int, expected: int) -> None:
    assert flops_per_cycle(machine(name), bits) == expected


def test_a_zen3_core_peaks_at_104_gflops_in_single_precision() -> None:
    spec = machine("zen3")
    assert flops_per_cycle(spec, 32) * spec.clock_hz(None) / 1e9 == pytest.approx(103.68)


def test_zen3_execution_matches_the_scheduling_model_of_llvm() -> None:
    unit = core(machine("zen3"))
    assert unit.issue_width <= 6  # what measured loops sustain is fitted below what is dispatched
    assert unit.window == 256
    assert (unit.latency.fma, unit.latency.add, unit.latency.mul) == (4, 3, 3)
    assert (unit.ports.fma, unit.ports.add, unit.ports.mul, unit.ports.store) == (2, 2, 2, 1)


@pytest.mark.parametrize(
    ("level", "low_ns", "high_ns"),
    [("l1", 1.22, 1.27), ("l2", 3.65, 3.75), ("l3", 13.0, 16.1), ("dram", 125.0, 135.0)],
)
def test_zen3_latencies_lie_in_the_measured_ranges(level: str, low_ns: float, high_ns: float) -> None:
    spec = machine("zen3")
    assert low_ns <= nanoseconds(spec, spec.level(level)) <= high_ns


@pytest.mark.parametrize(("level", "measured"), [("l1", 206.1), ("l2", 103.3)])
def test_zen3_private_caches_have_the_measured_bandwidth(level: str, measured: float) -> None:
    spec = machine("zen3")
    assert gigabytes_per_second(spec, spec.level(level)) == pytest.approx(measured, rel=0.01)


def test_one_zen3_core_gets_the_measured_bandwidth_from_l3_and_dram() -> None:
    spec = machine("zen3")
    assert 62 <= gigabytes_per_second(spec, spec.level("l3")) <= 74
    lines_in_flight = cache(spec, "l2").mshrs
    assert 21 <= lines_in_flight * 64 / nanoseconds(spec, spec.level("dram")) <= 25


@pytest.mark.parametrize("name", MACHINES)
def test_every_action_of_a_cpu_has_a_price(name: str) -> None:
    spec = machine(name)
    assert spec.energy is not None
    needed = {f"core.{op}.{form}" for op in ("fma", "add", "mul", "special") for form in CPU_FORMATS}
    needed |= {f"{level.name}.{action}" for level in spec.memory for action in ("read", "write")}
    needed |= {"core.instruction", "dram.activate"}
    assert needed - set(spec.energy.actions) == set()
    assert {"core", "dram", "machine"} <= set(spec.energy.static)


@pytest.mark.parametrize("name", MACHINES)
def test_values_that_move_are_priced_by_the_bit_and_operations_by_the_piece(name: str) -> None:
    spec = machine(name)
    assert spec.energy is not None
    for action, price in spec.energy.actions.items():
        assert price.energy.per == ("bit" if action.endswith((".read", ".write")) else "action"), action


@pytest.mark.parametrize("name", ["course_cpu", "tinytorch_cpu"])
@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("core.add.fp32", 0.9),
        ("core.mul.fp32", 3.7),
        ("core.fma.fp32", 4.6),
        ("core.add.fp16", 0.4),
        ("core.mul.fp16", 1.1),
        ("core.add.int32", 0.1),
        ("core.mul.int32", 3.1),
        ("core.add.int8", 0.03),
        ("core.mul.int8", 0.2),
        ("l1.read", 20 / 64),
        ("dram.read", 640 / 32),
    ],
)
def test_the_course_machines_carry_horowitz_45_nm_prices(name: str, action: str, expected: float) -> None:
    assert picojoules(machine(name), action) == pytest.approx(expected)


def test_an_instruction_with_its_registers_costs_70_pj_and_a_multiply_add_is_6_percent_of_one() -> None:
    spec = machine("course_cpu")
    register = 32 * picojoules(spec, "regs.read")
    overhead = picojoules(spec, "core.instruction")
    assert overhead + 3 * register == pytest.approx(70)
    multiply_add = picojoules(spec, "core.fma.fp32")
    assert multiply_add / (overhead + 4 * register + multiply_add) == pytest.approx(0.06, abs=0.001)


@pytest.mark.parametrize(
    ("action", "expected"),
    [("core.add.fp32", 0.38), ("core.mul.fp32", 1.31), ("core.mul.bf16", 0.21), ("core.mul.int8", 0.07)],
)
def test_zen3_carries_the_published_7_nm_prices(action: str, expected: float) -> None:
    assert picojoules(machine("zen3"), action) == expected


def test_prices_interpolated_for_14_nm_lie_between_those_of_45_and_7_nm() -> None:
    old, middle, new = machine("course_cpu"), machine("skylake_avx512"), machine("zen3")
    actions = [f"core.{op}.{form}" for op in ("fma", "add", "mul", "special") for form in CPU_FORMATS]
    for action in (*actions, "regs.read", "l1.read"):
        assert picojoules(new, action) < picojoules(middle, action) < picojoules(old, action), action


PEAKS = {
    "p100": {"fp64": 4.7, "fp32": 9.3, "fp16": 18.7},
    "v100": {"fp64": 7.8, "fp32": 15.7, "fp16": 125},
    "a100_40": {"fp32": 19.5, "bf16": 312, "fp16": 312, "int8": 624},
    "h100": {"bf16": 989, "fp8_e4m3": 1979, "int8": 1979},
    "t4": {"fp32": 8.1, "fp16": 65},
    "l4": {"fp32": 30.3, "fp16": 121, "fp8_e4m3": 242, "int8": 242},
}
"""Tera-operations in a second, on the units that the library uses (a T4's takes lanes for int8) and at the clock of the
file (an H100's is that of its published tensor figures; fp32 is published at a higher one)."""


@pytest.mark.parametrize("name", PEAKS)
def test_a_gpu_reaches_the_peaks_of_its_data_sheet(name: str) -> None:
    for precision, published in PEAKS[name].items():
        result = hwsim.run(name, "matmul", n=256, precision=precision, math=False)
        assert result.work.peak_flops_per_s / 1e12 == pytest.approx(published, rel=0.02), precision


def test_a_p100_has_neither_tensor_cores_nor_products_of_bytes() -> None:
    """Compute capability 6.0; it extends a V100, whose 512 products a cycle it once kept: 75 Tflop/s."""
    (unit,) = machine("p100").compute
    assert unit.tensor == {} and unit.accumulate == {}  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="int8"):
        hwsim.run("p100", "matmul", n=64, precision="int8", math=False)
