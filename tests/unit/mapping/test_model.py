"""Where tensors lie while an array works: what stays on the chip between loops, as far as there is room."""

from __future__ import annotations

from hwsim.api import prepare, resolve_workload
from hwsim.catalog import load_machine
from hwsim.spec.workload import WorkloadSpec
from hwsim.targets.systolic.lower import program_of
from hwsim.targets.systolic.model import Allocation, Chip, build_chip, find_places
from tests.unit.kernels.chains import chain, step

KIB = 1024
LAYER = [step("h", "matmul", "x", "w1"), step("a", "relu", "h"), step("y", "matmul", "a", "w2")]
SHAPES = {"x": ["n", "d"], "w1": ["d", "h"], "w2": ["h", "d"]}


def places(name: str, work: WorkloadSpec, *overrides: str, keep: bool = True) -> tuple[Chip, Allocation]:
    machine = load_machine(name, overrides).spec
    kernel = prepare(machine, work, math=False)
    chip = build_chip(machine, str(work.precision))
    return chip, find_places(chip, kernel, program_of(kernel), keep)


def layer(room: int, keep: bool = True) -> Allocation:
    """x w1, relu, times w2 in bf16: h and a of 16 KiB each lie between, and both are needed by the second loop."""
    work = chain(LAYER, SHAPES, precision="bf16", sizes={"n": 64, "d": 32, "h": 128})
    return places("tpu_v3", work, f"vmem.size={room} B", keep=keep)[1]


def test_tensors_live_from_the_first_loop_that_needs_them_to_the_last() -> None:
    """What is given is there from the beginning, what is asked for until the end."""
    found = layer(64 * KIB)
    assert found.lives == {"x": (0, 0), "w1": (0, 0), "h": (0, 1), "a": (1, 2), "w2": (0, 2), "y": (2, 2)}
    assert found.written == {"h": [0], "a": [1], "y": [2]}
    assert found.nbytes == {"x": 4 * KIB, "w1": 8 * KIB, "h": 16 * KIB, "a": 16 * KIB, "w2": 8 * KIB, "y": 4 * KIB}
    assert [found.producer("a", number) for number in (0, 1, 2)] == [-1, -1, 1]
    assert found.producers(["x", "h", "a"], 2) == (0, 1)


def test_what_lies_between_stays_where_half_of_the_scratchpad_has_room_for_all_that_lives_together() -> None:
    """The other half is for tiles, of weights too."""
    for room, stays in ((64 * KIB, "ah"), (64 * KIB - 2, "h"), (32 * KIB, "h"), (32 * KIB - 2, "")):
        found = layer(room)
        assert sorted(name for name, level in found.level.items() if level == "vmem") == list(stays)
        assert found.taken("vmem", 0) == 16 * KIB * ("h" in stays)
        assert found.taken("vmem", 1) == 16 * KIB * len(stays)
        assert found.taken("vmem", 2) == 16 * KIB * ("a" in stays)
    assert set(layer(64 * KIB, keep=False).level.values()) == {"dram"}


def test_activations_are_at_home_and_weights_in_memory() -> None:
    """On the first TPU, whose buffer holds no weights: tensors may fill seven eighths of it."""
    data = {"format": 1, "name": "made", "description": "", "op": "formula", "formula": "C[i,j] += A[i,k] * B[k,j]"}
    sizes = {"i": 32, "k": 64, "j": 96}
    work = WorkloadSpec.model_validate({**data, "sizes": sizes, "precision": "int8", "scale": "none"})
    chip, found = places("tpu_v1", work)
    assert found.level == {"A": chip.home, "B": chip.dram.name, "C": chip.home} and chip.home != chip.dram.name
    assert not found.away
    both = found.nbytes["A"] + found.nbytes["C"]
    assert (found.nbytes["A"], found.nbytes["B"]) == (32 * 64, 64 * 96)
    least = -(-both * 8 // 7)
    for room, away in ((least, 0), (least - 2, 1), (8, 2)):
        _, tight = places("tpu_v1", work, f"{chip.home}.size={room} B")
        assert len(tight.away) == away
        assert all(tight.level[name] == chip.dram.name for name in tight.away)
        assert tight.taken(chip.home, 0) <= room * 7 / 8


def test_a_kernel_without_a_product_comes_from_memory_and_goes_there() -> None:
    chip, found = places("tpu_v1", resolve_workload("add", {"n": 64, "precision": "int8", "scale": "none"}))
    assert set(found.level.values()) == {chip.dram.name}
