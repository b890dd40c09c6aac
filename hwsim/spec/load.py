"""From a file to a checked spec: pydantic finds all that is wrong at once, and this page says it in plain sentences."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from hwsim.errors import Problem, SpecError
from hwsim.spec.document import MOST_DIGITS, NodePath, Place, YamlNode, read_document
from hwsim.spec.fields import (
    Finding,
    check_sources,
    choices,
    declared_at,
    did_you_mean,
    literals,
    model_at,
    model_of,
    shown_path,
    sources,
    variant_field,
)
from hwsim.spec.machine import Level, LevelSpec, MachineSpec
from hwsim.spec.rules import check_level, check_machine
from hwsim.spec.variant import Finder, ResolvedDocument, apply_overrides, resolve
from hwsim.spec.workload import WorkloadSpec, known_operations, workload_model

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
    known = _recall(model, (node,), ())
    if known is not None:
        return known.spec
    spec, findings = validate(model, node)
    found = _without_repeats([*problems, *(finding.problem(node) for finding in findings)])
    if spec is None or found:
        raise SpecError(found)
    return _remember(model, (node,), (), Loaded(spec, (path,), {}, {})).spec


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
    resolved: ResolvedDocument,
    overrides: Sequence[str],
    rules: Callable[[Model | None, YamlNode, set[NodePath]], Sequence[Finding]],
) -> Loaded[Model]:
    known = _recall(model, resolved.roots, overrides)
    if known is not None:
        return replace(known, files=resolved.files)
    node = apply_overrides(model, resolved.node, overrides)
    spec, findings = validate(model, node)
    broken = {finding.path[:2] for finding in findings}
    findings += rules(spec, node, broken)
    problems = _without_repeats([*resolved.problems, *(finding.problem(node) for finding in findings)])
    if spec is None or problems:
        raise SpecError(problems)
    loaded = Loaded(spec, resolved.files, dict(_places(node, node)), sources(node))
    return _remember(model, resolved.roots, overrides, loaded)


_KNOWN: dict[tuple[object, ...], tuple[tuple[YamlNode, ...], Any]] = {}
"""What files have been found to say, by what they hold. Specs are frozen, so that many runs may share one."""
_MOST_KNOWN = 256


def _recall(model: type[Model], roots: tuple[YamlNode, ...], overrides: Sequence[str]) -> Loaded[Model] | None:
    found = _KNOWN.get((model, *map(id, roots), *overrides))
    return None if found is None else found[1]


def _remember(
    model: type[Model], roots: tuple[YamlNode, ...], overrides: Sequence[str], loaded: Loaded[Model]
) -> Loaded[Model]:
    """The roots are kept as well: while they are, no other node has their identity."""
    if len(_KNOWN) >= _MOST_KNOWN:
        _KNOWN.clear()
    _KNOWN[(model, *map(id, roots), *overrides)] = roots, loaded
    return loaded


def _unknown_operation(op: str | None) -> str:
    known = known_operations()
    if op is None:
        return f"missing; it is one of {', '.join(known)}"
    return f"'{op}' is not one of {', '.join(known)}{did_you_mean(op, known)}"


def _machine_findings(machine: MachineSpec | None, node: YamlNode, broken: set[NodePath]) -> list[Finding]:
    findings = list(check_sources(MachineSpec, node))
    for index, level in _whole_levels(machine, node, broken):
        findings += check_level(level, index)
    if machine is not None:
        findings += check_machine(machine)
    return findings


def _whole_levels(machine: MachineSpec | None, node: YamlNode, broken: set[NodePath]) -> Iterator[tuple[int, Level]]:
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


def _places(root: YamlNode, node: YamlNode, path: NodePath = ()) -> Iterator[tuple[str, Place]]:
    children: list[tuple[str | int, YamlNode]] = [*node.fields.items(), *enumerate(node.items)]
    if not children:
        yield shown_path(root, path), node.place
    for key, child in children:
        yield from _places(root, child, (*path, key))


def _without_repeats(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    return tuple(dict.fromkeys(problems))


Details = Mapping[str, Any]


def validate(model: type[Model], node: YamlNode) -> tuple[Model | None, list[Finding]]:
    """The spec that the data describes, or every reason why it describes none."""
    try:
        return model.model_validate(node.plain()), []
    except ValidationError as error:
        by_path: dict[NodePath, list[Details]] = {}
        for details in error.errors(include_url=False):
            by_path.setdefault(_field_path(model, node, details), []).append(details)
        said = {path: _message(model, node, path, by_path[path]) for path in _innermost(by_path)}
        return None, [
            Finding(*(_named_field(node, text) if path == () else (path, text))) for path, text in said.items()
        ]


def _named_field(node: YamlNode, message: str) -> tuple[NodePath, str]:
    """The field that a message about a whole file begins with, and the rest: ``sizes.n: …``, ``formula, line 2: …``."""
    name = re.match(r"([\w.]+)[,:] ", message)
    path = tuple(name[1].split(".")) if name else ()
    here: YamlNode | None = node
    for part in path:
        here = here.child(part) if here is not None else None
    return (path, message[name.end() :]) if name and here is not None else ((), message)


def _field_path(model: type[BaseModel], node: YamlNode, details: Details) -> NodePath:
    """Pydantic's location without the names of variants (`cache`, `constrained-int`) that it puts between."""
    path: list[str | int] = []
    location: tuple[str | int, ...] = details["loc"]
    here: YamlNode | None = node
    for position, part in enumerate(location):
        inner = here.child(part) if here is not None else None
        names_a_field = details["type"] in ("missing", "extra_forbidden") and position == len(location) - 1
        if inner is not None or names_a_field:
            path.append(part)
            here = inner
    if details["type"].startswith("union_tag"):
        declared = declared_at(model, node, tuple(path))
        path.append(variant_field(declared.annotation) if declared is not None else "kind")
    return tuple(path)


