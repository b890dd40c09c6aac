"""Some hundred cases of the fuzzer in every run of the tests; `make fuzz` runs 20,000. And: would it notice?"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hwsim.cli import show
from tests.fuzz.case import Case, Failure, nonsense, run_case
from tests.fuzz.kinds import KINDS, cases
from tests.fuzz.shrink import shrink

CASES = 500
PARTS = 10


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_breaks_it(kind: str, part: int) -> None:
    for name, number in cases(CASES):
        if name != kind or number % PARTS != part:
            continue
        case = KINDS[kind][0](number)
        failure = run_case(case)
        if failure is not None:
            small = shrink(case, failure)
            pytest.fail(f"{kind} {number}: {failure.what}\n{failure.detail}\n\n{small.as_shell()}", pytrace=False)


def test_the_same_number_gives_the_same_case() -> None:
    for make, _ in KINDS.values():
        assert make(7) == make(7)


def test_every_kind_has_its_share() -> None:
    counts = {kind: sum(1 for name, _ in cases(20_000) if name == kind) for kind in KINDS}
    assert all(count >= 2000 for count in counts.values()), counts
    assert sum(counts.values()) == 20_000


def test_an_exception_that_is_not_ours_to_raise_is_noticed_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(show, "_print_machine", broken)
    files = {"m.yaml": (Path(__file__).parents[2] / "machines" / "course_cpu.yaml").read_bytes(), "other": b"x"}
    case = Case("machine", files, (("check", "m.yaml"), ("show", "m.yaml")))
    failure = run_case(case)
    assert failure is not None and "planted" in failure.what
    small = shrink(case, failure, seconds=30)
    assert small.commands == (("show", "m.yaml"),)
    assert list(small.files) == ["m.yaml"]
    assert "hwsim show m.yaml" in small.as_shell()


def test_a_hang_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*_: object) -> None:
        while True:
            pass

    monkeypatch.setattr(show, "_print_machine", endless)
    failure = run_case(Case("machine", {}, (("show", "course_cpu"),)), budget_s=0.3)
    assert failure is not None and "longer than 0.3 s" in failure.what


def test_a_control_character_on_the_terminal_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "_print_machine", lambda *_: sys.stdout.write("\x1b[31m"))
    failure = run_case(Case("machine", {}, (("show", "course_cpu"),)))
    assert failure is not None and "control character" in failure.what


RESULT = {"time_s": 1.0, "energy_j": 1.0, "power_w": 1.0, "cycles": 10, "work": {"flops": 1}}


@pytest.mark.parametrize(
    "change",
    [{"time_s": 0.0}, {"time_s": -1.0}, {"energy_j": 0.0}, {"power_w": -3.0}, {"cycles": 0}, {"work": {"flops": -1}}],
)
def test_nonsense_is_noticed(change: dict[str, object]) -> None:
    assert nonsense(json.dumps(RESULT)) == ""
    assert nonsense(json.dumps({**RESULT, **change})) != ""
    assert "NaN" in nonsense(json.dumps({**RESULT, "time_s": float("nan")}))


def test_failures_of_one_cause_are_told_once() -> None:
    first, second = Failure("KeyError", "a\nb\nlast"), Failure("KeyError", "x\nlast")
    assert first.signature == second.signature
