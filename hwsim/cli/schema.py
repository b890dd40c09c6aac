"""`hwsim schema`: JSON Schemas, so that editors complete and check YAML files."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from hwsim.cli.console import print_json

EXAMPLE = "Example: [cyan]hwsim schema machine > machine.schema.json[/cyan]"


class What(Enum):
    MACHINE = "machine"
    WORKLOAD = "workload"


def schema_command(what: Annotated[What, typer.Argument(help="Which kind of file.")]) -> None:
    """Print the JSON Schema of machine or workload files."""
    from hwsim.spec.machine import MachineSpec
    from hwsim.spec.operation import AnyWorkload
    from hwsim.spec.render import json_schema

    declared = MachineSpec if what is What.MACHINE else AnyWorkload
    print_json(json_schema(f"hwsim {what.value}", declared))
