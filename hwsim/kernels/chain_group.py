"""What may run as one in a chain: a product, convolution or element-wise operation, and what changes its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hwsim.spec.ops.chain import ChainStep, ConvStep, MatmulStep, PointwiseStep, PoolStep, ScaleStep

Shape = tuple[int, ...]

HEADS = (MatmulStep, ConvStep, PointwiseStep, ScaleStep)
"""Operations that can begin a group."""


@dataclass(frozen=True)
class Objection:
    """The operation that cannot run with those before it, and why."""

    step: str
    reason: str


def object_to(steps: Sequence[ChainStep], shapes: Mapping[str, Shape]) -> Objection | None:
    """Why operations, each of which reads the one before, cannot run as one; None if they can.

    `shapes` has those of all tensors that they read, and of what the first one makes.
    """
    head, *tail = steps
    pool = find_pool(steps)
    found: Objection | None = None
    for step in tail if pool is None else tail[:-1]:
        found = found or _object_to_step(head, step, shapes, pool)
    if tail and not isinstance(head, HEADS):
        found = found or Objection(tail[0].name, f"nothing can be fused with {head.name}, {kind(head)}")
    return found


def find_pool(steps: Sequence[ChainStep]) -> PoolStep | None:
    """The max-pool that ends a group with a convolution."""
    head, last = steps[0], steps[-1]
    return last if isinstance(head, ConvStep) and isinstance(last, PoolStep) and last.op == "maxpool" else None


def kind(step: ChainStep) -> str:
    """What an operation is, in a sentence."""
    op = op_of(step)
    return f"{'an' if op[0] in 'aeiou' else 'a'} {op}"


def op_of(step: ChainStep) -> str:
    return str(getattr(step, "op"))  # noqa: B009 - declared by each subclass


def _object_to_step(
    head: ChainStep, step: ChainStep, shapes: Mapping[str, Shape], pool: PoolStep | None
) -> Objection | None:
    if not isinstance(step, PointwiseStep | ScaleStep):
        return Objection(
            step.name,
            f"{step.name} is {kind(step)}, which needs more than one element of {step.inputs[0]} at a time; only "
            "element-wise operations can follow in a group (and a max-pool at its end, behind a convolution)",
        )
    if not isinstance(head, ConvStep):
        return None
    if isinstance(step, ScaleStep):
        return Objection(step.name, f"{step.name} is {kind(step)}, which does not run in a convolution")
    value = shapes[head.name]
    for name in step.inputs[1:]:
        if shapes[name] != value:
            reason = f"{step.name} reads {name} of shape {shapes[name]}, and a convolution takes only operands of shape"
            return Objection(step.name, f"{reason} {value} into its loops")
        if pool is not None:
            reason = f"{step.name} reads {name}, which is as large as what the pool {pool.name} never stores"
            return Objection(step.name, reason)
    return None
