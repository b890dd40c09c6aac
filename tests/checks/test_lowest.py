"""What pyproject.toml says about other packages: each has a lower bound, and `make lowest` installs just that."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lowest import lowest

PYPROJECT = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text()


def test_the_lowest_versions_are_those_of_the_project() -> None:
    pins = lowest(PYPROJECT)
    assert "pydantic==2.11" in pins and "typer==0.15.4" in pins and "numpy==1.26" in pins
    assert not [pin for pin in pins if pin.startswith(("ruff", "mypy"))]


def test_a_package_without_a_lower_bound_is_noticed() -> None:
    with pytest.raises(ValueError, match="rich: no lower bound"):
        lowest(PYPROJECT.replace('"rich>=13.7"', '"rich"'))
