"""The vocabulary of schedules: what is typed, where it leads, and how it comes back."""

from __future__ import annotations

import pytest

from hwsim.api import resolve_machine, resolve_workload
from hwsim.errors import InputError, OverrideError
from hwsim.spec.fields import as_data
from hwsim.spec.variant import with_parameters
from hwsim.spec.workload import WorkloadSpec
from hwsim.target import Target, check_choices, find_target, unread, written_choices


def work(name: str = "matmul", **parameters: object) -> WorkloadSpec:
    return resolve_workload(name, {key.replace("__", "."): value for key, value in parameters.items()})


def target(name: str) -> Target:
    return find_target(resolve_machine(name))


def test_tiles_by_level_and_other_choices_are_kept_under_their_names() -> None:
    chosen = work(tile__shared__m="128", split_k=2, stages=3, dataflow="os")
    assert chosen.choices == {"tile.shared.m": 128, "split_k": 2, "stages": 3, "dataflow": "os"}
    again = type(chosen).model_validate(as_data(chosen), strict=False)
    assert again.choices == chosen.choices


def test_a_workload_without_choices_says_nothing_of_them() -> None:
    assert "choices" not in as_data(work())
    assert not {"buffers", "dataflow"} & set(as_data(work())["mapping"])


def test_auto_takes_a_choice_back() -> None:
    assert with_parameters(work(split_k=2), {"split_k": "auto"}).choices == {}


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ({"tile.shared.m": 0}, "tile.shared.m=0: must be a whole number of at least 1"),
        ({"tile.shared.m": "large"}, "must be a whole number"),
        ({"stages": "many"}, "must be a whole number"),
        ({"stage": 2}, "did you mean 'stages'"),
        ({"tile.shared": 2}, "matmul has no such parameter"),
    ],
)
def test_what_is_no_choice_is_refused_with_what_would_be(typed: dict[str, object], message: str) -> None:
    with pytest.raises(OverrideError, match=message.replace(".", r"\.")):
        with_parameters(work(), typed)


def test_an_order_is_the_operations_own_or_the_machines_as_its_letters_tell() -> None:
    assert work(order="ikj").schedule.order == "ikj"  # type: ignore[attr-defined]
    assert work(order="mnk").choices == {"order": "mnk"}
    conv = work("conv2d", order="mnk")
    assert conv.choices == {"order": "mnk"}
    assert work("conv2d", order="n,co,h,w,ci,kh,kw").choices == {}


MACHINES = {
    "course_cpu": ("tile", "split_k"),
    "a100_40": ("tile.shared.m", "tile"),
    "tpu_v4": ("tile.vmem.m", "v1"),
    "gddr6_aim": ("dataflow", "tile.vmem.m"),
}
"""A machine of each class, with a choice that it reads for a matrix product and one that it does not."""


@pytest.mark.parametrize("machine", MACHINES)
def test_each_class_reads_its_own_choices_and_refuses_others_by_name(machine: str) -> None:
    read, strange = MACHINES[machine]
    value: object = "ws" if read == "dataflow" else 32
    check_choices(target(machine), with_parameters(work(), {read: value}), {read: value, "n": 64, "b_layout": "kj"})
    with pytest.raises(OverrideError) as refused:
        check_choices(target(machine), with_parameters(work(), {strange: 2}), {strange: 2})
    assert str(refused.value).startswith(f"{strange} means nothing on {machine}; for matmul it reads ")
    assert read in str(refused.value) and f"hwsim show matmul --on {machine}" in str(refused.value)


def test_a_stock_workload_carries_its_schedule_for_cores_to_every_machine() -> None:
    check_choices(target("a100_40"), work("matmul_tiled"), {"n": 64})


def test_a_file_of_ones_own_is_taken_at_its_word(tmp_path: object) -> None:
    from pathlib import Path

    assert isinstance(tmp_path, Path)
    file = tmp_path / "mine.yaml"
    file.write_text("format: 1\nname: mine\ndescription: A product.\nop: matmul\nschedule: {tile: 8}\n")
    spec = resolve_workload(file, {})
    assert written_choices(file, spec) == {"tile": 8}
    assert unread(target("a100_40"), spec, written_choices(file, spec)) == {"tile": 8}
    assert written_choices("matmul_tiled", work("matmul_tiled")) == {}


def test_the_value_tells_which_order_means_nothing() -> None:
    with pytest.raises(OverrideError, match="order=ijk means nothing on tpu_v4"):
        check_choices(target("tpu_v4"), work(order="ijk"), {"order": "ijk"})
    with pytest.raises(OverrideError, match="order=mnk means nothing on course_cpu"):
        check_choices(target("course_cpu"), work(order="mnk"), {"order": "mnk"})


def test_tiles_by_level_become_a_cores_own_fields() -> None:
    schedule = target("course_cpu").defaults(work(tile__regs__m=2, tile__l1__k=16)).schedule  # type: ignore[attr-defined]
    assert (schedule.v1, schedule.tile, schedule.b1, schedule.b2, schedule.tile_k) == (2, None, 64, 64, 16)
    conv = target("zen3").defaults(work("conv2d", tile__l2__h=4, tile__regs__co=2)).schedule  # type: ignore[attr-defined]
    assert conv.tile["h"] == 4 and conv.unroll["co"] == 2
    with pytest.raises(InputError, match="has one such tile"):
        target("zen3").defaults(work(tile__l1__k=16, tile__l2__k=32))


def test_tiles_by_scratchpad_become_an_arrays_mapping() -> None:
    mapping = target("scalesim_32").defaults(work(tile__ofmap__m=64, order="knm", buffers=1)).mapping
    assert (mapping.tile_m, mapping.order, mapping.buffers) == (64, "knm", 1)
    fused = target("tpu_v4").defaults(work("attention_fused", tile__vmem__queries=256))
    assert fused.schedule.br == 256  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="keeps no such tile"):
        target("scalesim_32").defaults(work(tile__ofmap__k=64))
    with pytest.raises(InputError, match="pieces of one tile"):
        target("scalesim_32").defaults(work(tile__ofmap__m=64, tile__ifmap__m=32))
