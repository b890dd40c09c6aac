"""tpu_v6e against measured layers that were not fitted on (casys-kaist/LLMServingSim, TPU-v6e-1)."""

from __future__ import annotations

from hwsim.validation.report import Report
from hwsim.validation.tpu_v6e import validate


def test_the_layers_of_a_language_model_take_about_the_measured_time() -> None:
    *_, report = validate(count=1)
    assert isinstance(report, Report)
    assert len(report.results) == 8
    assert [bar.met for bar in report.bars] == [True, True]
