"""Workers that die, for the tests: they leave a mark in a folder, so that they die as often as a test wants."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from hwsim.errors import CapacityError
from hwsim.sweep.point import RunInputs, run_inputs

FOLDER = "HWSIM_TEST_MARKS"


def _is_chosen(inputs: RunInputs) -> bool:
    return '"n":17' in inputs.workload


def die_once(inputs: RunInputs) -> str:
    mark = Path(os.environ[FOLDER]) / "died"
    if _is_chosen(inputs) and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return run_inputs(inputs)


def die_always(inputs: RunInputs) -> str:
    if _is_chosen(inputs):
        os.kill(os.getpid(), signal.SIGKILL)
    return run_inputs(inputs)


def refuse(inputs: RunInputs) -> str:
    if _is_chosen(inputs):
        raise CapacityError("the tile does not fit")
    return run_inputs(inputs)


def blunder(inputs: RunInputs) -> str:
    if _is_chosen(inputs):
        raise ZeroDivisionError("a mistake of ours")
    return run_inputs(inputs)
