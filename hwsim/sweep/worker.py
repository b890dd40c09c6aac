"""What a worker does with one point, in this process, in another, or on another computer."""

from __future__ import annotations

import json
from functools import lru_cache

from hwsim.api import run_all
from hwsim.spec.machine import MachineSpec
from hwsim.spec.workload import workload_model
from hwsim.sweep.point import Job


def run_job(job: Job) -> str:
    """The result as JSON text without its machine, which the store keeps once for many points.

    Equal jobs give equal text, byte for byte, wherever and whenever they run.
    """
    data = json.loads(job.workload)
    workload = workload_model(data.get("op")).model_validate(data, strict=False)
    result = run_all(machine_of_job(job), workload, math=job.math).result.to_dict()
    if result["resolved"]["machine"] == json.loads(job.described):  # a machine that had to slow down is another one
        result["resolved"] = {"workload": result["resolved"]["workload"]}
    return json.dumps(result, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def machine_of_job(job: Job) -> MachineSpec:
    """The machine of a job; jobs of a sweep share a few."""
    return _machine(job.machine)


@lru_cache(maxsize=64)
def _machine(text: str) -> MachineSpec:
    return MachineSpec.model_validate(json.loads(text), strict=False)
