"""``python tests/lowest.py pyproject.toml``: the oldest versions that the project says it works with, for pip."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

NOT_NEEDED = ("ruff", "mypy", "types-PyYAML")
"""Tools that check the source, not the program."""


def lowest(pyproject: str) -> list[str]:
    """``name==version`` of everything that the program and its tests need; raises ValueError without a lower bound."""
    project = tomllib.loads(pyproject)["project"]
    pins = []
    for text in (*project["dependencies"], *project["optional-dependencies"]["dev"]):
        found = re.fullmatch(r"([\w-]+)>=([\d.]+)", text)
        if found is None:
            raise ValueError(f"{text}: no lower bound")
        if found[1] not in NOT_NEEDED:
            pins.append(f"{found[1]}=={found[2]}")
    return pins


if __name__ == "__main__":
    sys.stdout.write("\n".join(lowest(Path(sys.argv[1]).read_text())) + "\n")
