"""Every number of a machine file counts: it changes a number of some small run, or its declaration says why not.

Numbers that no model reads look as if they were simulated. This check changes each number that a shipped machine writes
alone, and looks for a run that follows: without math, some milliseconds each, in the formats and for the kernels that
the number is about. The default part takes one machine of each class and, of long lists of library kernels, the first
and the last; `--golden-all` (or HWSIM_ALL=1 in the environment) takes everything.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from pydantic import Field

from hwsim.catalog import machine_names
from hwsim.spec.machine import MachineSpec
from hwsim.targets.cpu.spec import CpuSpec
from tests.perturb import KernelAlone, Leaf, MeasuredAttention, OnUnit, Runs, Subject, Trial, descriptive

EACH_CLASS = ("course_cpu", "a100_40", "tpu_v3", "eyeriss", "gddr6_aim")
LISTS = ("tensor_tiles", "byte_tiles", "narrow_tiles", "lane_tiles", "attention", "split_k")
"""Lists of library kernels, of which the default part takes the first and the last."""

ROWS = "eight channels and more open rows faster than one core complex asks for them"
EPYC = {
    "l2.line": "no cache has shorter lines than the one before it or longer ones than the one behind",
    "clock.memory.frequency": ROWS,
    "dram.ranks": ROWS,
}
UNREAD: dict[str, dict[str, str]] = {
    "gpu": {
        "l1.size": "hand-written kernels add what they leave of shared memory: more than small ones need",
        "library.split_k[0]": "one piece is no split, and is always among the choices",
        "l2.ways": "the L2 of library kernels is replayed by tiles",
        "l2.line": "the L2 of library kernels is replayed by tiles",
        "dram.channels": "no timing of rows is given: bandwidth decides",
        "dram.banks": "no timing of rows is given: bandwidth decides",
        "dram.row": "no timing of rows is given: bandwidth decides",
    },
    "grid": {
        "bank_width": "an element takes one value of each operand in a cycle, and the buffer has a bandwidth",
    },
    "skylake_avx512": {
        "dram.timing.trefi": "six channels of banks keep up with their bus, also between refreshes",
        "dram.timing.trfc": "six channels of banks keep up with their bus, also between refreshes",
    },
    "zen3": EPYC,
    "zen4": EPYC,
    "t4": {"l1.line": "its loads take longer to address than to pass the lines that they touch"},
}
"""Numbers of a class, or of a machine, that nothing follows yet, by the end of their path, each with the reason."""


@cache
def trial(workload: str, *, math: bool = False, **parameters: Any) -> Trial:
    """One object for equal runs, so that what they find on the unchanged machine is found once."""
    return Trial(workload, parameters, math)


attention, on_unit, alone = cache(MeasuredAttention), cache(OnUnit), cache(KernelAlone)


def cpu_trials(machine: MachineSpec, leaf: Leaf) -> Iterator[Runs]:
    yield trial("matmul_tiled", n=40)
    yield trial("softmax", m=4, n=512)
    yield trial("triad")
    yield trial("layernorm", m=4, n=256)
    yield trial("matmul_simd", n=40, v1=8)
    yield trial("transpose")
    yield trial("pointer_chase", bytes="1 MiB", steps=1000)
    yield trial("matmul_parallel", n=64, tile=8)
    yield trial("matvec", n=2048)
    yield trial("transpose", m=1024, n=4096)
    if "waiting_loads" in leaf.path:
        yield trial("matmul_tiled", n=64, tile=32, ld=1024)
        yield trial("sum_columns", m=32, n=1024)
    if leaf.shown.startswith("l3."):
        yield trial("matmul_naive", n=24, ld=1 << 19)
    if leaf.shown.startswith("dram."):
        yield trial("copy", n=1 << 23, parallel="rows", cores=machine.compute[0].count)
    if "formats" in leaf.path:
        yield trial("matmul_tiled", n=40, tile=8, precision=leaf.path[-1] if len(leaf.path) < 6 else leaf.path[-2])


def gpu_trials(machine: MachineSpec, leaf: Leaf) -> Iterator[Runs]:
    yield from _kernel_trials(machine, leaf)
    unit: Any = machine.compute[0]
    words = leaf.shown.replace("[", ".").split(".")
    for precision in (name for name in {**unit.lanes, **unit.tensor} if name in words):
        yield trial("matmul", n=256, precision=precision)
        yield from (on_unit(precision, name) for name in ("lanes", "tensor"))
    halves = "fp16" if "fp16" in {**unit.lanes, **unit.tensor} else "fp32"
    yield trial("matmul", n=512, precision=halves)
    yield trial("attention_fused", n=256, d=64)
    yield trial("matmul", n=256, precision="fp32")
    yield trial("triad")
    yield trial("softmax")
    yield trial("gpu_matmul_shared", n=64)
    yield trial("gpu_matmul_tensor", n=256, precision=halves)
    yield trial("gpu_matmul_warp_tiled", n=256)
    yield trial("matmul", m=64, n=64, k=8192, precision=halves)
    yield trial("matmul", n=8192, precision=halves)
    yield trial("matmul", m=2048, n=4096, k=1280, precision=halves)
    if "byte_latency" in words:
        yield trial("matmul", m=64, n=64, k=8192, precision="int8")
    if "channel_bytes" in words or "channels" in words:
        yield trial("matmul", m=256, n=32768, k=256, precision="fp32")
    if "launch" in words:
        yield trial("gpt2", prompt=32)
    if words[-1] in ("row_kept", "row_latency"):
        yield trial("softmax", m=4096, n=2048)
    if words[-1] == "wipe_bandwidth":
        full = machine.memory[-1].size * 5 // 2**33  # GiB, so many sequences that most of the memory is in use
        yield trial("gpt2", phase="train", allocator="emptied", kernels="eager", prompt=1024, batch=full)
    if leaf.shown.startswith("l1."):
        yield trial("gpu_matmul_coalesced", m=32, n=32, k=4096)
        yield trial("gpu_matmul_naive", n=128)


GRIDS = ((1, 1, 256), (12, 9, 512), (9, 12, 512), (24, 18, 256), (1, 1, 4096))
"""Rows and columns of tiles, and the depth, of shapes that are made for a tile."""


def _kernel_trials(machine: MachineSpec, leaf: Leaf) -> Iterator[Runs]:
    """For the kernels of a library: shapes that are made for one of them, then the kernel by itself."""
    unit: Any = machine.compute[0]
    if set(leaf.path) & {"tensor_tiles", "byte_tiles", "narrow_tiles", "lane_tiles"}:
        name, number = str(leaf.path[3]), int(leaf.path[4])
        tile = getattr(unit.library, name)[number]
        if "tuned" in leaf.path:
            m, n, k = tile.tuned[int(leaf.path[leaf.path.index("tuned") + 1])]
            yield trial("matmul_batched", batch=4, m=m, n=n, k=k, precision="fp32")
            yield trial("matmul_batched", batch=4, m=m + 8, n=n + 8, k=k, precision="fp32")
        precision = {"lane_tiles": "fp32", "byte_tiles": "int8", "narrow_tiles": "w8a16"}.get(name, "fp16")
        for rows, columns, depth in GRIDS:
            yield trial("matmul", m=tile.m * rows, n=tile.n * columns, k=depth, precision=precision)
        yield alone(name, number, "fp16" if name == "narrow_tiles" else precision)
    elif "attention" in leaf.path:
        kernel = unit.library.attention[leaf.path[4]]
        for queries, heads in ((256, 4), (512, 256)):
            yield attention(kernel.name, kernel.head_dim, queries, heads)
    elif "split_k" in leaf.path:
        for side, depth in SPLIT_SHAPES:
            yield trial("matmul", m=side, n=side, k=depth, precision="fp16")


SPLIT_SHAPES = tuple((side, depth) for side in (32, 64, 128, 512, 768, 1024) for depth in (1024, 4096, 32768))
"""Few results with long sums."""


def systolic_trials(machine: MachineSpec, leaf: Leaf) -> Iterator[Runs]:
    unit: Any = machine.compute[0]
    formats = [name for name in unit.formats if name in leaf.shown] or list(unit.formats)
    for name in formats:
        yield trial("matmul", n=256, precision=name)
        yield trial("softmax", m=64, n=64, precision=name)
        yield trial("bias_gelu_residual", precision=name)
        yield trial("layernorm", m=16, n=256, precision=name)
        yield trial("conv2d", precision=name)
        yield trial("mul", precision=name)
        yield trial("triad", precision=name)
        yield trial("conv_bias_relu", precision=name)
        yield trial("matmul", n=1024, precision=name)
        yield trial("matmul", m=8192, n=4096, k=128, precision=name)


def grid_trials(machine: MachineSpec, leaf: Leaf) -> Iterator[Runs]:
    yield trial("matmul", n=32)
    yield trial("conv2d", ci=8, co=8, height=16)
    yield trial("conv_bias_relu", ci=4, co=4, height=8)
    yield trial("conv2d")


def pim_trials(machine: MachineSpec, leaf: Leaf) -> Iterator[Runs]:
    yield trial("matvec")
    yield trial("add")
    yield trial("matmul", n=64)


TRIALS = {
    "cpu": cpu_trials, "gpu": gpu_trials, "systolic": systolic_trials, "grid": grid_trials, "pim": pim_trials,
}  # fmt: skip


def exempt(subject: Subject, leaf: Leaf) -> str | None:
    """Why a number need not count; None where it has to."""
    if (reason := descriptive(subject.spec, leaf)) is not None:
        return reason
    if leaf.path[0] == "clocks" and not _in_cycles(subject, int(leaf.path[1])):
        return "nothing that runs on this clock says anything in cycles"
    if leaf.path[-1] == "line" and all(subject.changed(leaf.path, other) is None for other in leaf.others()):
        return "the lines of the levels beside it tie it"
    unit: Any = subject.spec.compute[0]
    integers = subject.spec.kind == "systolic" and all(name.startswith("int") for name in unit.formats)
    if integers and ".vector.special" in leaf.shown:
        return "exponentials and divisions are refused in integers, and the array has no other format"
    known = UNREAD.get(subject.spec.kind, {}) | UNREAD.get(subject.spec.name, {})
    return next((reason for end, reason in known.items() if leaf.shown == end or leaf.shown.endswith(f".{end}")), None)


def _in_cycles(subject: Subject, number: int) -> bool:
    """Whether a part in a clock domain gives a number in its cycles; compute units always do."""
    name = subject.spec.clocks[number].name
    if number == 0 or any(unit.clock == name for unit in subject.spec.compute):
        return True
    own = (level | {"source": None} for level in subject.data["memory"] if level["clock"] == name)
    return any("cycle" in str(level) for level in own)


def chosen(subject: Subject, whole: bool) -> list[Leaf]:
    """The numbers to change: all, or of each list of library kernels those of the first and the last."""
    return [leaf for leaf in subject.leaves if whole or _at_an_end(subject, leaf)]


def _at_an_end(subject: Subject, leaf: Leaf) -> bool:
    place = next((index for index, part in enumerate(leaf.path) if part in LISTS), None)
    if place is None:
        return True
    entries: Any = subject.data
    for part in leaf.path[: place + 1]:
        entries = entries[part]
    return leaf.path[place + 1] in (0, len(entries) - 1)


def uncounted(subject: Subject, whole: bool = False) -> list[str]:
    """The numbers of a machine that should count and do not."""
    trials = TRIALS[subject.spec.kind]
    leaves = [leaf for leaf in chosen(subject, whole) if exempt(subject, leaf) is None]
    return [leaf.shown for leaf in subject.unread(leaves, lambda leaf: list(trials(subject.spec, leaf)))]


def _whole(config: pytest.Config) -> bool:
    return bool(config.getoption("--golden-all", default=False)) or "HWSIM_ALL" in os.environ


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "machine" in metafunc.fixturenames:
        metafunc.parametrize("machine", machine_names() if _whole(metafunc.config) else EACH_CLASS)


def test_every_number_of_a_machine_changes_some_run(machine: str, pytestconfig: pytest.Config) -> None:
    assert uncounted(Subject.of(machine), _whole(pytestconfig)) == []


@pytest.mark.parametrize("name", EACH_CLASS)
def test_a_machine_that_is_written_out_and_read_again_runs_as_before(name: str) -> None:
    """Otherwise every number would seem to count."""
    subject = Subject.of(name)
    same = subject.changed(("description",), "the same")
    assert same is not None
    first = next(iter(TRIALS[subject.spec.kind](subject.spec, subject.leaves[0])))
    assert first(subject.spec) is not None
    assert first(same) == first(subject.spec)


class CpuWithAnUnreadNumber(CpuSpec):
    """A core with a field that nobody reads, and one that says so."""

    turbo: int = Field(3, description="Nobody reads it.")
    pins: int = Field(1331, description="Of the package.", json_schema_extra={"descriptive": "the socket it fits"})


def _with_unread_number() -> Subject:
    plain = Subject.of("course_cpu")
    unit = plain.data["compute"][0] | {"turbo": 3, "pins": 1331}
    core = CpuWithAnUnreadNumber.model_validate(unit, strict=False)
    leaves = tuple(Leaf(("compute", 0, name), f"core.{name}", unit[name]) for name in ("turbo", "pins", "issue_width"))
    return Subject(plain.spec.model_copy(update={"compute": (core,)}), plain.data | {"compute": [unit]}, leaves)


def test_a_number_that_nobody_reads_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hwsim.targets.cpu.spec.UNIT", CpuWithAnUnreadNumber)
    assert uncounted(_with_unread_number()) == ["core.turbo"]


def test_a_number_that_describes_says_why() -> None:
    subject = _with_unread_number()
    assert [descriptive(subject.spec, leaf) for leaf in subject.leaves] == [None, "the socket it fits", None]
    node = next(leaf for leaf in Subject.of("course_cpu").leaves if leaf.shown == "energy.node")
    assert "prices" in str(descriptive(subject.spec, node))


@pytest.mark.parametrize(
    ("value", "others"),
    [(16, (32, 8, 1, 1024, 17, 15)), ("32 KiB", ("64 KiB", "16 KiB", "2 KiB")), (0.5, (1.0, 0.25))],
)
def test_a_number_is_doubled_halved_and_moved_far_away(value: int | float | str, others: tuple[object, ...]) -> None:
    assert set(others) <= set(Leaf((), "", value).others())
