"""The examples of docs/how-to/add-a-kernel.md do what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from hwsim.catalog import load_workload
from hwsim.kernels.build import build_kernel
from hwsim.spec.parameters import with_parameters

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "add-a-kernel.md"
CODE = re.findall(r"```(yaml|python)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_examples_run(tmp_path, capsys):
    scope: dict[str, object] = {}
    for language, text in CODE:
        if language == "python":
            exec(compile(text, str(PAGE), "exec"), scope)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["load", "store"] * 4
    own, formula = None, None
    for number, text in enumerate(text for language, text in CODE if language == "yaml"):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text, encoding="utf-8")
        spec = load_workload(path).spec
        made = build_kernel(spec)
        for block in made.blocks():
            list(block.steps())
        np.testing.assert_allclose(made.output, made.reference(), rtol=1e-4, atol=1e-5)
        own, formula = (spec, formula) if spec.op == "python" else (own, spec)
    assert own is not None
    assert formula is not None
    changed = with_parameters(formula, {"x": "128", "tile.x": "32", "order": "y,dy,x,dx"})
    assert changed.schedule.tile["x"] == 32


def test_the_python_example_is_short():
    first = next(text for language, text in CODE if language == "python")
    body = first.split("@register_kernel")[1].strip().splitlines()
    assert len([line for line in body if line.strip()]) <= 12
