"""Point: one combination of a sweep, resolved to the machine and workload that will be simulated, and its key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from hwsim.api import in_own_format, resolve_machine, resolve_workload
from hwsim.errors import InputError, OverrideError
from hwsim.spec.machine import MachineSpec
from hwsim.spec.render import as_data
from hwsim.spec.workload import WorkloadSpec
from hwsim.sweep.axis import Axis, Value, typed
from hwsim.sweep.request import MACHINE, WORKLOAD, Coordinates, Request
from hwsim.sweep.version import model_version


@dataclass(frozen=True)
class Job:
    """All that a worker needs, wherever it runs: resolved inputs as JSON text, no files."""

    machine: str
    """The machine with the fields that were written, as a file would give them."""
    described: str
    """The same with every default filled in, as results show it."""
    workload: str
    math: bool

    @property
    def key(self) -> str:
        """A digest of the inputs and the model: equal keys mean equal results."""
        return _digest(self.machine, self.described, self.workload, "math" if self.math else "no math")

    @property
    def machine_key(self) -> str:
        return hashlib.sha256(self.described.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Point:
    """A place in the grid, and the job that it means; or why it means none."""

    position: int
    coordinates: Coordinates
    job: Job | None
    error: str = ""

    @property
    def key(self) -> str:
        if self.job is not None:
            return self.job.key
        return _digest(json.dumps(self.coordinates, sort_keys=True), self.error)


def resolve_points(request: Request) -> Iterator[Point]:
    """Every point of the grid, made when it is asked for."""
    resolver = Resolver(request)
    for position, coordinates in enumerate(request.coordinates()):
        try:
            yield Point(position, coordinates, resolver.job(coordinates))
        except InputError as error:
            yield Point(position, coordinates, None, str(error))


def check_request(request: Request) -> None:
    """Raises InputError for a name that does not exist, or a value that fits nowhere: a slip, not a point that fails.

    Each value is tried beside the first values of all other axes, and alone.
    """
    resolver = Resolver(request)
    first = next(iter(request.coordinates()))
    wrong: list[str] = []
    for machine in request.machines:
        for workload in request.workloads:
            here = {**first, MACHINE: machine, WORKLOAD: workload}
            wrong += resolver.unknown_names(here)
    if not wrong:
        for axis in request.axes:
            for value in axis.values[:1000]:
                wrong += resolver.refused(first, axis, value)
    if wrong:
        raise OverrideError("\n".join(dict.fromkeys(wrong)))


class Resolver:
    """Looks names up once, and keeps what many points share."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._where = {axis.name: axis.where for axis in request.axes}
        self._machine = lru_cache(maxsize=1024)(self._load_machine)
        self._workload = lru_cache(maxsize=64)(lambda name: resolve_workload(name, {}))

    def job(self, coordinates: Coordinates) -> Job:
        settings = tuple(f"{name}={typed(value)}" for name, value in self._part(coordinates, "machine").items())
        machine, written, described = self._machine(str(coordinates[MACHINE]), settings)
        asked = self._with(coordinates, self._part(coordinates, "workload"))
        workload = as_data(asked)
        if in_own_format(machine, asked).precision != asked.precision:
            del workload["precision"]  # the run chooses the machine's own format, and says so
        return Job(written, described, _json(workload), self.request.math)

    def unknown_names(self, coordinates: Coordinates) -> list[str]:
        """What is wrong with the names of the axes, for one machine and one workload."""
        from hwsim.catalog import load_machine
        from hwsim.spec.fields import did_you_mean
        from hwsim.spec.parameters import describe_keys, parameter_keys

        spec = self._workload(str(coordinates[WORKLOAD]))
        parts = load_machine(str(coordinates[MACHINE])).spec
        keys = parameter_keys(spec)
        names = {part.name for part in (*parts.compute, *parts.memory)}
        wrong = []
        for name in self._part(coordinates, "workload"):
            if name in keys:
                continue
            if name.partition(".")[0] in names and "." in name:
                wrong.append(f"{name}: this belongs to the machine; write --set {name}=…")
            else:
                wrong.append(f"{name}: {spec.name} has no such parameter{did_you_mean(name, keys)}")
                wrong.append(f"parameters of {spec.op}: {describe_keys(keys)}")
        return wrong

    def refused(self, first: Coordinates, axis: Axis, value: Value) -> list[str]:
        """Why a value fits neither beside the first values of the others nor alone; nothing where it does."""
        message = ""
        alone = {MACHINE: first[MACHINE], WORKLOAD: first[WORKLOAD]}
        for around in (first, alone):
            try:
                self.job({**around, axis.name: value})
            except InputError as error:
                message = message or str(error)
            else:
                return []
        return [message]

    def _part(self, coordinates: Coordinates, where: str) -> Coordinates:
        return {name: value for name, value in coordinates.items() if self._where.get(name) == where}

    def _with(self, coordinates: Coordinates, parameters: Coordinates) -> WorkloadSpec:
        base = self._workload(str(coordinates[WORKLOAD]))
        return resolve_workload(base, parameters, self.request.seed)

    def _load_machine(self, name: str, settings: tuple[str, ...]) -> tuple[MachineSpec, str, str]:
        machine = resolve_machine(name, settings)
        return machine, _json(machine.model_dump(mode="json", exclude_unset=True)), _json(as_data(machine))


def _json(data: object) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def _digest(*texts: str) -> str:
    digest = hashlib.sha256(model_version().encode())
    for text in texts:
        digest.update(b"\0" + text.encode())
    return digest.hexdigest()[:32]
