"""What the knobs of several targets have in common: fields of an operation's own schedule, and its products."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, get_origin

from pydantic import BaseModel

from hwsim.errors import InputError
from hwsim.program.contraction import gemm_view
from hwsim.program.loop_kernel import LoopKernel, build_kernel
from hwsim.program.loops import all_loops
from hwsim.spec.fields import choices, literals
from hwsim.spec.variant import Key, parameter_keys, with_parameters
from hwsim.spec.workload import ALGORITHM, WorkloadSpec
from hwsim.target import Knob


def own_knobs(work: WorkloadSpec, wanted: Callable[[str], bool] = lambda field: True) -> dict[str, Knob]:
    """The fields of an operation's schedule, as knobs."""
    knobs: dict[str, Knob] = {}
    for name, key in parameter_keys(work).items():
        if key.path[0] == "schedule" and wanted(key.path[1]):
            knobs[name] = _own_knob(work, name, key)
    return knobs


def algorithm_knobs(work: WorkloadSpec, without: frozenset[str] = frozenset()) -> dict[str, Knob]:
    """The fields that change the operations themselves."""
    return own_knobs(work, lambda field: field in ALGORITHM - without)


def _own_knob(work: WorkloadSpec, name: str, key: Key) -> Knob:
    group = getattr(work, "schedule")  # noqa: B009 - not all workloads have one
    meaning, value = "", None
    if isinstance(group, BaseModel):
        field = type(group).model_fields[key.path[1]]
        meaning, value = (field.description or "").partition(".")[0], getattr(group, key.path[1])
    elif isinstance(group, dict):
        value = group.get(name)
    if isinstance(value, dict):
        value = value.get(key.path[-1])
    return Knob(name, meaning, _shown(value), allowed_of(key.annotation), group="schedule")


def _shown(value: object) -> str:
    if value is None or value == ():
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(str(each) if not isinstance(each, tuple) else "+".join(each) for each in value)
    return str(value)


def allowed_of(annotation: Any) -> str:
    """The values of a field, as a list or a range; nothing where they are free."""
    words = [str(word) for word in literals(annotation)]
    if words:
        return ",".join(words)
    kinds = [choice for choice in choices(annotation) if choice is not type(None)]
    if bool in kinds:
        return "false,true"
    if int in kinds:
        return "1.."
    return "names with commas between" if any(get_origin(kind) is tuple for kind in kinds) else ""


def in_first_format(work: WorkloadSpec, formats: Iterable[str]) -> WorkloadSpec:
    """A workload that names no precision, in the first format of a machine that its kernel can have."""
    if "precision" in work.model_fields_set:
        return work
    for name in formats:
        with suppress(InputError):  # a chain that rounds between its operations takes no integers
            chosen = with_parameters(work, {"precision": name})
            build_kernel(chosen, math=False)
            return chosen
    return with_parameters(work, {"precision": next(iter(formats))})


def has_products(work: WorkloadSpec) -> bool:
    """Whether any loop of a workload is a product of matrices, which a library or a mapper cuts into tiles."""
    kernel = plain_kernel(work)
    return kernel is not None and any(
        gemm_view(loop) is not None for phase in kernel.program for loop in all_loops(phase.items)
    )


def plain_kernel(work: WorkloadSpec) -> LoopKernel | None:
    """The kernel of a workload without its data; None for one that is no list of loops."""
    try:
        kernel = build_kernel(work, math=False)
    except InputError:
        return None
    return kernel if isinstance(kernel, LoopKernel) else None


def by_name(*knobs: Knob) -> dict[str, Knob]:
    return {knob.name: knob for knob in knobs}


def powers(least: int, most: int) -> str:
    """``16..256:x2`` as far as a power of two goes; a single number where the range is empty."""
    top = least
    while top * 2 <= most:
        top *= 2
    return str(least) if top == least else f"{least}..{top}:x2"
