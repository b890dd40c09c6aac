"""Serving engines by name or path."""

from __future__ import annotations

from hwsim.catalog import find, names, shown
from hwsim.spec.load import load_spec_file
from hwsim.systems.engine_spec import EngineSpec

DEFAULT_ENGINE = "vllm"


def engine_names() -> tuple[str, ...]:
    return names("engine")


def load_engine(name: str) -> EngineSpec:
    """An engine file of `engines/`; raises CatalogError with what there is."""
    path = find("engine", name)
    return load_spec_file(EngineSpec, path, shown(path))
