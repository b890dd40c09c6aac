"""The stories of the course: the same computation in steps that each change one thing, told by one command each.

A story is data. Its rungs change the workload on each machine; a rung may name a machine of its own, where the step is
to another kind of hardware. Rungs and machines that are not there are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hwsim.catalog import machine_names, workload_names
from hwsim.errors import InputError
from hwsim.spec.fields import did_you_mean
from hwsim.sweep.batch import Task


@dataclass(frozen=True)
class Rung:
    """One step: its name, what runs, and what is different."""

    name: str
    workload: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    machine: str | None = None


@dataclass(frozen=True)
class Story:
    """Steps on one machine, or on several to see where each step pays."""

    title: str
    question: str
    machines: tuple[str, ...]
    rungs: tuple[Rung, ...]
    common: Mapping[str, object] = field(default_factory=dict)
    """Parameters that all rungs have."""


STORIES: Mapping[str, Story] = {
    "matmul": Story(
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
    "precision": Story(
        "The same product in fewer bits",
        "What do narrower numbers save, and what do they cost in accuracy?",
        ("course_cpu",),
        tuple(
            Rung(precision, "matmul_tiled", {"vector": True, "v1": 4, "precision": precision})
            for precision in ("fp64", "fp32", "bf16", "int8")
        ),
        {"n": 256, "tile": 32},
    ),
    "fusion": Story(
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
    "conv": Story(
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
    "attention": Story(
        "Attention with the matrix S in memory, and without",
        "What does never storing S save, and where does it pay?",
        ("course_cpu", "cortex_a78", "a100_40", "tpu_v1"),
        (Rung("naive", "attention_naive"), Rung("fused", "attention_fused")),
        {"n": 512},
    ),
    "specialisation": Story(
        "One matrix product on more and more specialised hardware",
        "What does giving up programmability bring?",
        ("ladder_scalar",),
        tuple(
            Rung(name, "matmul", {}, f"ladder_{machine}")
            for name, machine in {
                "scalar core": "scalar",
                "vectors": "simd",
                "GPU": "gpu",
                "signal processor": "dsp",
                "FPGA": "fpga",
                "fixed function": "asic",
            }.items()
        ),
        {"n": 256, "precision": "fp16"},
    ),
}


def find_story(name: str) -> Story:
    """A story by name; raises InputError with those that there are."""
    if name not in STORIES:
        raise InputError(f"there is no ladder '{name}'{did_you_mean(name, STORIES)}; there are: {', '.join(STORIES)}")
    return STORIES[name]


def story_tasks(
    story: Story,
    machines: Sequence[str] = (),
    changes: Mapping[str, object] | None = None,
    settings: Sequence[str] = (),
) -> dict[str, tuple[Task, ...]]:
    """The runs of a story for each machine; `changes` are parameters that the user wants otherwise."""
    chosen = tuple(machines) or tuple(name for name in story.machines if name in machine_names())
    known = workload_names()
    tasks: dict[str, tuple[Task, ...]] = {}
    for machine in chosen:
        tasks[machine] = tuple(
            Task(
                rung.name,
                rung.machine or machine,
                rung.workload,
                {**story.common, **rung.parameters, **(changes or {})},
                tuple(settings),
            )
            for rung in story.rungs
            if rung.workload in known and (rung.machine is None or rung.machine in machine_names())
        )
    return tasks
