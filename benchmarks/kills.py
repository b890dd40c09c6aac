"""Twenty random kills: a sweep whose parent or worker is killed leaves the same bytes as one that nobody disturbs.

python benchmarks/kills.py [kills] [seed]

Each time a fresh sweep starts in a process of its own, and after a random while either the process itself or one of its
workers gets SIGKILL. Then the same command runs again, to the end. Every point of its store must equal, byte for byte,
that of a sweep that nobody disturbed; and no worker may outlive its parent. Needs Linux (/proc).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import hwsim
from hwsim.errors import HwsimError
from hwsim.sweep.store import Store

SWEEP = ("sweep", "course_cpu", "matmul_tiled", "n=16..160:4", "tile=4", "--executor", "processes", "--jobs", "2")
ROOT = Path(hwsim.__file__).resolve().parent.parent


def start(store: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "hwsim.cli.app", *SWEEP, "--out", str(store)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def workers(parent: int) -> list[int]:
    """The worker processes of a process."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes()
        except (OSError, ValueError):
            continue
        if folder.name.isdigit() and int(words[1]) == parent and b"spawn_main" in command:
            found.append(int(folder.name))
    return found


def alive(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            found.append(pid)
    return found


def digest(store: Path) -> dict[str, tuple[str, str | None, str | None]]:
    with Store(store, write=False) as opened:
        return opened.digest()


def kept(store: Path) -> int:
    """How many points a store has by now."""
    try:
        with Store(store, write=False, check=False) as opened:
            return opened.count()
    except HwsimError:
        return 0


def disturb(store: Path, points: int, dice: random.Random) -> str:
    """Start a sweep, kill its parent or a worker at a random moment of its work, and say what was hit."""
    process = start(store)
    moment = dice.randrange(points - 4)
    while kept(store) < moment and process.poll() is None:
        time.sleep(0.01)
    time.sleep(dice.uniform(0.0, 0.05) if moment else dice.uniform(0.0, 3.0))
    own = workers(process.pid)
    if process.poll() is not None:
        return ""
    if own and dice.random() < 0.5:
        os.kill(dice.choice(own), signal.SIGKILL)
        code = process.wait()
        assert code == 0, f"a sweep that lost a worker ended with {code}"
        return "worker"
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while alive(own) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive(own), "a worker outlived its parent"
    return "parent"


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    dice = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 8)
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole.db"
        assert start(whole).wait() == 0
        expected = digest(whole)
        print(f"undisturbed: {len(expected)} points", flush=True)
        number = 0
        while number < kills:
            store = Path(folder) / f"{number}.db"
            victim = disturb(store, len(expected), dice)
            if not victim:
                store.unlink()
                continue  # it was done before the blow fell
            number += 1
            before = kept(store)
            assert start(store).wait() == 0
            assert digest(store) == expected, f"kill {number}: the store differs"
            print(f"kill {number:2}: {victim}, {before:2} points kept, resumed: the same bytes", flush=True)
    print("all the same")


if __name__ == "__main__":
    main()
