"""What all tests have in common: the same examples every time, however slow the computer; and the golden options."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("hwsim", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("hwsim")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of tests/golden/test_runs.py."""
    parser.addoption("--golden-all", action="store_true", help="compare every golden row, not a part of them")
    parser.addoption("--update-golden", action="store_true", help="write every golden row and screen again")
