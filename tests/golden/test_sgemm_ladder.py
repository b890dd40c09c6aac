"""The ladder of matrix products on an RTX A6000, against the times that its author measured.

4096 x 4096 x 4096 in fp32; siboehm/SGEMM_CUDA, README.md. Nothing in the model was fitted to these times.
"""

from __future__ import annotations

from itertools import combinations

import pytest

from hwsim.catalog import load_machine
from hwsim.hardware.gpu.device import Device
from hwsim.hardware.gpu.program import program_cost
from hwsim.kernels.matmul.threads import Problem, make_program
from hwsim.spec.threads import ThreadSchedule

MEASURED_MS = {
    "1 naive": 444.79,
    "2 coalesced": 69.19,
    "3 shared": 46.12,
    "4 register_1d": 16.22,
    "5 register_2d": 8.61,
    "6 vectorised": 7.54,
    "9 vectorised": 6.97,
    "10 warp_tiled": 6.31,
}
APART = 1.25


@pytest.fixture(scope="module")
def simulated() -> dict[str, float]:
    device = Device.of(load_machine("a6000").spec)
    found = {}
    for rung in MEASURED_MS:
        number, kernel = rung.split()
        schedule = ThreadSchedule(kernel=kernel, bk=16 if number == "9" else None)  # type: ignore[arg-type]
        cost = program_cost(device, make_program(Problem(4096, 4096, 4096), schedule)).cost
        found[rung] = cost.total_seconds(device, "stream") * 1e3
    return found


@pytest.mark.parametrize("rung", MEASURED_MS)
def test_each_rung_is_within_a_quarter_of_its_measured_time(simulated: dict[str, float], rung: str) -> None:
    assert simulated[rung] == pytest.approx(MEASURED_MS[rung], rel=0.25)


def test_the_order_is_right_wherever_the_measured_gap_is_over_a_quarter(simulated: dict[str, float]) -> None:
    pairs = [(a, b) for a, b in combinations(MEASURED_MS, 2) if MEASURED_MS[a] > APART * MEASURED_MS[b]]
    assert len(pairs) > 20
    assert [pair for pair in pairs if simulated[pair[0]] <= simulated[pair[1]]] == []
