"""What `hwsim show --resolved` prints, and each result stores, is the machine that was simulated."""

from __future__ import annotations

import hwsim
from hwsim.catalog import load_machine
from hwsim.result import machine_of


def test_a_machine_with_its_defaults_written_out_runs_as_the_file_does() -> None:
    """Defaults of banks were no limit as long as nobody wrote them."""
    first = hwsim.run("tpu_v3", "matmul", n=128, math=False)
    again = hwsim.run(machine_of(first), "matmul", n=128, math=False)
    assert machine_of(first) == load_machine("tpu_v3").spec
    assert again.to_dict() == first.to_dict()
