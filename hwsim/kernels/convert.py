"""Conversions: what it takes to compute in a wider format than the tensors have.

Whatever is loaded from a tensor narrower than the arithmetic is widened, and rounded back before it is stored: one more
instruction for each such load and store, scalar or vector. Where the machine computes in the tensors' own format there
is nothing to do, but for weights that are stored more narrowly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hwsim.kernels.kernel import Kernel
from hwsim.kernels.step import Block, Instructions, Stage, Step


def converting_stages(kernel: Kernel) -> Sequence[Stage]:
    """The stages of a kernel, its arithmetic in the format that the machine computes in, conversions counted."""
    compute = kernel.compute_fmt
    narrow = frozenset(name for name, view in kernel.tensors.items() if view.element_bits < compute.bits)
    stages = kernel.stages()
    if not narrow and compute.name == kernel.fmt.name:
        return stages
    return [
        Stage(stage.name, tuple(_converting(block, narrow, kernel.fmt.name, compute.name) for block in stage.blocks))
        for stage in stages
    ]


def _converting(block: Block, narrow: frozenset[str], stored: str, compute: str) -> Block:
    def steps() -> Iterator[Step]:
        for step in block.steps():
            work = step.work
            count = sum(
                nest.count(access) for nest in step.nests for access in nest.accesses if access.tensor in narrow
            )
            fmt = compute if work.fmt == stored else work.fmt
            more = work.instructions + Instructions(convert=count)
            yield replace(step, work=replace(work, fmt=fmt, instructions=more))

    return Block(block.index, steps)
