"""Named runs side by side: any list of them for a comparison, and the ladders of the course.

A ladder is data: the same computation in steps that each change one thing. Its rungs change the workload on each
machine; a rung may name a machine of its own, where the step is to another kind of hardware. A class of machines may
take the steps in its own way; of the ladder's own steps, choices that mean nothing to a machine are left out, and so
are steps that then differ in nothing. Rungs and machines that are not there are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hwsim.api import resolve_machine, resolve_workload, run_all
from hwsim.catalog import machine_names, workload_names
from hwsim.errors import InputError
from hwsim.result import RunResult
from hwsim.spec.fields import did_you_mean
from hwsim.target import Rung, Target, find_target, unread


@dataclass(frozen=True)
class NamedRun:
    """One run, and what it is called."""

    label: str
    machine: str
    workload: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    settings: tuple[str, ...] = ()


def read_by_some(runs: Sequence[NamedRun]) -> tuple[list[NamedRun], dict[str, list[str]]]:
    """Tasks for machines of several classes, without choices that only others of these machines read.

    The second answer names the choices that were left out, by machine. A choice that no machine reads stays: it is
    refused when it is run.
    """
    strange: dict[str, list[str]] = {}
    for run in runs:
        target = find_target(resolve_machine(run.machine, run.settings))
        work = resolve_workload(run.workload, run.parameters)
        strange[run.label] = list(unread(target, work, run.parameters))
    nowhere = set.intersection(*(set(names) for names in strange.values())) if strange else set()
    left_out: dict[str, list[str]] = {}
    found = []
    for run in runs:
        names = [name for name in strange[run.label] if name not in nowhere]
        kept = {name: value for name, value in run.parameters.items() if name not in names}
        found.append(replace(run, parameters=kept))
        if names:
            left_out.setdefault(run.machine, names)
    return found, left_out


def run_named(
    runs: Sequence[NamedRun], *, math: bool = True, refused: dict[str, str] | None = None
) -> dict[str, RunResult]:
    """Run one after the other; whatever is wrong with any of them is said before the first one starts.

    A machine may turn out not to have what a workload needs. With `refused`, that is noted there and the others go on.
    """
    wrong = []
    for run in runs:
        try:
            resolve_machine(run.machine, run.settings)
            resolve_workload(run.workload, run.parameters)
        except InputError as error:
            wrong.append(f"{run.label}: {error}")
    if wrong:
        raise InputError("\n".join(wrong))
    results = {}
    for run in runs:
        try:
            done = run_all(run.machine, run.workload, set=run.settings, math=math, parameters=run.parameters)
        except InputError as error:
            if refused is None:
                raise
            refused[run.label] = str(error)
        else:
            results[run.label] = done.result
    if not results and refused:
        raise InputError("\n".join(dict.fromkeys(refused.values())))
    return results


@dataclass(frozen=True)
class Ladder:
    """Steps on one machine, or on several to see where each step pays."""

    title: str
    question: str
    machines: tuple[str, ...]
    rungs: tuple[Rung, ...]
    common: Mapping[str, object] = field(default_factory=dict)
    """Parameters that all rungs have."""


LADDERS: Mapping[str, Ladder] = {
    "matmul": Ladder(
        "Matrix product, step by step",
        "How much do vectors, tiles and cores bring, in this order?",
        ("course_cpu",),
        (
            Rung("naive", "matmul_naive"),
            Rung("vectorised", "matmul_simd"),
            Rung("tiled", "matmul_tiled", {"vector": True, "v1": 4}),
            Rung("parallel", "matmul_parallel"),
        ),
        {"n": 256},
    ),
    "precision": Ladder(
        "The same product in fewer bits",
        "What do narrower numbers save, and what do they cost in accuracy?",
        ("course_cpu",),
        tuple(
            Rung(precision, "matmul_tiled", {"vector": True, "v1": 4, "precision": precision})
            for precision in ("fp64", "fp32", "bf16", "int8")
        ),
        {"n": 256, "tile": 32},
    ),
    "fusion": Ladder(
        "E = D + (A + B) * C in three passes, and in one",
        "Does each step of fusion pay, and on every machine?",
        ("course_cpu", "zen3", "cortex_a78"),
        (
            Rung("three passes", "unfused", {"vector": False}),
            Rung("three passes, vectors", "unfused", {"vector": True}),
            Rung("one pass", "fused", {"vector": False}),
            Rung("one pass, vectors", "fused", {"vector": True}),
        ),
        {"n": 2**20},
    ),
    "conv": Ladder(
        "A 3x3 convolution, from seven loops to blocks of a matrix product",
        "What does each way to compute it move and cost?",
        ("course_cpu",),
        (
            Rung("seven loops", "conv2d_direct"),
            Rung("tiles and vectors", "conv2d_3x3"),
            Rung("im2col", "conv2d_im2col"),
            Rung("implicit", "conv2d_implicit"),
        ),
        {"ci": 64, "co": 64, "height": 32},
    ),
    "attention": Ladder(
        "Attention with the matrix S in memory, and without",
        "What does never storing S save, and where does it pay?",
        ("course_cpu", "cortex_a78", "a100_40", "tpu_v1"),
        (Rung("naive", "attention_naive"), Rung("fused", "attention_fused")),
        {"n": 512},
    ),
    "specialisation": Ladder(
        "One matrix product on more and more specialised hardware",
        "What does giving up programmability bring?",
        ("ladder_scalar",),
        tuple(
            Rung(name, "matmul", {}, f"ladder_{machine}")
            for name, machine in {
                "scalar core": "scalar",
                "vectors": "simd",
                "signal processor": "dsp",
                "GPU": "gpu",
                "FPGA": "fpga",
                "fixed function": "asic",
            }.items()
        ),
        {"n": 256, "precision": "fp16"},
    ),
}


def find_ladder(name: str) -> Ladder:
    """A ladder by name; raises InputError with those that there are."""
    if name not in LADDERS:
        raise InputError(f"there is no ladder '{name}'{did_you_mean(name, LADDERS)}; there are: {', '.join(LADDERS)}")
    return LADDERS[name]


def ladder_runs(
    ladder: Ladder,
    machines: Sequence[str] = (),
    changes: Mapping[str, object] | None = None,
    settings: Sequence[str] = (),
) -> dict[str, tuple[NamedRun, ...]]:
    """The runs of a ladder for each machine; `changes` are parameters that the user wants otherwise."""
    chosen = tuple(machines) or tuple(name for name in ladder.machines if name in machine_names())
    runs: dict[str, tuple[NamedRun, ...]] = {}
    for machine in chosen:
        target = find_target(resolve_machine(machine, settings))
        found: list[NamedRun] = []
        for rung in target.ladder(_name_of(ladder)) or ladder.rungs:
            if rung.workload not in workload_names() or (rung.machine or machine) not in _known(machine):
                continue
            own = {**ladder.common, **rung.parameters}
            own = {name: value for name, value in own.items() if name not in (changes or {})}
            if rung.machine is None:
                own = _read(target, rung.workload, own)
            run = NamedRun(
                rung.name, rung.machine or machine, rung.workload, {**own, **(changes or {})}, tuple(settings)
            )
            if not any(_same(run, other) for other in found):
                found.append(run)
        runs[machine] = tuple(found)
    return runs


def _known(machine: str) -> tuple[str, ...]:
    return (*machine_names(), machine)


def _name_of(ladder: Ladder) -> str:
    return next((name for name, each in LADDERS.items() if each is ladder), "")


def _read(target: Target, workload: str, parameters: Mapping[str, object]) -> dict[str, object]:
    """The parameters without choices that mean nothing to a machine."""
    work = resolve_workload(workload, parameters)
    strange = unread(target, work, parameters)
    return {name: value for name, value in parameters.items() if name not in strange}


def _same(one: NamedRun, other: NamedRun) -> bool:
    return (one.machine, one.workload, one.parameters) == (other.machine, other.workload, other.parameters)
