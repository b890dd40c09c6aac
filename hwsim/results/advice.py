"""A next command to try: one change that the bound of this run suggests."""

from __future__ import annotations

from dataclasses import dataclass

from hwsim.results.resolved import machine_of
from hwsim.results.result import RunResult
from hwsim.results.words import ARROW, Bound, crowded_level, explain_bound


@dataclass(frozen=True)
class Advice:
    """Words to add to the command, and what they are meant to show."""

    parameters: tuple[tuple[str, str], ...]
    settings: tuple[str, ...]
    why: str


def advise(result: RunResult, bound: Bound | None = None) -> Advice:
    """The first change that fits, from what costs most to what is merely interesting."""
    bound = bound or explain_bound(result)
    if "array" in result.work:
        from hwsim.results.array_advice import advise_array

        return advise_array(result, bound)
    if "gpu" in result.work:
        from hwsim.results.gpu_words import advise_gpu

        return advise_gpu(result, bound)
    machine = machine_of(result)
    schedule = result.resolved["workload"].get("schedule", {})
    cores, idle = result.work["cores"], machine.compute[0].count - result.work["cores"]
    padded = _padding(result)
    if bound.kind == "latency" and padded is not None:
        return padded
    if bound.kind in ("chain", "compute", "issue", "port") and schedule.get("vector") is False and machine.cpu.simd:
        return _change({"vector": "true"}, "several values in each instruction")
    if bound.kind in ("chain", "issue", "port") and schedule.get("v1") == 1:
        return _change({"v1": "4"}, "a register tile: several sums at a time, each loaded value used several times")
    if bound.kind in ("latency", "bandwidth") and "tile" in schedule and not _tiled(schedule):
        return _change({"tile": "32"}, "tiles that stay in the cache")
    if bound.kind in ("latency", "bandwidth") and schedule.get("fused") is False:
        return _change({"fused": "true"}, "one pass over memory instead of three")
    if bound.kind == "parallel" and cores > 1:
        return _change({"cores": str(max(1, cores // 2))}, "fewer cores to start and to wait for")
    if bound.kind in ("compute", "issue", "port", "chain") and schedule.get("parallel") == "none" and idle > 0:
        return _change({"parallel": "rows"}, "the same work on all cores")
    if padded is not None:
        return padded
    if bound.kind == "bandwidth":
        source = bound.part.partition(ARROW)[0]
        return Advice((), (f"{source}.bandwidth=inf",), f"how fast it would be if {source} kept up")
    if machine.caches and not machine.caches[0].infinite:
        return Advice((), (f"{machine.caches[0].name}.size=inf",), "the same with a perfect cache: what misses cost")
    return _change({"n": str(2 * int(result.resolved["workload"].get("sizes", {}).get("n", 128)))}, "twice the size")


def _padding(result: RunResult) -> Advice | None:
    """Rows a line longer, where columns crowd into few sets and the workload lets rows be padded."""
    workload = result.resolved["workload"]
    schedule = workload.get("schedule", {})
    if "ld" not in schedule or schedule.get("packed") or schedule["ld"] is not None:
        return None
    crowding = crowded_level(result, machine_of(result))
    if crowding is None:
        return None
    facts = result.tensors[crowding.tensor]
    ld = crowding.better_row_bytes * facts["elements"] // facts["bytes"]
    return _change({"ld": str(ld)}, f"rows a line longer, so that columns of {crowding.tensor} use all sets")


def _tiled(schedule: dict[str, object]) -> bool:
    return any(schedule.get(name) is not None for name in ("tile", "b1", "b2"))


def _change(parameters: dict[str, str], why: str) -> Advice:
    return Advice(tuple(parameters.items()), (), why)
