"""Memory and time are estimated before they are spent."""

from __future__ import annotations

import tracemalloc
from math import prod
from typing import Any

import numpy as np
import pytest

from hwsim import api as host
from hwsim.api import prepare, resolve_machine, resolve_workload, run, run_all
from hwsim.cli.app import main
from hwsim.errors import HostMemoryError
from hwsim.numerics.quantize import measure
from hwsim.ops import attention
from hwsim.program import tensors

MACHINE = "course_cpu"


def test_the_estimate_grows_with_the_tensors_and_not_with_their_format() -> None:
    machine = resolve_machine("a100_40")

    def needed(n: int, precision: str) -> int:
        work = resolve_workload("matmul", {"n": n, "precision": precision})
        return host.needed_bytes(prepare(machine, work, math=False))

    assert needed(2048, "fp32") == 4 * needed(1024, "fp32")
    assert needed(1024, "fp16") == pytest.approx(needed(1024, "fp32"), rel=0.4)


def test_a_run_that_does_not_fit_is_refused_and_no_math_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "free_bytes", lambda: 500_000_000)
    with pytest.raises(HostMemoryError, match=r"need about .* of memory .* --no-math"):
        run(MACHINE, "copy", n=10_000_000)
    assert run(MACHINE, "copy", n=10_000, math=True).verified


def test_what_fits_just_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    work = resolve_workload("copy", {"n": 10_000_000})
    kernel = prepare(resolve_machine(MACHINE), work, math=False)
    room = host.needed_bytes(kernel) + host.FIXED_BYTES
    monkeypatch.setattr(host, "free_bytes", lambda: room)
    host.check_memory(kernel, "copy")
    monkeypatch.setattr(host, "free_bytes", lambda: room - 1)
    with pytest.raises(HostMemoryError):
        host.check_memory(kernel, "copy")


def test_free_memory_is_less_than_all_and_more_than_nothing() -> None:
    free = host.free_bytes()
    assert free is not None and 10_000_000 < free < 1 << 50


def test_a_long_run_says_so_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    run_all(MACHINE, "matmul_tiled", parameters={"n": 16, "tile": 4}, warn=told.append)
    assert told == []
    monkeypatch.setattr(host, "OPERATIONS_PER_S", 100.0)
    run_all(MACHINE, "matmul_tiled", parameters={"n": 16, "tile": 4}, warn=told.append)
    assert told == [2 * 16**3 / 100.0]


@pytest.mark.parametrize(
    "words",
    [
        "run a100_40 matmul n=200000",
        "run course_cpu softmax n=200000 m=200000",
        "run a100_40 attention_naive n=8192 heads=16",
        "compare a100_40,h100 matmul n=30000",
        "ladder attention a100_40 n=8192 heads=16 precision=fp64",
    ],
)
def test_no_command_makes_tensors_that_do_not_fit(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[int] = []
    make_input = tensors.make_input

    def spy(seed: int, number: int, name: str, shape: tuple[int, ...], *rest: Any, **more: Any) -> Any:
        made.append(prod(shape))
        return make_input(seed, number, name, shape, *rest, **more)

    monkeypatch.setattr(tensors, "make_input", spy)
    monkeypatch.setattr(host, "free_bytes", lambda: 500_000_000)
    assert main(words.split()) == 2
    shown = capsys.readouterr()
    assert "--no-math" in " ".join((shown.out + shown.err).split())
    assert sum(made) <= host.SMALL_ELEMENTS


def test_attention_is_checked_in_pieces_that_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    q, do = (random.standard_normal((2, 2, 3, 64, 4)) for _ in range(2))
    k, v = (random.standard_normal((2, 2, 96, 4)) for _ in range(2))
    for offset in (96, 32, 5):
        whole = attention.attention.reference(q, k, v, 0.5, offset)
        backward = attention.attention_backward.reference(q, k, v, do, 0.5, offset)
        with monkeypatch.context() as patch:
            patch.setattr(attention, "MOST_SCORES", 1000)
            pieces = attention.attention.reference(q, k, v, 0.5, offset)
            assert np.allclose(pieces, whole, rtol=1e-13, atol=1e-13)
            for name, found in attention.attention_backward.reference(q, k, v, do, 0.5, offset).items():
                assert np.allclose(found, backward[name], rtol=1e-12, atol=1e-12)


def peak_bytes(call: Any) -> int:
    """The most memory that NumPy takes during a call."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_reference_of_attention_never_holds_all_scores() -> None:
    q, k = np.ones((1, 16, 1, 1024, 8)), np.ones((1, 16, 1024, 8))
    all_scores = 16 * 1024 * 1024 * 8
    assert peak_bytes(lambda: attention.attention.reference(q, k, k, 1.0, 1024)) < all_scores


def test_an_error_is_measured_with_room_for_one_difference() -> None:
    answer, reference = np.ones(1 << 20, np.float32), np.ones(1 << 20)
    assert peak_bytes(lambda: measure(answer, reference)) < 1.5 * reference.nbytes
