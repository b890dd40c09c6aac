"""Writes the notebooks of this folder with their outputs: `python docs/notebooks/make.py` (needs the extra `dev`).

What a notebook says and runs is below, so that it can be read and changed as text; the outputs are made by running it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent

FIRST_STEPS = """\
# First steps in Python

A run says what a kernel costs on a machine, and why. A result shows itself.
---
import hwsim

result = hwsim.run("course_cpu", "matmul_tiled", n=64, tile=16)
result
===
Everything in it is plain data: `result.time_s`, `result.energy_j`, `result.memory["l1"].misses`, `result.to_dict()`.
A comparison runs every combination.
---
ladder = hwsim.compare("course_cpu", ["matmul_naive", "matmul_simd", "matmul_parallel"], n=64)
ladder
---
ladder.plot()
===
Compute speed-ups yourself: each run is a dictionary.
---
rows = ladder.to_dicts()
{row["workload"]: round(rows[0]["time_s"] / row["time_s"], 1) for row in rows}
===
Where did the time go? `plot` draws it.
---
ladder["course_cpu", "matmul_simd"].plot.split()
"""

TILES = """\
# Sweep, tune, and see why

A sweep simulates every combination of lists and ranges. Here: which tile, in which precision?
---
import hwsim

found = hwsim.sweep("course_cpu", "matmul_tiled", n=64, tile="4..64:x2", precision=["fp32", "bf16"], vector=True, v1=4)
found.best("time").coordinates
---
found.plot("lines")
===
The best tile for time need not be the one for energy. What nothing beats in both at once:
---
found.pareto("time", "energy")
===
A search needs no list: it tries what the machine's class says is worth trying, and compares with the default.
---
tuned = hwsim.tune("course_cpu", "matmul_tiled", n=48, tile="8,16,48", vector="false,true", metric="energy")
tuned
---
tuned.choices, round(tuned.gain, 2)
"""

LESSONS = """\
# Lessons, predictions and grades

A lesson runs a few simulations and checks what it says about them.
---
import hwsim

strips = hwsim.lesson("strips")
strips
---
strips.plot()
===
Its exercises are graded here, without a network, and always the same way.
---
grade = strips.grade({"room": 1024, "registers": 80})
[(mark.name, mark.right, mark.word) for mark in grade.marks]
===
Derivatives of an expression, in reverse mode: the graph, and what each node sends back.
---
from hwsim.program.gradient import build_graph

graph = build_graph("ln(x1) + x1*x2 - sin(x2)")
graph.derivatives({"x1": 2, "x2": 5})
===
Where does an element lie?
---
from hwsim.trace.view import start

view = start("4x4").then("reshape", "2,2,2,2").then("permute", "2,1,0,3")
view.view.strides, view.formula()
"""

MODELS = """\
# What would a model cost?

A model is a workload like any other: Llama 3 8B on an H100, eight prompts of 1,024 tokens and an answer of 128 each.
---
import hwsim

run = hwsim.run("h100", "llama3_8b", math=False, prompt=1024, generate=128, batch=8)
run
===
What only a model has lies beside it: memory, phases, and the numbers that people compare models by.
---
about = run.work["model"]
{name: f"{size / 1e9:.2f} GB" for name, size in about["memory"].items() if size}, about["metrics"]
===
Time by operation, and memory as the texts grow:
---
from hwsim.results.plot.timeline import plot_model

plot_model(run)
===
A step of generating reads every weight once. More texts share what is read, until the units are busy; from there on
narrow weights no longer help.
---
step = {"phase": "decode", "prompt": 1024, "batch": [1, 4, 16, 64, 256], "weights": ["bf16", "w4a16"]}
found = hwsim.sweep("h100", "llama3_8b", math=False, **step)
found.plot("lines", metrics=["tokens_per_s", "joules_per_token"])
===
Narrow numbers cost accuracy: a slice of the model, computed in its formats and in float64.
---
errors = {}
for formats in ({}, {"kv": "fp8"}, {"weights": "fp8"}, {"weights": "w4a16"}):
    result = hwsim.run("h100", "llama3_8b", phase="prefill", prompt=128, **formats)
    errors[" ".join(f"{part}={name}" for part, name in formats.items()) or "bf16"] = f"{result.numeric.rms_rel:.1e}"
errors
===
A machine that is too small says what would fit.
---
small = hwsim.run("h100", "mixtral_8x7b", math=False, phase="decode", prompt=512)
small.work["model"]["fit"]
"""

NOTEBOOKS: Mapping[str, str] = {"first_steps": FIRST_STEPS, "tiles": TILES, "lessons": LESSONS, "models": MODELS}
"""A cell of text ends with ---, one of code with === or with --- where another cell of code follows."""


def make_notebook(text: str) -> nbformat.NotebookNode:
    """Cells of Markdown and code; ids are their numbers, so that equal text is an equal notebook."""
    cells = []
    for part in text.split("\n===\n"):
        words, *codes = part.split("\n---\n")
        cells.append(nbformat.v4.new_markdown_cell(words.strip(), id=f"cell{len(cells)}"))
        for code in codes:
            cells.append(nbformat.v4.new_code_cell(code.strip(), id=f"cell{len(cells)}"))
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return nbformat.v4.new_notebook(cells=cells, metadata=kernel)


def execute(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook with its outputs; raises where a cell fails."""
    done = NotebookClient(notebook, timeout=120, kernel_name="python3", record_timing=False).execute()
    for cell in done.cells:
        cell.metadata = {}
    done.metadata = {"kernelspec": done.metadata["kernelspec"]}
    return done


def main(folder: Path = HERE) -> None:
    for name, text in NOTEBOOKS.items():
        nbformat.write(execute(make_notebook(text)), folder / f"{name}.ipynb")


if __name__ == "__main__":
    main(*(Path(folder) for folder in sys.argv[1:2]))