def _innermost(by_path: Mapping[NodePath, list[Details]]) -> list[NodePath]:
    """Leave out what is only said because something inside is wrong."""
    return [path for path in by_path if not any(other[: len(path)] == path and other != path for other in by_path)]


def _message(model: type[BaseModel], node: YamlNode, path: NodePath, errors: list[Details]) -> str:
    first = errors[0]
    match first["type"]:
        case "missing" | "union_tag_not_found":
            return _missing(model, node, path)
        case "union_tag_invalid":
            return _not_one_of(first["ctx"]["tag"], re.findall(r"'([^']*)'", first["ctx"]["expected_tags"]))
        case "extra_forbidden":
            return _unknown(model, node, path)
        case "value_error":
            return str(first["ctx"]["error"])
        case "string_pattern_mismatch":
            return _bad_name(str(first["input"]))
        case _:
            return _wrong_value(first["input"], errors)


def _missing(model: type[BaseModel], node: YamlNode, path: NodePath) -> str:
    declared = declared_at(model, node, path)
    if declared is not None and declared.description:
        return f"missing; it is: {declared.description}"
    if path[-1] in ("kind", "op"):
        group = declared_at(model, node, path[:-1])
        kinds = sorted(_kinds(group.annotation)) if group is not None else []
        return f"missing; one of {', '.join(kinds)}"
    return "missing"


def _kinds(annotation: Any) -> set[str]:
    return {
        str(kind)
        for choice in choices(annotation)
        if isinstance(choice, type) and issubclass(choice, BaseModel)
        for kind in literals(choice.model_fields[variant_field(annotation)].annotation)
    }


def _unknown(model: type[BaseModel], node: YamlNode, path: NodePath) -> str:
    group = model_at(model, node, path[:-1])
    known = sorted(group.model_fields) if group is not None else []
    if len(path) == 1:
        known.append("extends")
    word = str(path[-1])
    if word in ("after", "remove"):
        return f"'{word}' is only for the parts of a file that has 'extends'"
    return f"unknown field{did_you_mean(word, known) or '; known: ' + ', '.join(known)}"


