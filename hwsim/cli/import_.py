"""`hwsim import`: files of other programs as model files, and what was understood of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwsim.cli.arguments import JsonFile, check_output
from hwsim.cli.console import err, out, print_plain, styled
from hwsim.files import write_text
from hwsim.text import short

if TYPE_CHECKING:
    from hwsim.models.load import LoadedModel

IMPORT_EXAMPLE = (
    "Example: [cyan]hwsim import config.json -o my_model.yaml[/cyan]   "
    "[cyan]hwsim import resnet.onnx -o resnet.yaml --name resnet[/cyan]   "
    "[cyan]hwsim import program.pt2 -o program.yaml[/cyan]"
)


def import_command(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="config.json, .onnx, .pt2 of torch.export, or .csv: layers of SCALE-Sim, operators."
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The model file to write; else it is printed.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="What the model is called; else after its file.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Turn a config.json, ONNX, torch.export or a table of layers into a model file that can be changed."""
    from hwsim.catalog import expand
    from hwsim.models.load import import_file, model_yaml, plain_name

    told = check_output(json_file, None, (file,), output=output)
    called = name or (plain_name(output) if output is not None else None)
    loaded = import_file(expand(file), called)
    text = model_yaml(loaded.model)
    if output is not None:
        write_text(output, text)
    told.show(lambda: report(loaded), lambda: _print(loaded, text, output))


def report(loaded: LoadedModel) -> dict[str, Any]:
    """What was understood, as data."""
    from hwsim.models.count import kept_per_token, parameters
    from hwsim.models.graph import ModelGraph

    graph = ModelGraph.of(loaded.model)
    kinds: dict[str, int] = {}
    for block, node in graph.nodes():
        kinds[node.word] = kinds.get(node.word, 0) + block.repeat
    return {
        "name": loaded.model.name,
        "parameters": parameters(graph),
        "kept_per_token": kept_per_token(graph),
        "blocks": [{"name": b.name, "repeat": b.repeat, "operations": len(b.nodes)} for b in graph.blocks],
        "operations": dict(sorted(kinds.items())),
        "notes": list(loaded.notes),
    }  # fmt: skip


def _print(loaded: LoadedModel, text: str, output: Path | None) -> None:
    if output is None:
        print_plain(text)
    found = report(loaded)
    console = err() if output is None else out()
    listed = ", ".join(f"{count} {kind}" for kind, count in found["operations"].items())
    console.print(styled("understood  ", (f"{short(found['parameters'])} parameters", "bold"), f"; {listed}"),
                  soft_wrap=True)  # fmt: skip
    for note in found["notes"]:
        console.print(f"not understood  {note}", style="yellow", soft_wrap=True, markup=False)
    if output is not None:
        console.print(styled("written  ", (str(output), "cyan"), f"; try: hwsim model {output} h100"), soft_wrap=True)
