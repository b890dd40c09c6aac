"""Workers that die, for the tests: they leave a mark in a folder, so that they die as often as a test wants."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from hwsim.errors import CapacityError
from hwsim.sweep.point import Job
from hwsim.sweep.worker import run_job

FOLDER = "HWSIM_TEST_MARKS"


def _is_chosen(job: Job) -> bool:
    return '"n":17,' in job.workload


def die_once(job: Job) -> str:
    mark = Path(os.environ[FOLDER]) / "died"
    if _is_chosen(job) and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return run_job(job)


def die_always(job: Job) -> str:
    if _is_chosen(job):
        os.kill(os.getpid(), signal.SIGKILL)
    return run_job(job)


def refuse(job: Job) -> str:
    if _is_chosen(job):
        raise CapacityError("the tile does not fit")
    return run_job(job)


def blunder(job: Job) -> str:
    if _is_chosen(job):
        raise ZeroDivisionError("a mistake of ours")
    return run_job(job)