def _not_one_of(found: Any, allowed: Sequence[str]) -> str:
    names = sorted(allowed)
    if len(names) == 1:
        return f"{_shown(found)} is not {names[0]}{did_you_mean(str(found), names)}"
    return f"{_shown(found)} is not one of {', '.join(names)}{did_you_mean(str(found), names)}"


def _bad_name(found: str) -> str:
    fixed = re.sub(r"[^a-z0-9_]+", "_", found.lower()).strip("_")
    suggestion = f"; did you mean '{fixed}'?" if re.fullmatch(r"[a-z][a-z0-9_]*", fixed) else ""
    allowed = "lower-case letters, digits and '_', starting with a letter"
    return f"{_shown(found)} is not a name: {allowed}{suggestion}"


def _wrong_value(found: Any, errors: list[Details]) -> str:
    """One sentence for all the alternatives that a value could have met, and met none of."""
    if found is None:
        return f"is empty; it must be {_alternatives(errors)}"
    if [details["type"] for details in errors] == ["literal_error"]:
        return _not_one_of(found, _expected(errors[0]))
    words = [word for details in errors if details["type"] == "literal_error" for word in _expected(details)]
    return f"must be {_alternatives(errors)}, found {_shown(found)}{did_you_mean(str(found), words)}"


def _alternatives(errors: list[Details]) -> str:
    texts = [_EXPECTATIONS.get(details["type"], _as_pydantic_says)(details) for details in errors]
    return " or ".join(dict.fromkeys(texts))


def _expected(details: Details) -> list[str]:
    quoted = re.findall(r"'([^']*)'|(-?\d+)", details["ctx"]["expected"])
    return [text or number for text, number in quoted]


def _as_pydantic_says(details: Details) -> str:
    return str(details["msg"]).removeprefix("Input should be ").removeprefix("Value error, ")


def _plain_number(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


def _whole_number(details: Details) -> str:
    found = details["input"]
    if isinstance(found, str) and found.lstrip("+-").isdigit():
        return f"a whole number of at most {MOST_DIGITS} digits"
    if isinstance(found, float) and found.is_integer() and abs(found) < 10**MOST_DIGITS:
        return f"a whole number without point or exponent ({int(found)})"
    return "a whole number"


_EXPECTATIONS: Mapping[str, Callable[[Details], str]] = {
    "int_type": _whole_number,
    "float_type": lambda details: "a number",
    "string_type": lambda details: "text",
    "bool_type": lambda details: "true or false",
    "dict_type": lambda details: "a group of fields",
    "model_type": lambda details: "a group of fields",
    "model_attributes_type": lambda details: "a group of fields",
    "tuple_type": lambda details: "a list",
    "too_short": lambda details: f"a list of at least {details['ctx']['min_length']}",
    "greater_than_equal": lambda details: f"at least {_plain_number(details['ctx']['ge'])}",
    "greater_than": lambda details: f"more than {details['ctx']['gt']}",
    "less_than_equal": lambda details: f"at most {_plain_number(details['ctx']['le'])}",
    "finite_number": lambda details: "a finite number",
    "string_too_long": lambda details: f"text of at most {details['ctx']['max_length']:,} letters",
    "too_long": lambda details: f"a list of at most {details['ctx']['max_length']:,}",
    "less_than": lambda details: f"less than {details['ctx']['lt']}",
    "multiple_of": lambda details: f"a multiple of {details['ctx']['multiple_of']}",
    "literal_error": lambda details: " or ".join(f"'{word}'" for word in _expected(details)),
}


def _shown(found: Any) -> str:
    """A value as a message shows it: whole groups would not help."""
    if isinstance(found, Mapping):
        return "a group of fields"
    if isinstance(found, Sequence) and not isinstance(found, str):
        return "a list" if found else "an empty list"
    if isinstance(found, bool):
        return str(found).lower()
    text = repr(found)
    return text if len(text) <= 60 else f"{text[:57]}…'"
