"""Point: one combination of a sweep, resolved to the machine and workload that will be simulated, and its key.

Also what a worker does with one, in this process, in another, or on another computer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from hwsim import __version__
from hwsim.api import resolve_machine, resolve_workload, run_all
from hwsim.errors import HwsimError, InputError, OverrideError, PassingError
from hwsim.files import content_digest
from hwsim.spec.fields import as_data
from hwsim.spec.machine import MachineSpec
from hwsim.spec.workload import WorkloadSpec, workload_model
from hwsim.sweep.grid import MACHINE, WORKLOAD, Axis, Coordinates, SweepRequest, Value, typed
from hwsim.target import find_target, refusal, unread, written_choices

_PACKAGE = Path(__file__).resolve().parent.parent
_SILENT = ("cli", "sweep", "validation", "results/plot", "results/html.py", "data")
"""What no number comes from: these may change without making stored points old."""


@cache
def model_version() -> str:
    """hwsim's version, and a digest of the code that makes numbers."""
    digest = hashlib.sha256()
    silent = tuple(_PACKAGE / part for part in _SILENT)
    files = [file for file in _PACKAGE.rglob("*.py") if not any(file.is_relative_to(part) for part in silent)]
    for file in sorted(files):
        digest.update(file.relative_to(_PACKAGE).as_posix().encode())
        digest.update(file.read_bytes())
    return f"{__version__}+{digest.hexdigest()[:12]}"


