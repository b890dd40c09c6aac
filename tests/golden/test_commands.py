"""What commands beside `run` and `explain` print, compute and draw has not changed unnoticed.

Kept for each are its screen, a digest of its JSON, and what its plot shows (`figure.py`). Like the rows of runs these
are our own numbers: they show that something moved, not that it is right. Nothing here computes tensors, so nothing
depends on the processor. `make golden-update` writes them again.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import rows
from figure import describe
from matplotlib.figure import Figure
from observe import in_its_own_place, program
from test_runs import difference

from hwsim.errors import HwsimError
from hwsim.files import write_text

KEPT = Path(__file__).parent / "commands"
GROUPS = {
    "models": (
        "model llama3_8b h100 prompt=1024 generate=64 batch=8",
        "model bert_large a100_80 phase=train batch=8",
        "model llama2_7b a100_40 weights=w4a16 kv=fp8_e4m3 prompt=256 generate=16",
        "model qwen3_32b h100 weights=fp8 prompt=128 generate=8 batch=400",
        "model llama3_8b mi300x prompt=128 generate=8",
    ),
    "images": (
        "model resnet50 tpu_v4",
        "model unet a100_40",
        "model vit_b16 h100 phase=train batch=32 allocator=emptied",
        "model resnet18 tpu_v1",
    ),
    "divided": (
        "model llama3_70b 8xh100 tp=8 batch=16 prompt=512 generate=16",
        "model llama3_70b 4xa100_80 pp=4 micro=8 batch=8 prompt=256 generate=8",
        "model mixtral_8x7b 8xh100 ep=8 batch=32 prompt=256 generate=8",
        "model bert_large 4xa100_80 phase=train dp=4 batch=32",
        "model gpt2_xl 4xa100_80 phase=train pp=4 micro=4 batch=16",
    ),
    "collectives": (
        "collective 8xh100 all_reduce bytes=64MB",
        "collective dgx_a100 all_gather bytes=1MB",
        "collective two_nodes_h100 all_to_all bytes=16MB",
        "collective two_nodes_h100 all_reduce bytes=16MB",
        "collective tpu_v4_2x2x1 reduce_scatter bytes=8MB",
        "collective 4xl40s all_reduce bytes=1KiB..1GiB:x32 --plot",
        "collective pcie4_8 broadcast bytes=4MB devices=4",
    ),
    "serving": (
        "serve llama3_8b h100 load=4,16 requests=30 --plot",
        "serve llama3_8b h100 rate=4 requests=30 engine=sglang weights=fp8",
        "serve llama3_70b 8xh100 tp=8 load=8 requests=16 engine=trtllm",
        "serve llama2_7b a100_40 load=8 requests=16 prefix=512 blocks=600",
    ),
    "compared": (
        "compare a100_40,h100,tpu_v4 attention_naive,attention_fused n=512 heads=8 precision=bf16 --plot",
        "compare zen4,course_cpu matmul_naive,matmul_tiled n=64 --plot",
        "compare h100,a100_80 llama3_8b prompt=128 generate=8",
        "ladder fusion n=4096 --plot",
        "ladder specialisation n=64 --plot",
        "roofline a100_40 matmul,add,attention_fused n=1024 --plot",
        "roofline course_cpu matmul_naive,matmul_tiled,add n=64 --plot",
        "roofline tpu_v1 matmul n=512 --plot",
    ),
    "sweeps": (
        "sweep course_cpu matmul_tiled n=64 tile=8,16,32,64 precision=fp32,bf16 vector=true --plot",
        "sweep a100_40 matmul n=256..4096:x4 precision=fp16,fp32 --kind pareto --plot",
        "sweep zen3 matmul_tiled n=64 tile=8,16,32 ld=64,72 --metric energy --kind heat --plot",
        "sweep h100,tpu_v4 matmul n=512 precision=bf16,int8 --plot",
        "sweep h100 llama3_8b batch=1..64:x8 prompt=128 generate=8 --plot",
        "tune course_cpu matmul_tiled n=32",
        "tune a100_40 matmul n=1024 precision=fp16",
        "tune tpu_v4 matmul n=512",
    ),
    "runs": (
        "run course_cpu matmul_tiled n=64 tile=16 vector=true --plot",
        "run a100_40 matmul n=2048 precision=fp16 --timeline blocks.png",
        "run tpu_v1 resnet_block h=8 w=8 --timeline array.png",
        "run zen4 matmul_parallel n=96 --timeline cores.png",
        "run eyeriss conv2d --plot",
    ),
    "shown": (
        "show course_cpu", "show a100_40", "show tpu_v1", "show eyeriss", "show gddr6_aim", "show dgx_h100",
        "show vllm", "show llama3_8b", "show matmul --on a100_40", "show attention_fused --on tpu_v4",
        "show conv2d --on zen4", "show zen3 --plot", "show a100_40 --plot", "show tpu_v4 --plot",
        "list machines", "list workloads", "list models", "list systems",
        "check zen4", "check matmul_tiled", "explain stall", "explain roofline",
    ),
    "views": (
        "view 8x4 reshape=2,2,2,4 permute=0,1,3,2 contiguous",
        "view 16x16 slice=2:10,0:16:4 --line 64",
        "trace course_cpu matmul_tiled n=4 tile=2",
        "trace course_cpu transpose n=4 m=4",
        "gradient '(exp(v1) + 1) * exp(v1)'",
        "rewrite course_cpu resnet_block_plain h=4 w=4",
    ),
}  # fmt: skip
MATH = ("model", "compare", "ladder", "roofline", "sweep", "tune", "run")
"""Commands that compute tensors unless they are told not to."""
WITHOUT_JSON = ("show", "list", "check", "explain")
FOLDER = f"{Path(__file__).resolve().parents[2]}/"
"""Where this copy of hwsim lies."""
LEFT_OUT = re.compile(r".*(if all take as long|kept in ).*\n")
"""Lines that tell how long something took here, or where it lies."""


def words_of(command: str) -> list[str]:
    """What is typed, without the math, with a file for the plot and one for the numbers."""
    words = shlex.split(command)
    if words[0] in MATH:
        words.append("--no-math")
    if words[0] not in WITHOUT_JSON:
        words += ["--json", "numbers.json"]
    if "--plot" in words:
        words.insert(words.index("--plot") + 1, "plot.png")
    return words


def seen(command: str, folder: Path) -> str:
    """The screen of a command, what its plots show, and a digest of its numbers."""
    plots: list[str] = []

    def note(figure: Figure, *_: Any, **__: Any) -> None:
        plots.extend(describe(figure))

    out, error = io.StringIO(), ""
    with pytest.MonkeyPatch.context() as patch, in_its_own_place(folder), contextlib.redirect_stdout(out):
        patch.setattr(Figure, "savefig", note)
        with contextlib.redirect_stderr(io.StringIO()):
            try:
                program().main(words_of(command), prog_name="hwsim", standalone_mode=False)
            except HwsimError as refusal:
                error = f"{type(refusal).__name__}: {refusal}\n"
    file = folder / "numbers.json"
    numbers = f"json {rows.digest_of(json.loads(file.read_text(encoding='utf-8')))}\n" if file.is_file() else ""
    screen = LEFT_OUT.sub("", rows.masked(out.getvalue())).replace(FOLDER, "")
    return "\n".join((f"$ hwsim {command}", screen + error + numbers, *plots, ""))


@pytest.mark.parametrize("group", GROUPS)
def test_what_commands_say_is_as_it_was(group: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    texts = []
    for number, command in enumerate(GROUPS[group]):
        folder = tmp_path / str(number)
        folder.mkdir()
        texts.append(seen(command, folder))
    found, file = "\n".join(texts), KEPT / f"{group}.txt"
    if pytestconfig.getoption("--update-golden"):
        file.parent.mkdir(exist_ok=True)
        write_text(file, found)
    if changes := difference(file, found):
        pytest.fail("\n".join([*changes, rows.UPDATE]), pytrace=False)


def test_every_file_that_is_kept_belongs_to_a_group() -> None:
    assert {file.stem for file in KEPT.glob("*.txt")} == {*GROUPS}


def test_a_plot_that_shows_something_else_is_described_otherwise() -> None:
    def drawn(height: float, title: str) -> list[str]:
        figure = Figure()
        axes = figure.subplots()
        axes.set_title(title)
        axes.bar(["a", "b"], [1.0, height])
        axes.plot([0, 1], [2, 3], label="line")
        axes.legend()
        return list(describe(figure))

    assert drawn(2.0, "time") == drawn(2.0, "time")
    assert drawn(2.0, "time") != drawn(2.01, "time")
    assert drawn(2.0, "time") != drawn(2.0, "energy")
