"""A model from a name, a model file, or any file that an importer reads; and a model as the text of a model file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from hwsim.errors import InputError
from hwsim.files import read_file
from hwsim.ops.model import ModelWorkload


def model_from_data(data: dict[str, Any], where: str) -> ModelWorkload:
    """A model from plain data, checked; `where` is the file it came from."""
    try:
        return ModelWorkload.model_validate(frozen(data))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        text = str(first["ctx"]["error"]) if first["type"] == "value_error" else str(first["msg"])
        raise InputError(f"{where}: {path}: {text}" if path else f"{where}: {text}") from error


def frozen(data: Any) -> Any:
    """Lists as tuples, as specs have them."""
    if isinstance(data, dict):
        return {name: frozen(each) for name, each in data.items()}
    return tuple(frozen(each) for each in data) if isinstance(data, list | tuple) else data


@dataclass(frozen=True)
class LoadedModel:
    """A model, and what an importer had to say about its file."""

    model: ModelWorkload
    notes: tuple[str, ...] = ()


def load_model(name: str | Path) -> LoadedModel:
    """A model by name, a model file, or a file that an importer reads: found out by its ending and its content."""
    from hwsim.catalog import expand, find, is_path, load_workload, names

    text = str(name)
    if text.endswith(IMPORTED) and not text.endswith((".yaml", ".yml")):
        return import_file(expand(text))
    if text.lower().endswith(OTHERS) or (is_path(text) and not text.endswith((".yaml", ".yml"))):
        raise InputError(f"{text}: no file of a model: its name ends in .yaml, {', '.join(IMPORTED)}")
    if not is_path(name) and text not in names("workload"):
        find("model", text)
    spec = load_workload(name if isinstance(name, Path) else text).spec
    if not isinstance(spec, ModelWorkload):
        raise InputError(f"{text} is a workload of one operation (op: {spec.op}); hwsim run simulates it")
    return LoadedModel(spec)


IMPORTED = (".json", ".onnx", ".pt2", ".csv")
"""Endings of files that importers read."""
OTHERS = (".pt", ".pth", ".bin", ".safetensors", ".gguf", ".npz", ".tflite", ".pb", ".h5", ".xml", ".txt")
"""Endings of files that hold a model, and that no importer reads."""
MOST_CONFIG_BYTES = 4_000_000


def import_file(path: Path, name: str | None = None) -> LoadedModel:
    """Read a file of another program. Raises InputError that names the file, the field and what to do."""
    from hwsim.files import note_input

    note_input(path)
    called = name or plain_name(path)
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    if path.suffix == ".json":
        return _config(path, called)
    if path.suffix == ".onnx":
        from hwsim.models.onnx_file import read_onnx

        return _made(path, read_onnx(path, called))
    if path.suffix == ".pt2":
        from hwsim.models.torch_export import read_program

        return _made(path, read_program(path, called))
    if path.suffix == ".csv":
        from hwsim.models.layers import read_layers

        return _made(path, read_layers(str(path), _text(path), called))
    raise InputError(
        f"{path}: no importer reads files that end in {path.suffix or 'nothing'}; {', '.join(IMPORTED)} do"
    )


def _made(path: Path, read: tuple[dict[str, Any], list[str]]) -> LoadedModel:
    """Checked as a model file is, with what does not fit said of the file it came from."""
    from hwsim.errors import ShapeError
    from hwsim.models.graph import ModelGraph

    model = model_from_data(read[0], str(path))
    try:
        ModelGraph.of(model)
    except ShapeError as error:
        raise InputError(f"{path}: {error}") from error
    return LoadedModel(model, tuple(read[1]))


def _text(path: Path) -> str:
    try:
        return read_file(path, MOST_CONFIG_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not text: {error}") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _config(path: Path, name: str) -> LoadedModel:
    from hwsim.models.config_json import read_config

    text = _text(path)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {error}") from error
    return _made(path, read_config(str(path), data, name))


def plain_name(path: Path) -> str:
    """A name for the model of a file: that of the file, or of its folder where the file is called config.json."""
    stem = path.stem
    if stem == "config" and path.resolve().parent.name:
        stem = path.resolve().parent.name
    text = re.sub(r"[^a-z0-9]+", "_", stem.lower()).strip("_")[:60]
    return text if text[:1].isalpha() else f"model_{text}".rstrip("_")


FIRST = ("format", "name", "description", "source", "op", "precision", "input", "width", "context", "sizes", "use")
WIDTH = 116


def model_yaml(model: ModelWorkload) -> str:
    """The text of a model file: what was said, without defaults."""
    data = model.model_dump(mode="json", exclude_unset=True)
    lines = [f"{name}: {_inline(data[name])}" for name in FIRST if data.get(name) not in (None, {}, "")]
    lines.append("blocks:")
    for block in data["blocks"]:
        about = [f"    {name}: {_inline(block[name])}" for name in ("repeat", "stream", "inputs") if name in block]
        lines += [f"  - name: {block['name']}", *about, "    operations:"]
        lines += [f"      - {line}" for each in block["operations"] for line in _operation(each)]
    return "\n".join(lines) + "\n"


def _operation(data: dict[str, Any]) -> Iterator[str]:
    ordered = {name: data[name] for name in ("name", "op", "inputs") if name in data} | data
    yield _inline(ordered)


def _inline(value: Any) -> str:
    """As one line of YAML; a long text keeps its line, which YAML allows."""
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6, allow_unicode=True)
    return text.removesuffix("\n...\n").rstrip("\n")
