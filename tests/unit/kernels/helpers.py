"""Short ways to make a kernel and to look at what it touches."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hwsim.program.kernel import Kernel, Step
from hwsim.program.loop_kernel import build_kernel
from hwsim.spec.workload import WorkloadSpec
from tests.conventions import Matrix, Touch


def workload(op: str, sizes: dict[str, Any], **fields: Any) -> WorkloadSpec:
    """A workload; fields that are not of the file itself belong to the schedule."""
    top = {
        key: fields.pop(key)
        for key in ("precision", "formula", "tensors", "kernel", "epilogue", "pool")
        if key in fields
    }
    data = {"format": 1, "name": op, "description": "", "op": op, "sizes": sizes, "schedule": fields}
    return WorkloadSpec.model_validate(data | top)


def kernel(op: str, sizes: dict[str, Any], *, lanes: int = 1, cores: int = 1, **fields: Any) -> Kernel:
    given = {key: fields.pop(key) for key in ("math", "seed", "inputs", "line_bytes") if key in fields}
    return build_kernel(workload(op, sizes, **fields), lanes=lanes, cores=cores, **given)


def steps(made: Kernel) -> list[Step]:
    return [step for block in made.blocks() for step in block.steps()]


def touches(made: Kernel) -> list[Touch]:
    """Every access, in order, as (address, bytes, write)."""
    return [touch for step in steps(made) for nest in step.nests for touch in nest.addresses()]


def counts(made: Kernel) -> Counter[str]:
    """``loads.A``, ``stores.C``, ``loads``, ``stores``: how often each tensor is accessed."""
    found: Counter[str] = Counter()
    for step in steps(made):
        for nest in step.nests:
            for access in nest.accesses:
                kind = "stores" if access.write else "loads"
                found[kind] += nest.count(access)
                found[f"{kind}.{access.tensor}"] += nest.count(access)
    return found


def matrices(made: Kernel) -> list[Matrix]:
    """The two-dimensional tensors of a kernel as plain matrices, in the order of their addresses."""
    return [Matrix(view.base, view.strides[0], view.element_bytes) for view in made.tensors.values()]
