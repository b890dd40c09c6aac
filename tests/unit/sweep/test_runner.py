"""A sweep goes on, whatever happens to one of its points or workers."""

from __future__ import annotations

from pathlib import Path

import pytest

import hwsim
from hwsim.errors import InputError
from hwsim.numerics.format import Array
from hwsim.sweep.grid import SweepRequest, make_request
from hwsim.sweep.result_set import ResultSet, load_results
from hwsim.sweep.runner import Finished, run_request
from hwsim.sweep.store import ResultStore
from tests.unit.sweep import workers

SIZES = (16, 17, 20, 24, 28, 32)


def request() -> SweepRequest:
    return make_request("course_cpu", "matmul_tiled", {"n": list(SIZES), "tile": 4}, {})


def run(path: Path, executor: str = "inprocess") -> tuple[ResultSet, list[Finished]]:
    with ResultStore(path) as store:
        news = list(run_request(request(), store, executor, jobs=2))
        return load_results(store, store.begin(request()), request()), news


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str | None, str | None]]:
    """What an uninterrupted sweep leaves."""
    path = tmp_path_factory.mktemp("whole") / "sweep.db"
    run(path)
    with ResultStore(path, write=False) as store:
        return store.digest()


def digest(path: Path) -> dict[str, tuple[str, str | None, str | None]]:
    with ResultStore(path, write=False) as store:
        return store.digest()


def test_processes_find_the_same_bytes_as_one_process(whole: dict[str, object], tmp_path: Path) -> None:
    results, news = run(tmp_path / "s.db", "processes")
    assert digest(tmp_path / "s.db") == whole
    assert [row["n"] for row in results] == list(SIZES)
    assert len(news) == len(SIZES)


def test_a_result_of_a_sweep_is_the_result_of_a_run(tmp_path: Path) -> None:
    results, _ = run(tmp_path / "s.db")
    alone = hwsim.run("course_cpu", "matmul_tiled", n=20, tile=4)
    assert results.result(2).to_json() == alone.to_json()


@pytest.mark.parametrize(
    ("machine", "workload"), [("tpu_v1", "matmul"), ("a100_40", "matmul"), ("cortex_a78", "attention_fused")]
)
def test_on_every_kind_of_machine_a_point_is_the_run_itself(machine: str, workload: str) -> None:
    """What a worker gets says which fields were written, so that nothing is taken for a wish that is a default."""
    assert hwsim.sweep(machine, workload, n=64).result(0).to_json() == hwsim.run(machine, workload, n=64).to_json()


def test_the_second_time_everything_is_reused(tmp_path: Path) -> None:
    run(tmp_path / "s.db")
    _, news = run(tmp_path / "s.db")
    assert [each.reused for each in news] == [True] * len(SIZES)


def test_another_sweep_reuses_equal_points(tmp_path: Path) -> None:
    run(tmp_path / "s.db")
    other = make_request("course_cpu", "matmul_tiled", {"tile": 4, "n": [12, 16, 17]}, {})
    with ResultStore(tmp_path / "s.db") as store:
        reused = {each.point.coordinates["n"]: each.reused for each in run_request(other, store, "inprocess")}
        assert reused == {12: False, 16: True, 17: True}
        assert store.count() == len(SIZES) + 1


def test_a_killed_worker_is_replaced_and_its_point_computed(
    whole: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(workers.FOLDER, str(tmp_path))
    monkeypatch.setattr("hwsim.sweep.runner.run_inputs", workers.die_once)
    _, news = run(tmp_path / "s.db", "processes")
    assert (tmp_path / "died").exists()
    assert [each.status for each in news] == ["done"] * len(SIZES)
    assert digest(tmp_path / "s.db") == whole


def test_a_point_that_kills_every_worker_is_given_up_and_tried_again_next_time(
    whole: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hwsim.sweep.runner.run_inputs", workers.die_always)
    results, _ = run(tmp_path / "s.db", "processes")
    assert [(row["n"], row.status) for row in results.failed] == [(17, "lost")]
    assert "died 3 times" in str(results.failed[0].error)
    monkeypatch.undo()
    run(tmp_path / "s.db")
    assert digest(tmp_path / "s.db") == whole


@pytest.mark.parametrize(
    ("function", "words"), [(workers.refuse, "does not fit"), (workers.blunder, "internal error: ZeroDivisionError")]
)
def test_a_point_that_fails_is_kept_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: object, words: str
) -> None:
    monkeypatch.setattr("hwsim.sweep.runner.run_inputs", function)
    results, _ = run(tmp_path / "s.db")
    assert len(results.done) == len(SIZES) - 1
    assert words in str(results.failed[0].error)
    with pytest.raises(InputError, match=words):
        results.result(results.failed[0])


def test_points_that_cannot_be_resolved_are_kept_with_their_reason(tmp_path: Path) -> None:
    results = hwsim.sweep("course_cpu", "matmul_tiled", n=[32, 64], ld=[48, 64], tile=8, out=tmp_path / "s.db")
    assert [row.status for row in results] == ["done", "done", "failed", "done"]


def test_an_interrupted_sweep_goes_on_where_it_was(whole: dict[str, object], tmp_path: Path) -> None:
    with ResultStore(tmp_path / "s.db") as store:
        watched = run_request(request(), store, "inprocess")
        for _ in range(3):
            next(watched)
        watched.close()
        assert store.count() == 3
    _, news = run(tmp_path / "s.db")
    assert sum(each.reused for each in news) == 3
    assert digest(tmp_path / "s.db") == whole


def test_an_operation_of_ones_own_is_swept_in_this_process_and_not_kept(tmp_path: Path) -> None:
    @hwsim.operation("A[n] -> C[n]", "C[i] = A[i] + A[i]", n=8)
    def twice(A: Array) -> Array:
        return 2 * A

    file = tmp_path / "twice.yaml"
    file.write_text("format: 1\nname: twice\ndescription: d\nop: twice\nsizes: {n: 8}\n")
    assert [row["flops"] for row in hwsim.sweep("course_cpu", file, n=[8, 16])] == [8, 16]
    with pytest.raises(InputError, match="exists only in this process"):
        hwsim.sweep("course_cpu", file, n=[8, 16], executor="processes")
    with pytest.raises(InputError, match="not kept"):
        hwsim.sweep("course_cpu", file, n=[8, 16], out=tmp_path / "s.db")


def test_an_operation_of_a_python_file_is_swept(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import hwsim\n\n\n"
        '@hwsim.operation("A[n] -> C[n]", "C[i] = A[i] * A[i] + 1", n=8)\n'
        "def squared_plus(A):\n    return A**2 + 1\n"
    )
    assert [row["flops"] for row in hwsim.sweep("course_cpu", f"{file}:squared_plus", n=[8, 16])] == [16, 32]


def test_executors_that_do_not_exist_are_refused() -> None:
    with pytest.raises(InputError, match=r"not one of .*; did you mean 'processes'"):
        hwsim.sweep(n=[16], executor="proceses")
    with pytest.raises(InputError, match="at least 1"):
        hwsim.sweep(n=[16], jobs=0)
    with pytest.raises(InputError, match="--scheduler is for"):
        hwsim.sweep(n=[16], scheduler="tcp://127.0.0.1:1")
