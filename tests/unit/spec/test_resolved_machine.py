"""What `hwsim show --resolved` prints, and each result stores, is the machine that was simulated."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

import hwsim
from hwsim.catalog import load_machine
from hwsim.result import machine_of
from hwsim.spec.fields import as_data
from hwsim.spec.machine import MachineSpec


def test_a_machine_with_its_defaults_written_out_runs_as_the_file_does() -> None:
    """Defaults of banks were no limit as long as nobody wrote them."""
    first = hwsim.run("tpu_v3", "matmul", n=128, math=False)
    again = hwsim.run(machine_of(first), "matmul", n=128, math=False)
    assert machine_of(first) == load_machine("tpu_v3").spec
    assert again.to_dict() == first.to_dict()


def test_a_memory_that_says_nothing_of_channels_has_one_and_that_of_a_machine_has_at_most_sixteen_levels() -> None:
    data = as_data(load_machine("course_cpu").spec)
    data["memory"][-1].pop("channels")
    caches = [{**data["memory"][2], "name": f"c{number}", "size": f"{2**number} MiB"} for number in range(20)]

    def levels(count: int) -> MachineSpec:
        room = count - len(data["memory"])
        memory = [*data["memory"][:-1], *caches[:room], data["memory"][-1]]
        return MachineSpec.model_validate({**data, "memory": memory}, strict=False, context={"strict": False})

    assert len(levels(16).memory) == 16
    assert levels(16).memory[-1].channels == 1  # type: ignore[union-attr]
    with pytest.raises(ValidationError, match="at most 16 items"):
        levels(17)
