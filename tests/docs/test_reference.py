"""What the reference pages tell of limits and defaults is what files and operations are held to."""

from __future__ import annotations

import re

from hwsim.program.loop_kernel import build_kernel
from hwsim.spec.machine import MachineSpec
from hwsim.spec.workload import WorkloadSpec
from hwsim.targets.cpu.spec import UNIT as CORE
from hwsim.targets.gpu.spec import UNIT as SM
from hwsim.targets.grid.spec import UNIT as GRID
from hwsim.targets.pim.spec import UNIT as BANK
from hwsim.targets.systolic.spec import UNIT as ARRAY
from tests.docs.blocks import ROOT
from tests.docs.test_generated import GENERATOR

REFERENCE = ROOT / "docs" / "reference"
MACHINES, WORKLOADS = (
    (REFERENCE / name).read_text(encoding="utf-8") for name in ("machine-format.md", "workload-format.md")
)


def sections(page: str) -> dict[str, str]:
    """The text of a page by its headings of the second level."""
    return {part.partition("\n")[0]: part.partition("\n")[2] for part in page.split("\n## ")[1:]}


def told_sizes() -> dict[str, dict[str, int]]:
    """The sizes that the page tells for each operation that can do without any."""
    found = {}
    for title, text in sections(WORKLOADS).items():
        row = re.search(r"^\| `sizes` \| a group \| ([^|]*) \|", text, re.MULTILINE)
        told = {name: int(size) for name, size in re.findall(r"`(\w+): (\d+)`", row[1])} if row else {}
        for operation in re.findall(r"`(\w+)`", title) if title.startswith("op: ") and told else ():
            found[operation] = told
    return found


def test_a_machine_file_is_held_to_the_limits_and_defaults_of_its_page() -> None:
    assert GENERATOR.machine_page() == MACHINES
    by_title = sections(MACHINES)
    for unit in (CORE, SM, ARRAY, GRID, BANK):
        (kind,) = unit.model_fields["kind"].annotation.__args__  # type: ignore[union-attr]
        text = by_title[f"compute: kind {kind}"].partition("\n### ")[0]
        assert [field for field in unit.model_fields if f"| `{field}` |" not in text] == [], kind
    groups = GENERATOR.json_schema("Machine", MachineSpec)["$defs"]
    for name, group in groups.items():
        if not name.endswith("Variant"):
            assert [field for field in group["properties"] if f"| `{field}` |" not in MACHINES] == [], name


def test_a_workload_file_is_held_to_the_limits_and_defaults_of_its_page() -> None:
    """But for operations that other tests add."""
    told = sections(WORKLOADS)
    assert len(told) > 50
    ours = {name for title in told for name in re.findall(r"`(\w+)`", title) if title.startswith("op: ")}
    page = GENERATOR.workload_page()
    every = {name for title in sections(page) for name in re.findall(r"`(\w+)`", title) if title.startswith("op: ")}
    for added in every - ours:
        page = page.replace(f"`{added}`, ", "").replace(f", `{added}`", "")
    made = sections(page)
    for title, text in told.items():
        assert made[title] == text, title


def test_an_operation_without_sizes_has_those_of_the_page() -> None:
    assert len(told_sizes()) > 50
    for name, sizes in told_sizes().items():
        given = {"stages": ({"op": "relu"},)} if name == "pointwise" else {}
        spec = WorkloadSpec.model_validate({"format": 1, "name": name, "description": "", "op": name, **given})
        assert {each: getattr(spec.sizes, each) for each in sizes} == sizes, name
        assert build_kernel(spec, math=False).tensors, name
