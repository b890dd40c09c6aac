"""`hwsim schema`: what editors check against."""

from __future__ import annotations

import json

import pytest
import yaml
from command_line import hwsim

from hwsim.catalog import shipped_folder
from hwsim.spec.machine import MachineSpec


@pytest.fixture(scope="module")
def schema() -> dict:  # type: ignore[type-arg]
    return json.loads(hwsim("schema", "machine").out)


def test_every_field_of_a_cache_has_a_description(schema: dict) -> None:  # type: ignore[type-arg]
    fields = schema["$defs"]["CacheSpec"]["properties"]
    assert all(field.get("description") for name, field in fields.items() if name != "kind")


def test_a_quantity_is_a_string_with_examples(schema: dict) -> None:  # type: ignore[type-arg]
    size = schema["$defs"]["CacheSpec"]["properties"]["size"]
    assert size["type"] == "string"
    assert "32 KiB" in size["examples"]


def test_a_default_is_written_as_a_file_would_write_it(schema: dict) -> None:  # type: ignore[type-arg]
    assert schema["$defs"]["CacheSpec"]["properties"]["line"]["default"] == "64 B"


def test_a_whole_machine_needs_its_parts_and_a_variant_only_its_name(schema: dict) -> None:  # type: ignore[type-arg]
    whole, variant = schema["$defs"]["MachineSpec"], schema["$defs"]["MachineSpecVariant"]
    required = {name for name, field in MachineSpec.model_fields.items() if field.is_required()}
    assert set(whole["required"]) == required
    assert set(variant["required"]) == {"format", "name", "extends"}
    assert "extends" not in whole["properties"]
    level = schema["$defs"]["CacheSpecVariant"]
    assert level["required"] == ["name"]
    assert {"after", "remove"} <= set(level["properties"])


def test_every_reference_leads_somewhere(schema: dict) -> None:  # type: ignore[type-arg]
    references = {piece.split('"')[0] for piece in json.dumps(schema).split("#/$defs/")[1:]}
    assert references <= set(schema["$defs"])


def test_workloads_have_a_schema_too() -> None:
    workload = json.loads(hwsim("schema", "workload").out)
    matmul = workload["$defs"]["MatmulWorkload"]
    assert {"format", "name", "op"} <= set(matmul["required"])
    assert "extends" in workload["$defs"]["MatmulWorkloadVariant"]["properties"]


def test_every_shipped_machine_keeps_to_the_schema_that_editors_use(schema: dict) -> None:  # type: ignore[type-arg]
    """A P100 takes entries away with null, which the schema once refused."""
    validator = pytest.importorskip("jsonschema").Draft202012Validator(schema)
    for path in sorted(shipped_folder("machine").glob("*.yaml")):
        found = [error.message for error in validator.iter_errors(yaml.safe_load(path.read_text(encoding="utf-8")))]
        assert not found, path.name
