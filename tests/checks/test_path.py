"""How many files there are, and how many of them one run passes through: whoever follows a run has to read those."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST = 60
"""Files of hwsim in which `hwsim run course_cpu matmul_tiled` calls a function; 93 in 0.2.0. A number to lower,
never to raise: a layer that only passes on does not earn its place."""
MOST_FILES = 230
"""Python files of hwsim; 355 in 0.2.0. A number to lower, never to raise: a file is an idea, and a fragment
of one belongs into the file that has it."""

WATCHED = """
import sys
from pathlib import Path

import hwsim
from hwsim.cli.app import main

root, seen = str(Path(hwsim.__file__).parent), set()


def watch(frame, event, argument):
    code = frame.f_code
    # Functions have fast locals; the bodies of modules and classes, which run on import, have none.
    if event == "call" and code.co_flags & 2 and code.co_filename.startswith(root):
        seen.add(code.co_filename)


sys.argv = ["hwsim", "run", "course_cpu", "matmul_tiled", "n=64"]
sys.setprofile(watch)
try:
    main(sys.argv[1:])
finally:
    sys.setprofile(None)
    print(*sorted(seen), sep="\\n", file=sys.stderr)
"""


def test_a_run_passes_through_few_files(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", WATCHED], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "verified" in done.stdout
    files = [line for line in done.stderr.splitlines() if line.endswith(".py")]
    assert 40 < len(files) <= MOST, f"{len(files)} files:\n" + "\n".join(files)


def test_there_are_few_files() -> None:
    files = list((ROOT / "hwsim").rglob("*.py"))
    assert 150 < len(files) <= MOST_FILES
