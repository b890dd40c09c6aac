"""Runs cases in a few processes with a limit of memory; one that dies or hangs for good takes its case with it."""

from __future__ import annotations

import faulthandler
import resource
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from tests.fuzz.case import BUDGET_S, Failure, run_case
from tests.fuzz.kinds import KINDS

MEMORY_BYTES = 6 << 30
HARD_S = 6 * BUDGET_S

Failed = tuple[str, int, Failure]


def fuzz(todo: list[tuple[str, int]], jobs: int, tell: Callable[[str], None]) -> list[Failed]:
    """Hands cases to processes; one that dies or hangs for good is a failure of the case that it had."""
    context = get_context("spawn")
    waiting = todo[::-1]
    failures: list[Failed] = []
    workers: dict[Connection, Any] = {}
    having: dict[Connection, tuple[str, int]] = {}

    def keep(failed: Failed) -> None:
        failures.append(failed)
        tell(f"{failed[0]} {failed[1]}: {failed[2].what}")

    def start() -> None:
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        workers[ours] = process
        give(ours)

    def give(worker: Connection) -> None:
        if waiting:
            having[worker] = waiting.pop()
            worker.send(having[worker])
        else:
            worker.send(None)
            workers.pop(worker).join()

    for _ in range(min(jobs, len(todo))):
        start()
    while workers:
        for ready in wait(list(workers)):
            assert isinstance(ready, Connection)
            kind, number = having[ready]
            try:
                failure = ready.recv()
            except (EOFError, ConnectionError):
                workers.pop(ready).join()
                keep((kind, number, Failure("the process died or hung for good")))
                if waiting:
                    start()
                continue
            if failure is not None:
                keep((kind, number, failure))
            give(ready)
    return failures


def _work(boss: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    while (given := boss.recv()) is not None:
        kind, number = given
        case = KINDS[kind][0](number)
        faulthandler.dump_traceback_later(HARD_S, exit=True)
        failure = run_case(case)
        faulthandler.cancel_dump_traceback_later()
        boss.send(failure)
