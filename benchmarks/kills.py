"""Random kills: whatever is killed while hwsim sweeps, reports or exports, the same command then leaves the same bytes.

python benchmarks/kills.py [--kills N] [--seed N] [--of parent,worker,dask-worker,scheduler,dask-parent,report,export]

Each time a fresh command starts in a process of its own, and at a random moment one of its processes gets SIGKILL. Then
the same command runs again, to the end. Every point of a sweep's store must equal, byte for byte, that of a sweep that
nobody disturbed; a page or an export must be the older file or the whole new one after the kill, and the new one after
the second command; and no worker may outlive its parent. Needs Linux (/proc); the kills of Dask need hwsim[dask].
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import hwsim
from hwsim.errors import HwsimError
from hwsim.sweep.store import ResultStore

SWEEP = ("sweep", "course_cpu", "matmul_tiled", "n=16..100:4", "tile=4")
PROCESSES = ("--executor", "processes", "--jobs", "2")
ROOT = Path(hwsim.__file__).resolve().parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "DASK_DISTRIBUTED__WORKER__DAEMON": "False"}
OLD = b"an older file"
_PATIENCE_S = 300

Digest = dict[str, tuple[str, str | None, str | None]]


def start(*words: str, module: str = "hwsim") -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", module, *words]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


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


def digest(store: Path) -> Digest:
    with ResultStore(store, write=False) as opened:
        return opened.digest()


def kept(store: Path) -> int:
    """How many points a store has by now."""
    try:
        with ResultStore(store, write=False, check=False) as opened:
            return opened.count()
    except HwsimError:
        return 0


@dataclass
class Trial:
    """One disturbed command, in a folder of its own."""

    folder: Path
    whole: Path
    """A store that nobody disturbed."""
    expected: Digest
    dice: random.Random

    @property
    def store(self) -> Path:
        return self.folder / "s.db"

    def wait_for(self, process: subprocess.Popen[bytes]) -> bool:
        """Sleep until a random moment of the sweep; whether it is still at work then."""
        moment = self.dice.randrange(len(self.expected) - 3)
        deadline = time.monotonic() + _PATIENCE_S
        while kept(self.store) < moment and process.poll() is None:
            assert time.monotonic() < deadline, "nothing moves"
            time.sleep(0.01)
        time.sleep(self.dice.uniform(0.0, 0.05) if moment else self.dice.uniform(0.0, 3.0))
        return process.poll() is None

    def resume(self) -> str:
        before = kept(self.store)
        again = start(*SWEEP, *PROCESSES, "--out", str(self.store))
        _, words = again.communicate()
        assert again.returncode == 0, words.decode()
        assert digest(self.store) == self.expected, "the store differs"
        return f"{before:2} points kept, resumed: the same bytes"


def kill_parent(trial: Trial) -> str:
    process = start(*SWEEP, *PROCESSES, "--out", str(trial.store))
    if not trial.wait_for(process):
        return ""
    own = workers(process.pid)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 20
    while alive(own) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive(own), "a worker outlived its parent"
    return trial.resume()


def kill_worker(trial: Trial) -> str:
    process = start(*SWEEP, *PROCESSES, "--out", str(trial.store))
    if not trial.wait_for(process) or not (own := workers(process.pid)):
        process.communicate()
        return ""
    os.kill(trial.dice.choice(own), signal.SIGKILL)
    _, words = process.communicate()
    assert process.returncode == 0, f"a sweep that lost a worker ended with {process.returncode}: {words.decode()}"
    return trial.resume()


class Cluster:
    """A Dask scheduler with two workers."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        self.address = f"tcp://127.0.0.1:{port}"
        self.scheduler = start(
            "--host", "127.0.0.1", "--port", port, "--no-dashboard", module="distributed.cli.dask_scheduler"
        )
        for _ in range(240):
            try:
                socket.create_connection(("127.0.0.1", int(port)), 1).close()
                break
            except OSError:
                time.sleep(0.25)
        own = (self.address, "--nthreads", "1", "--no-nanny", "--no-dashboard")
        self.workers = [start(*own, module="distributed.cli.dask_worker") for _ in range(2)]

    def close(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.communicate()


def kill_on_dask(trial: Trial, victim: str) -> str:
    cluster = Cluster()
    try:
        process = start(
            *SWEEP, "--executor", "dask", "--scheduler", cluster.address, "--out", str(trial.store)
        )  # fmt: skip
        if not trial.wait_for(process):
            process.communicate()
            return ""
        target = {"dask-worker": cluster.workers[0], "scheduler": cluster.scheduler, "dask-parent": process}[victim]
        target.kill()
        _, words = process.communicate(timeout=120)
        if victim == "dask-worker":
            assert process.returncode == 0, words.decode()
        if victim == "scheduler":
            assert process.returncode in (0, 2), words.decode()
            assert b"Traceback" not in words, words.decode()
    finally:
        cluster.close()
    return trial.resume()


def kill_writer(trial: Trial, *words: str) -> str:
    """A command that writes a file; `words` name everything but the file."""
    reference, target = trial.folder / "reference", trial.folder / "target"
    started = time.monotonic()
    assert start(*words, "-o", str(reference)).wait() == 0
    length = time.monotonic() - started
    target.write_bytes(OLD)
    process = start(*words, "-o", str(target))
    time.sleep(trial.dice.uniform(0.3 * length, 1.1 * length))
    if process.poll() is not None:
        return ""
    process.kill()
    process.communicate()
    new = reference.read_bytes()
    found = target.read_bytes()
    assert found in (OLD, new), "half a file"
    assert start(*words, "-o", str(target)).wait() == 0
    assert target.read_bytes() == new, "the second time it is another file"
    assert digest(trial.whole) == trial.expected, "the store was changed"
    return f"the {'older' if found == OLD else 'new'} file was whole, and then the new one"


KILLS: dict[str, Callable[[Trial], str]] = {
    "parent": kill_parent,
    "worker": kill_worker,
    "dask-worker": lambda trial: kill_on_dask(trial, "dask-worker"),
    "scheduler": lambda trial: kill_on_dask(trial, "scheduler"),
    "dask-parent": lambda trial: kill_on_dask(trial, "dask-parent"),
    "report": lambda trial: kill_writer(trial, "report", str(trial.whole)),
    "export": lambda trial: kill_writer(trial, "export", str(trial.whole), "--format", "json", "--full"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="how many (20)")
    parser.add_argument("--seed", type=int, default=8, help="of the random moments (8)")
    parser.add_argument("--of", default=",".join(KILLS), help="who is killed, in turn (all of them)")
    given = parser.parse_args()
    names = [name for name in given.of.split(",") if name in KILLS]
    if importlib.util.find_spec("distributed") is None:
        names = [name for name in names if name not in ("dask-worker", "scheduler", "dask-parent")]
    if not names:
        parser.error(f"--of takes {', '.join(KILLS)}")
    dice, tally = random.Random(given.seed), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole.db"
        assert start(*SWEEP, *PROCESSES, "--out", str(whole)).wait() == 0
        expected = digest(whole)
        print(f"undisturbed: {len(expected)} points", flush=True)
        number = tries = 0
        while number < given.kills:
            name = names[number % len(names)]
            tries += 1
            place = Path(folder) / str(tries)
            place.mkdir()
            outcome = KILLS[name](Trial(place, whole, expected, dice))
            if not outcome:
                continue  # it was done before the blow fell
            number += 1
            tally[name] += 1
            print(f"kill {number:3}: {name}: {outcome}", flush=True)
    print("all the same: " + ", ".join(f"{count} {name}" for name, count in tally.items()))


if __name__ == "__main__":
    main()
