"""A sweep as a YAML file: the same as on the command line, to keep beside the results.

format: 1
name: tiles
machines: [course_cpu]
workloads: [matmul_tiled]
parameters: {n: 256, tile: 8..256:x2, precision: [fp32, bf16, int8]}
set: {l2.size: [256 KiB, 1 MiB]}
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from hwsim.catalog import shown
from hwsim.errors import InputError, Problem, SpecError
from hwsim.spec.base import Name, Spec
from hwsim.spec.document import Node, read_document
from hwsim.spec.validate import validate
from hwsim.sweep.axis import make_axis
from hwsim.sweep.request import Request, make_request

Values = int | float | bool | str | tuple[int | float | bool | str, ...]


class SweepSpec(Spec):
    """Every machine with every workload with every combination of values."""

    format: Literal[1] = Field(description="Version of this file format.")
    name: Name = Field(description="What the sweep is called.")
    description: str = Field("", description="One or two sentences for people.")
    machines: tuple[str, ...] = Field(
        min_length=1, description="Machines, by name or path.", examples=[["course_cpu", "zen3"]]
    )
    workloads: tuple[str, ...] = Field(
        min_length=1, description="Workloads, by name or path.", examples=[["matmul_tiled"]]
    )
    parameters: dict[str, Values] = Field(
        {},
        description="Sizes, schedule and precision of the workloads: one value, a list, or a range as text.",
        examples=[{"n": 256, "tile": "8..256:x2", "precision": ["fp32", "int8"]}],
    )
    set: dict[str, Values] = Field(
        {}, description="The same for fields of the machines.", examples=[{"l2.size": ["256 KiB", "1 MiB"]}]
    )
    seed: int | None = Field(None, ge=0, description="Seed of the random inputs; the workload's own if not given.")
    math: bool = Field(True, description="Whether the answers are computed and checked.")


def load_sweep(path: Path) -> Request:
    """The request that a sweep file makes. Raises SpecError with everything that is wrong in it."""
    node, problems = read_document(path, shown(path))
    spec, findings = validate(SweepSpec, node)
    found = [*problems, *(finding.problem(node) for finding in findings)]
    if spec is not None:
        found += _axis_problems(node, "parameters", spec.parameters) + _axis_problems(node, "set", spec.set)
    if spec is None or found:
        raise SpecError(tuple(found))
    return make_request(spec.machines, spec.workloads, spec.parameters, spec.set, spec.seed, spec.math)


def is_sweep_file(path: Path) -> bool:
    """Whether a YAML file asks for a sweep, rather than describing a machine or a workload."""
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return False
    node, _ = read_document(path, shown(path))
    return "machines" in node.fields or "workloads" in node.fields


def _axis_problems(node: Node, group: str, values: dict[str, Values]) -> list[Problem]:
    found = []
    for name, given in values.items():
        try:
            make_axis(name, given)
        except InputError as error:
            place = node.nearest((group, name)).place
            found.append(place.problem(f"{group}.{name}", str(error).partition(": ")[2] or str(error)))
    return found