@dataclass(frozen=True)
class RunInputs:
    """All that a worker needs, wherever it runs: resolved inputs as JSON text; of files only the user's own tensors."""

    machine: str
    """The machine with the fields that were written, as a file would give them."""
    described: str
    """The same with every default filled in, as results show it."""
    workload: str
    math: bool
    files: tuple[tuple[str, str], ...] = ()
    """The paths of the user's own tensors, and digests of what is in them."""

    @property
    def key(self) -> str:
        """A digest of the inputs and the model: equal keys mean equal results."""
        files = [f"{path}\0{digest}" for path, digest in self.files]
        return _digest(self.machine, self.described, self.workload, "math" if self.math else "no math", *files)

    @property
    def machine_key(self) -> str:
        return hashlib.sha256(self.described.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Point:
    """A place in the grid, and the run that it means; or why it means none."""

    position: int
    coordinates: Coordinates
    inputs: RunInputs | None
    error: str = ""
    passing: bool = False
    """Whether the reason may be another next time: a file that is not there now."""

    @property
    def key(self) -> str:
        if self.inputs is not None:
            return self.inputs.key
        return _digest(json.dumps(self.coordinates, sort_keys=True), self.error)


def resolve_points(request: SweepRequest) -> Iterator[Point]:
    """Every point of the grid, made when it is asked for."""
    resolver = Resolver(request)
    for position, coordinates in enumerate(request.coordinates()):
        try:
            yield Point(position, coordinates, resolver.inputs(coordinates))
        except InputError as error:
            yield Point(position, coordinates, None, str(error), isinstance(error, PassingError))


def check_request(request: SweepRequest) -> None:
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

    def __init__(self, request: SweepRequest) -> None:
        self.request = request
        self._where = {axis.name: axis.where for axis in request.axes}
        self._machine = lru_cache(maxsize=1024)(self._load_machine)
        self._workload = lru_cache(maxsize=64)(lambda name: resolve_workload(name, {}))
        self._refusals: dict[object, str] = {}
        self._content = cache(_content)

    def inputs(self, coordinates: Coordinates) -> RunInputs:
        settings = tuple(f"{name}={typed(value)}" for name, value in self._part(coordinates, "machine").items())
        machine, written, described = self._machine(str(coordinates[MACHINE]), settings)
        asked = self._with(coordinates, self._part(coordinates, "workload"))
        if refused := self._refusal(coordinates, machine, asked):
            raise OverrideError(refused)
        workload = asked.model_dump(mode="json", exclude_unset=True)  # what is open, the run chooses for its machine
        files = tuple((file, self._content(file)) for file in asked.inputs.values())
        return RunInputs(written, described, _json(workload), self.request.math, files)

    def unknown_names(self, coordinates: Coordinates) -> list[str]:
        """What is wrong with the names of the axes, for one machine and one workload."""
        from hwsim.catalog import load_machine
        from hwsim.spec.variant import locate, parameter_keys, unknown_parameter

        spec = self._workload(str(coordinates[WORKLOAD]))
        parts = load_machine(str(coordinates[MACHINE])).spec
        keys = parameter_keys(spec)
        names = {part.name for part in (*parts.compute, *parts.memory)}
        wrong = []
        for name, value in self._part(coordinates, "workload").items():
            if locate(spec, name, value, keys) is not None:
                continue
            if name.partition(".")[0] in names and "." in name:
                wrong.append(f"{name}: this belongs to the machine; write --set {name}=…")
            else:
                wrong += unknown_parameter(spec, name, keys)
        return wrong

    def refused(self, first: Coordinates, axis: Axis, value: Value) -> list[str]:
        """Why a value fits neither beside the first values of the others nor alone; nothing where it does."""
        message = ""
        alone = {MACHINE: first[MACHINE], WORKLOAD: first[WORKLOAD]}
        for around in (first, alone):
            try:
                self.inputs({**around, axis.name: value})
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

    def _refusal(self, coordinates: Coordinates, machine: MachineSpec, asked: WorkloadSpec) -> str:
        """What to say of choices that a machine does not read; nothing where it reads all of them.

        Which ones it reads depends on names and words, not on numbers: points that differ in those share the answer.
        """
        parameters = self._part(coordinates, "workload")
        words = tuple((name, None if type(value) is int else value) for name, value in parameters.items())
        place = (coordinates[MACHINE], coordinates[WORKLOAD], words)
        if place not in self._refusals:
            target = find_target(machine)
            written = written_choices(str(coordinates[WORKLOAD]), asked)
            refused = unread(target, asked, {**written, **parameters, **asked.choices})
            self._refusals[place] = "\n".join(refusal(target, asked, refused)) if refused else ""
        return self._refusals[place]

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


def run_inputs(inputs: RunInputs) -> str:
    """The result as JSON text without its machine, which the store keeps once for many points.

    Equal inputs give equal text, byte for byte, wherever and whenever they run; but for the last digits of the numeric
    errors, which follow the linear algebra library that NumPy was built with.
    """
    _check_files(inputs)
    result = run_all(*specs_of(inputs), math=inputs.math).result.to_dict()
    _check_files(inputs)
    if result["resolved"]["machine"] == json.loads(inputs.described):  # a machine that had to slow down is another one
        result["resolved"] = {"workload": result["resolved"]["workload"]}
    return json.dumps(result, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _content(file: str) -> str:
    try:
        return content_digest(file)
    except FileNotFoundError:
        raise PassingError(f"inputs: there is no file {file}") from None
    except OSError as error:
        raise PassingError(f"inputs: {file} cannot be read: {error.strerror}") from error


def _check_files(inputs: RunInputs) -> None:
    """Raises PassingError where a file is not what the key was made of."""
    for file, digest in inputs.files:
        if _content(file) != digest:
            raise PassingError(f"inputs: {file} has changed since the sweep began; the same command computes it again")


@dataclass(frozen=True)
class Answer:
    """What a worker sends back: a result or a refusal of the model, and which model that was."""

    model: str
    result: str | None
    refusal: str | None = None


def answer(function: Callable[[RunInputs], str], inputs: RunInputs) -> Answer:
    """What workers do. Passing faults and mistakes of ours are raised: they are no answers."""
    try:
        return Answer(model_version(), function(inputs))
    except PassingError:
        raise
    except HwsimError as error:
        return Answer(model_version(), None, str(error))


def specs_of(inputs: RunInputs) -> tuple[MachineSpec, WorkloadSpec]:
    """The machine and the workload of a run, as they were asked for."""
    data = json.loads(inputs.workload)
    work = workload_model(data.get("op")).model_validate(data, strict=False, context={"strict": False})
    return machine_of(inputs), work


def machine_of(inputs: RunInputs) -> MachineSpec:
    """The machine of a run; the runs of a sweep share a few."""
    return _machine(inputs.machine)


@lru_cache(maxsize=64)
def _machine(text: str) -> MachineSpec:
    return MachineSpec.model_validate(json.loads(text), strict=False, context={"strict": False})
