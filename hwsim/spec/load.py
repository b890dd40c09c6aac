"""From a file to a checked spec, with all that is wrong with it reported at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel

from hwsim.errors import Problem, SpecError
from hwsim.spec.document import Node, NodePath, Place, read_document
from hwsim.spec.extends import Finder, Resolved, resolve
from hwsim.spec.fields import Finding, did_you_mean, model_of, shown_path
from hwsim.spec.machine import MachineSpec
from hwsim.spec.memory import Level, LevelSpec
from hwsim.spec.override import apply_overrides
from hwsim.spec.rules import check_level, check_machine
from hwsim.spec.sources import check_sources, sources
from hwsim.spec.validate import validate
from hwsim.spec.workload import WorkloadSpec, workload_model

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Loaded(Generic[Model]):
    """A spec, and where each of its values comes from."""

    spec: Model
    files: tuple[Path, ...]
    """The file itself, then those that it extends."""
    places: Mapping[str, Place]
    """Where each written field stands, by its path."""
    sources: Mapping[str, str | None]
    """The source of each physical number that was written, by its path."""

    @property
    def unsourced(self) -> tuple[str, ...]:
        """Physical numbers that were written without a source, in the order of the file."""
        return tuple(path for path, source in self.sources.items() if source is None)


LoadedMachine = Loaded[MachineSpec]
LoadedWorkload = Loaded[WorkloadSpec]


def load_machine_file(path: Path, finder: Finder, overrides: Sequence[str] = ()) -> LoadedMachine:
    resolved = resolve(path, finder.show(path), finder)
    return _check(MachineSpec, resolved, overrides, _machine_findings)


def load_spec_file(model: type[Model], path: Path, shown: str) -> Model:
    """A file that stands by itself: an energy table."""
    node, problems = read_document(path, shown)
    spec, findings = validate(model, node)
    found = _without_repeats([*problems, *(finding.problem(node) for finding in findings)])
    if spec is None or found:
        raise SpecError(found)
    return spec


def load_workload_file(path: Path, finder: Finder, overrides: Sequence[str] = ()) -> LoadedWorkload:
    resolved = resolve(path, finder.show(path), finder)
    op = resolved.node.text("op")
    model = workload_model(op)
    if model is WorkloadSpec:
        finding = Finding(("op",), _unknown_operation(op))
        raise SpecError(_without_repeats([*resolved.problems, finding.problem(resolved.node)]))
    return _check(model, resolved, overrides, lambda spec, node, broken: ())


def _check(
    model: type[Model],
    resolved: Resolved,
    overrides: Sequence[str],
    rules: Callable[[Model | None, Node, set[NodePath]], Sequence[Finding]],
) -> Loaded[Model]:
    node = apply_overrides(model, resolved.node, overrides)
    spec, findings = validate(model, node)
    broken = {finding.path[:2] for finding in findings}
    findings += rules(spec, node, broken)
    problems = _without_repeats([*resolved.problems, *(finding.problem(node) for finding in findings)])
    if spec is None or problems:
        raise SpecError(problems)
    return Loaded(spec, resolved.files, dict(_places(node, node)), sources(node))


def _unknown_operation(op: str | None) -> str:
    known = sorted(WorkloadSpec.variants)
    if op is None:
        return f"missing; it is one of {', '.join(known)}"
    return f"'{op}' is not one of {', '.join(known)}{did_you_mean(op, known)}"


def _machine_findings(machine: MachineSpec | None, node: Node, broken: set[NodePath]) -> list[Finding]:
    findings = list(check_sources(MachineSpec, node))
    for index, level in _whole_levels(machine, node, broken):
        findings += check_level(level, index)
    if machine is not None:
        findings += check_machine(machine)
    return findings


def _whole_levels(machine: MachineSpec | None, node: Node, broken: set[NodePath]) -> Iterator[tuple[int, Level]]:
    """The levels that are valid by themselves, also where something else in the file is not."""
    if machine is not None:
        yield from enumerate(machine.memory)
        return
    levels = node.fields.get("memory")
    for index, level in enumerate(levels.items if levels is not None and ("memory",) not in broken else ()):
        model = model_of(LevelSpec, level)
        if model is not None and ("memory", index) not in broken:
            whole = model.model_validate(level.plain())
            assert isinstance(whole, Level)
            yield index, whole


def _places(root: Node, node: Node, path: NodePath = ()) -> Iterator[tuple[str, Place]]:
    children: list[tuple[str | int, Node]] = [*node.fields.items(), *enumerate(node.items)]
    if not children:
        yield shown_path(root, path), node.place
    for key, child in children:
        yield from _places(root, child, (*path, key))


def _without_repeats(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    return tuple(dict.fromkeys(problems))
