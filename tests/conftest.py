"""What all tests have in common: the same examples every time, however slow the computer; golden options; workers."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("hwsim", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("hwsim")
os.environ.pop("COLUMNS", None)  # a screen that is piped is as wide as that says


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of tests/golden/test_runs.py."""
    parser.addoption("--golden-all", action="store_true", help="compare every golden row, not a part of them")
    parser.addoption("--update-golden", action="store_true", help="write every golden row and screen again")


APART = "tests/docs/test_pages.py"
"""Pages have nothing in common: each goes to the worker that is free, after all files, so that both end together."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The tests of a file on one worker, so that runs and pages that several of them look at are made once."""
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid if nodeid.startswith(APART) else super()._split_scope(nodeid)

    return Files(config, log)
