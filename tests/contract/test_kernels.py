"""What every kernel promises, for every workload that comes with hwsim."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from hwsim.catalog import load_workload
from hwsim.numerics.datapath import WEIGHT_ONLY
from hwsim.numerics.format import FORMATS
from hwsim.ops.pointwise import POINTWISE
from hwsim.program.loop_kernel import build_kernel
from hwsim.program.operation import OPERATIONS, is_own
from hwsim.spec.base import BlockedFormat, PlainFormat, WeightOnly
from hwsim.spec.variant import parameter_keys, with_parameters
from hwsim.spec.workload import WorkloadSpec, known_operations, workload_model

FOLDER = Path(__file__).parents[2] / "workloads"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
SMALL = {
    "n": 24, "i": 24, "j": 24, "k": 24, "bytes": "4 KiB", "steps": 300, "batch": 3, "rank": 5, "cutoff": 8, "d": 12,
    "tokens": 24, "vocabulary": 40, "width": 13, "co": 6, "ci": 3, "h": 7, "w": 9, "height": 9, "channels": 5,
    "br": 5, "bc": 7,
}  # fmt: skip
ROWS = 11
"""For workloads whose rows are not as many as their columns."""
SMALL_BY_NAME: dict[str, dict[str, object]] = {
    "formula_conv": {"n": 2},
    "group_norm": {"channels": 16},
    "rope": {"pairs": 6},
    "attention_gqa": {"heads": 4},
    "attention_multihead": {"heads": 2, "batch": 2},
    "resnet_block": {"n": 2, "c": 5},
    "resnet_block_plain": {"n": 2, "c": 5},
}


def small(name: str) -> WorkloadSpec:
    """A stock workload at a size at which every access can be looked at."""
    spec = load_workload(FOLDER / f"{name}.yaml").spec
    keys = parameter_keys(spec)
    values: dict[str, object] = {key: value for key, value in SMALL.items() if key in keys}
    for key in ("k", "m"):
        if "n" in keys and key in keys:
            values.pop(key, None)
    if getattr(spec.sizes, "m", None) is not None:
        values["m"] = ROWS
    return with_parameters(spec, values | SMALL_BY_NAME.get(name, {}))


def run(spec, **setting):
    made = build_kernel(spec, **setting)
    return made, [step for block in made.blocks() for step in block.steps()]


@pytest.fixture(params=NAMES)
def spec(request):
    return small(request.param)


SETTINGS = [{}, {"lanes": 4}, {"lanes": 8, "cores": 3}]


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_answer_is_the_reference_up_to_rounding(spec, setting):
    made, _ = run(spec, **setting)
    reference = made.reference()
    assert made.output.shape == reference.shape
    error = np.abs(made.output.astype(np.float64) - reference).max() / np.abs(reference).max()
    assert error <= made.tolerance < (1e-3 if made.fmt.bits >= 32 else 0.1)


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_access_stays_inside_its_tensor(spec, setting):
    made, steps = run(spec, **setting, math=False)
    inside = {
        name: (view.base, view.base + (view.strides[0] * view.shape[0]) * view.element_bytes)
        for name, view in made.tensors.items()
    }
    for nest in (nest for step in steps for nest in step.nests):
        for access in nest.accesses:
            low, high = nest.span(access)
            first, end = inside[access.tensor]
            assert first <= low < high <= end


def test_instructions_count_the_accesses(spec):
    _, steps = run(spec, lanes=4)
    for step in steps:
        assert step.work.instructions.load >= sum(nest.loads for nest in step.nests)
        if spec.schedule.model_dump().get("v1", 1) == 1:
            assert step.work.instructions.load == sum(nest.loads for nest in step.nests)
            assert step.work.instructions.store == sum(nest.stores for nest in step.nests)


def test_useful_work_does_not_depend_on_cores(spec):
    alone, steps = run(spec, lanes=4)
    shared, pieces = run(spec, lanes=4, cores=4)
    assert alone.useful_flops == shared.useful_flops
    assert sum(step.work.flops for step in steps) == sum(step.work.flops for step in pieces)
    assert sum(step.work.flops for step in steps) == alone.useful_flops


def test_without_math_the_steps_are_the_same(spec):
    _, with_math = run(spec, lanes=4, cores=2)
    silent, without = run(spec, lanes=4, cores=2, math=False)
    assert [(step.work, len(step.nests)) for step in with_math] == [(step.work, len(step.nests)) for step in without]
    with pytest.raises(Exception, match="without math"):
        _ = silent.output


def test_blocks_of_a_stage_may_run_in_any_order(spec):
    forward, _ = run(spec, cores=4)
    backward = build_kernel(spec, cores=4)
    for stage in backward.stages():
        for block in reversed(stage.blocks):
            list(block.steps())
    np.testing.assert_array_equal(forward.output, backward.output)


def test_the_same_seed_gives_the_same_answer_and_another_seed_another(spec):
    first, again = run(spec, seed=3)[0].output, run(spec, seed=3)[0].output
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, run(spec, seed=4)[0].output)


def test_a_stock_workload_says_what_it_shows_and_has_the_name_of_its_file():
    for name in NAMES:
        loaded = load_workload(FOLDER / f"{name}.yaml").spec
        assert loaded.name == name
        assert loaded.shows
        assert len(loaded.description) > 3


def test_the_precisions_of_a_file_are_the_formats_that_numerics_knows():
    listed = {name for kind in (PlainFormat, BlockedFormat) for name in get_args(kind)}
    assert listed == set(FORMATS)
    assert set(get_args(WeightOnly)) == set(WEIGHT_ONLY)


def test_every_operation_has_a_stock_workload_or_works_on_elements_of_rows():
    """Element-wise operations and the rounding of rows are steps of chains, and run alone by their names."""
    shipped = {load_workload(FOLDER / f"{name}.yaml").spec.op for name in NAMES}
    known = {op for op in known_operations() if not is_own(workload_model(op).operation)}
    assert shipped <= known
    assert known - shipped <= {*POINTWISE, "quantize", "model"}


def test_a_file_of_an_operation_asks_for_that_operation():
    for op in known_operations():
        model = workload_model(op)
        if model.runner is not None:
            continue
        assert model.operation is not None
        assert (op in OPERATIONS) == hasattr(model.operation, "name")
        assert getattr(model.operation, "name", op) in get_args(model.model_fields["op"].annotation)
