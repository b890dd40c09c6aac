"""The generated pages are what the program would generate now; `make docs` writes them again."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from hwsim.cli.app import COMMANDS, main
from hwsim.spec.machine import MachineSpec
from tests.docs.blocks import ROOT


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = _generator()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages as `make docs` writes them: in a process of their own, which knows no operation of another test."""
    folder = tmp_path_factory.mktemp("reference")
    subprocess.run([sys.executable, ROOT / "docs" / "generate.py", folder], check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("name", GENERATOR.PAGES)
def test_the_page_is_up_to_date(name: str, written: Path) -> None:
    committed = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    assert committed == (written / name).read_text(encoding="utf-8"), f"docs/reference/{name} is old; run: make docs"


def test_the_page_on_validation_is_up_to_date() -> None:
    committed = (GENERATOR.EXPLANATION / GENERATOR.VALIDATION).read_text(encoding="utf-8")
    assert committed == GENERATOR.validation_page(), "docs/explanation/validation.md is old; run: make docs"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_the_help_is_on_the_page(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    options = set(re.findall(r"(?<![\w-])--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    page = GENERATOR.cli_page()
    section = page.split(f"\n## hwsim {command}\n")[1].split("\n## ")[0]
    assert {option for option in options if f"`{option}`" not in section} == set()


def test_every_field_of_a_machine_is_on_the_page() -> None:
    page = GENERATOR.machine_page()
    for field in MachineSpec.model_fields:
        assert f"| `{field}` |" in page
    for path in ("ways", "mshrs", "trefi", "issue_width", "shared_by", "bank_width"):
        assert f"| `{path}` |" in page


def test_a_default_is_written_as_a_file_would_write_it() -> None:
    assert "| `line` | size, such as `64 B` | `64 B` |" in GENERATOR.machine_page()
