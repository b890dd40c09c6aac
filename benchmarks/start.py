"""CPU seconds (user and system) that commands take from start to end, beside what Python and libraries take alone.

python benchmarks/start.py [REPEATS]

The least of some runs, one after the other in turn, so that a busy computer disturbs all of them alike. Where it is
busy, the least is too large as well: compare with the lines of the libraries. The first run of each, which may have to
compile Python files, does not count.
"""

from __future__ import annotations

import os
import subprocess
import sys

LIBRARIES = ("pass", "import numpy, pydantic", "import numpy, pydantic, typer, rich.console, yaml")
COMMANDS = (
    "hwsim --help",
    "hwsim run a100_40 matmul n=512 precision=fp16",
    "hwsim run course_cpu matmul_tiled n=64",
    "hwsim run tpu_v4 matmul n=512 precision=bf16",
)
TIMED = {f"python -c '{text}'": ["-c", text] for text in LIBRARIES} | {text: ["-m", *text.split()] for text in COMMANDS}


def cpu_seconds(arguments: list[str]) -> float:
    """User and system time of one run of Python."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)}: exit {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    least = dict.fromkeys(TIMED, float("inf"))
    for repeat in range(repeats + 1):
        for name, arguments in TIMED.items():
            seconds = cpu_seconds(arguments)
            least[name] = min(least[name], seconds) if repeat else least[name]
    for name, seconds in least.items():
        print(f"{seconds:6.3f} s  {name}")


if __name__ == "__main__":
    main()
