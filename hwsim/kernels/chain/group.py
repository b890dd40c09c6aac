"""What may run as one in a chain: a product, convolution or element-wise operation, and what changes its values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hwsim.spec.ops.chain import ChainStep, ConvStep, MatmulStep, PointwiseStep, PoolStep, ScaleStep

HEADS = (MatmulStep, ConvStep, PointwiseStep, ScaleStep)
"""Operations that can begin a group."""


@dataclass(frozen=True)
class Objection:
    """The operation that cannot run with those before it, and why."""

    step: str
    reason: str


def object_to(steps: Sequence[ChainStep]) -> Objection | None:
    """Why operations, each of which reads the one before, cannot run as one; None if they can."""
    head, *tail = steps
    pool = find_pool(steps)
    found: Objection | None = None
    for step in tail if pool is None else tail[:-1]:
        found = found or _object_to_step(step, pool)
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


def _object_to_step(step: ChainStep, pool: PoolStep | None) -> Objection | None:
    if not isinstance(step, PointwiseStep | ScaleStep):
        return Objection(
            step.name,
            f"{step.name} is {kind(step)}, which needs more than one element of {step.inputs[0]} at a time; only "
            "element-wise operations can follow in a group (and a max-pool at its end, behind a convolution)",
        )
    others = step.inputs[1:]
    if pool is None or not others:
        return None
    reason = f"{step.name} reads {others[0]}, which has columns of what the pool {pool.name} never stores"
    return Objection(step.name, reason)
