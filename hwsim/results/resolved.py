"""The machine and the workload of a stored result, as specs again."""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError

from hwsim.errors import InputError
from hwsim.results.result import RunResult
from hwsim.spec.machine import MachineSpec
from hwsim.spec.workload import WorkloadSpec, workload_model

Model = TypeVar("Model", MachineSpec, WorkloadSpec)


def machine_of(result: RunResult) -> MachineSpec:
    """The machine as it was simulated."""
    return _read(MachineSpec, result, "machine")


def workload_of(result: RunResult) -> WorkloadSpec:
    """The workload as it was simulated."""
    return _read(workload_model(result.resolved["workload"].get("op")), result, "workload")


def _read(model: type[Model], result: RunResult, part: str) -> Model:
    try:
        return model.model_validate(result.resolved[part], strict=False)  # JSON has lists where specs have tuples
    except (KeyError, ValidationError) as error:
        raise InputError(
            f"the {part} in this result of hwsim {result.version} is not one that this version knows"
        ) from error
