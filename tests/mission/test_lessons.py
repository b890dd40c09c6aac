"""Lessons: what each prints is what it claims, its exercises can be graded, and a wrong claim or answer is noticed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import hwsim
from hwsim.catalog import find_lesson, lesson_names, load_lesson_file
from hwsim.lessons import Lesson, commands, grade, lesson, number_of, solution
from hwsim.spec.lesson import ExerciseSpec
from tests.cli.command_line import hwsim as command

ASKED_FOR = {
    "tiling", "strides", "simd", "roofline", "fusion", "attention", "convolution", "precision", "energy", "parallel",
    "specialisation", "cuda", "autodiff", "kv_cache", "cs149_attention", "conv_maxpool", "cse234_tiles", "mapping",
    "conv1d", "batch",
}  # fmt: skip
BETTER = {
    "faster": {"tile": 64, "vector": True, "v1": 4},
    "tiles": {"br": 32, "bc": 16},
    "tile": {"tile.shared.m": 64, "tile.shared.n": 64, "tile.shared.k": 32},
}
"""An answer to each exercise that asks for parameters."""


def right(taken: Lesson, exercise: ExerciseSpec) -> Any:
    """The answer that the file gives, or that the runs do."""
    if exercise.beat is not None:
        return BETTER[exercise.name]
    if exercise.best is not None:
        return taken.best(exercise.best)
    if exercise.answer is not None:
        return exercise.answer
    assert exercise.run is not None
    value = number_of(taken.results[exercise.run], exercise.metric)
    return value if exercise.over is None else value / number_of(taken.results[exercise.over], exercise.metric)


def test_the_list_has_all_that_was_asked_for() -> None:
    done = command("lesson")
    assert done.code == 0
    assert set(lesson_names()) >= ASKED_FOR
    for name in lesson_names():
        assert f"hwsim lesson {name}" in done.out


@pytest.mark.parametrize("name", lesson_names())
def test_a_lesson_prints_what_it_claims_and_grades_its_exercises(name: str) -> None:
    """Each claim is printed with its number and holds; right answers get all points, none get none."""
    taken = lesson(name)
    assert taken.spec.name == name
    findings = taken.findings()
    assert [finding.claim.say for finding in findings if not finding.holds] == []
    shown = "\n".join(repr(taken).split("\n"))
    for finding in findings:
        assert f"✓ {finding.claim.say}: {finding.value.text}" in shown
    if taken.spec.exercises:
        answers = {exercise.name: right(taken, exercise) for exercise in taken.spec.exercises}
        graded = grade(taken, answers)
        assert [mark.name for mark in graded.marks if not mark.right] == []
        assert grade(taken, {}).score == 0


def test_the_screen_has_question_runs_claims_and_reason() -> None:
    """The screen of a lesson, not its data: what is printed is the claim with the number of the table."""
    done = command("lesson", "conv1d", "--predict", "a")
    assert done.code == 0
    text = " ".join(done.out.split())
    assert "Predict: With 32 filters one after the other" in text
    assert "✓ but X 32 times: 576" in text
    assert "you said a: not so; it is b) 576" in text
    assert text.index("What the runs show") < text.index("Why") < text.index("Exercises")
    assert "T7" not in text


def test_conv1d_counts_are_those_of_timeloop() -> None:
    """Words from main memory of W, X and Y in the reference output of Timeloop's exercises 01 os and ws, 02 untiled and
    tiled (github.com/Accelergy-Project/timeloop-accelergy-exercises)."""
    published = {
        "output stationary": (3, 18, 16),
        "weight stationary": (3, 18, 16),
        "32 filters": (96, 576, 512),
        "two filters at a time": (96, 288, 512),
    }
    found = lesson("conv1d").results
    counts = {run: tuple(result.tensors[name].misses["l1"] for name in "WXY") for run, result in found.items()}
    assert counts == published


def test_a_wrong_claim_ends_with_an_error(tmp_path: Path) -> None:
    """A checker has to object: the same lesson with a claim that is not so."""
    data = yaml.safe_load(find_lesson("strips").read_text(encoding="utf-8"))
    data["claims"][0]["equals"] = 255
    (tmp_path / "strips.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    done = command("lesson", str(tmp_path / "strips.yaml"))
    assert done.code == 1
    assert "this does not hold: Strips bring A once: n²/16 lines (256)" in done.err


def test_answers_are_graded_from_a_file(tmp_path: Path) -> None:
    """X7: deterministic, offline; exit 1 unless all is right, and the hint but not the answer is told."""
    answers = tmp_path / "a.yaml"
    answers.write_text("lesson: strips\nanswers: {room: 1024, registers: 80, b_lines: 1024}\n")
    done = command("lesson", "strips", "--answer", str(answers), "--json", "-")
    assert done.code == 1
    graded = json.loads(done.out)
    assert (graded["right"], graded["of"]) == (2, 3)
    assert [mark["right"] for mark in graded["marks"]] == [True, False, True]
    assert "v1 v3 + v2 v3 + v1 v2" in graded["marks"][1]["word"]
    assert command("lesson", "strips", "--answer", str(answers), "--json", "-").out == done.out
    answers.write_text("lesson: strips\nanswers: {room: 1024, registers: 44, b_lines: 1024}\n")
    assert command("lesson", "strips", "--answer", str(answers)).code == 0
    assert hwsim.lesson("strips").grade({"registers": 44}).right == 1


def test_questions_make_an_answer_file_that_can_be_read(tmp_path: Path) -> None:
    blank = tmp_path / "a.yaml"
    blank.write_text(command("lesson", "strips", "--questions").out, encoding="utf-8")
    done = command("lesson", "strips", "--answer", str(blank), "--json", "-")
    assert {mark["word"] for mark in json.loads(done.out)["marks"]} == {"not answered"}


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ("lesson: tiling\nanswers: {room: 1}\n", "these are answers for the lesson tiling, not strips"),
        ("answers: {rom: 1}\n", "did you mean 'room'?"),
        ("answers: {room: 1}\nanswer: {}\n", "an answer file has 'lesson: strips' and 'answers:'"),
        ("lesson: strips\n", "an answer file has 'lesson: strips' and 'answers:'"),
        ("answers: 3\n", "an answer file has 'lesson: strips' and 'answers:'"),
    ],
)
def test_a_wrong_answer_file_is_explained(answers: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(answers)
    done = command("lesson", "strips", "--answer", str(tmp_path / "a.yaml"))
    assert done.code == 2
    assert said in done.err


def test_an_answer_may_not_change_what_is_computed() -> None:
    """A smaller product is faster, and no answer."""
    graded = lesson("tiling").grade({"faster": {"n": 16}})
    (mark,) = [mark for mark in graded.marks if mark.name == "faster"]
    assert not mark.right
    assert "n may not be changed" in mark.word
    for said in (32, "tile", {3: 4}):
        (mark,) = [mark for mark in lesson("tiling").grade({"faster": said}).marks if mark.name == "faster"]
        assert (mark.right, mark.word) == (False, "parameters are expected, such as {tile: 32}")


def test_every_lesson_shows_rows_and_ends_with_commands_that_exist() -> None:
    from hwsim.cli.app import COMMANDS

    for name in lesson_names():
        spec = load_lesson_file(find_lesson(name))
        assert spec.rows and spec.next
        assert {line.split()[1] for line in spec.next} <= set(COMMANDS), name


def test_the_commands_of_a_lesson_say_what_its_runs_are() -> None:
    """As a shell reads them: machine, workload, parameters, what is set; none for a run on a file of its own."""
    made = SimpleNamespace(
        runs=[
            SimpleNamespace(machine="zen3", workload="matmul", parameters={"n": 64, "vector": True, "order": "i k"},
                            set={"l1.size": "64 KiB", "l1.ways": 8, "l2.size": "1MiB"}, math=False),
            SimpleNamespace(machine="./mine.yaml", workload="matmul", parameters={}, set={}, math=True),
            SimpleNamespace(machine="zen3", workload="./mine.yaml", parameters={}, set={}, math=True),
            SimpleNamespace(machine="a100_40", workload="add", parameters={}, set={}, math=True),
        ]
    )  # fmt: skip
    read = [shlex.split(line) for line in commands(SimpleNamespace(spec=made))]  # type: ignore[arg-type]
    assert read == [
        ["hwsim", "run", "zen3", "matmul", "n=64", "vector=true", "order=i k", "--set", "l1.size=64 KiB",
         "--set", "l1.ways=8", "--set", "l2.size=1MiB", "--no-math"],
        ["hwsim", "run", "a100_40", "add"],
    ]  # fmt: skip


def test_check_finds_what_is_wrong_with_a_lesson(tmp_path: Path) -> None:
    assert "ok, a lesson" in command("check", str(find_lesson("strips"))).out
    data = yaml.safe_load(find_lesson("strips").read_text(encoding="utf-8"))
    data["claims"][0]["run"] = "stripes"
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    done = command("check", str(tmp_path / "wrong.yaml"))
    assert done.code != 0
    assert "there is no run 'stripes'; did you mean 'strips'?" in done.err


@pytest.mark.parametrize(
    ("place", "change", "said"),
    [
        ("claims", {"at_least": None, "at_most": None, "equals": None}, "a claim has at_least, at_most or equals"),
        ("exercises", {"answer": "z", "choices": {"a": "one", "b": "two"}}, "answer: 'z' is not one of a, b"),
        ("exercises", {"answer": "a", "best": "time_s"}, "an exercise has one of answer, best, beat"),
    ],
)
def test_a_lesson_that_cannot_be_graded_is_refused(
    place: str, change: dict[str, object], said: str, tmp_path: Path
) -> None:
    data = yaml.safe_load(find_lesson("strips").read_text(encoding="utf-8"))
    if place == "exercises":
        data["exercises"] = [{"name": "q", "ask": "Which?", **change}]
    else:
        data["claims"][0] |= change
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    done = command("check", str(tmp_path / "wrong.yaml"))
    assert done.code != 0
    assert said in " ".join(done.err.split())
    if change.get("choices"):
        data["exercises"][0]["answer"] = "a"
        (tmp_path / "right.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
        assert command("check", str(tmp_path / "right.yaml")).code == 0


def test_the_solution_of_a_question_for_the_best_names_the_run_with_the_least() -> None:
    taken = lesson("tiling")
    exercise = next(each for each in taken.spec.exercises if each.best is not None)
    assert exercise.best is not None
    least = min(number_of(result, exercise.best) for result in taken.results.values())
    named = solution(taken, exercise)
    assert number_of(taken.results[named], exercise.best) == least


def test_the_sweep_after_the_lesson_on_batches_shows_where_the_weights_stop_to_bind(tmp_path: Path) -> None:
    """989 Tflop/s over 3,350 GB/s are 295 texts, for two operations and two bytes of each weight."""
    spec = load_lesson_file(find_lesson("batch"))
    words = shlex.split(next(line for line in spec.next if " sweep " in line))[1:]
    few = ["batch=64,512" if word.startswith("batch=") else word for word in words]
    done = command(*few, "-o", str(tmp_path / "s.db"))
    assert done.code == 0, done.err
    rows = {line.split()[0]: line for line in done.out.splitlines() if line.startswith(("64 ", "512 "))}
    assert rows["64"].rstrip().endswith("bandwidth of dram")
    assert rows["512"].rstrip().endswith("arithmetic")
