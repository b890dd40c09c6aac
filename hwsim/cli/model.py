"""`hwsim model`: what a whole model costs on a machine, and why; `hwsim import`: a model file from other formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwsim.cli.arguments import JsonFile, PlotFile, Settings, check_output, spinner, split_words
from hwsim.cli.console import err, out, print_body, print_plain, screen, styled, wrapped
from hwsim.cli.run import next_command, remember
from hwsim.errors import InputError
from hwsim.files import write_text
from hwsim.units import counted, data, joules, percent, rate, seconds, short, watts

if TYPE_CHECKING:
    from rich.console import Console

    from hwsim.models.load import LoadedModel
    from hwsim.models.run import ModelRun
    from hwsim.ops.model import ModelWorkload
    from hwsim.result import RunResult

MODEL_EXAMPLE = (
    "Example: [cyan]hwsim model llama3_8b h100 prompt=1024 generate=512 batch=8[/cyan]   "
    "[cyan]hwsim model config.json a100_80 weights=w4a16[/cyan]   "
    "[cyan]hwsim model bert_large a100_80 phase=train batch=8[/cyan]   "
    "[cyan]hwsim model llama3_70b 8xh100 tp=8 batch=64[/cyan]"
)


def model_command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL] [MACHINE] [NAME=VALUE]...",
            help="A model by name, or a file: a model file, a config.json, ONNX, torch.export, a table of layers. Then "
            "a machine, and prompt=, generate=, batch=, phase=, precision=, weights=, kv=, activations=, kernels=; on "
            "a system also tp=, pp=, dp=, ep=, sp=, micro=, or host_layers= and stream=; without any, the list of "
            "models.",
            show_default=False,
        ),
    ] = None,
    settings: Settings = None,
    weights: Annotated[
        Path | None,
        typer.Option("--weights", metavar="FILE", help="Weights of a small model: .npz or .safetensors; else random."),
    ] = None,
    no_math: Annotated[bool, typer.Option("--no-math", help="Do not compute the model, or a slice of it.")] = False,
    timeline: Annotated[
        Path | None,
        typer.Option(
            "--timeline",
            metavar="FILE",
            help="Write who was at work when, for Perfetto (JSON), or a plot. On one machine: phases, layers, "
            "operations, kernels and power; on a system: a lane for each device and link.",
        ),
    ] = None,
    plot: PlotFile = None,
    json_file: JsonFile = None,
) -> None:
    """Simulate a whole model on a machine: memory, prompt, tokens, training; what each costs, and why."""
    if not words:
        _print_models()
        return
    from hwsim.api import resolve_machine
    from hwsim.models.accuracy import read_weights
    from hwsim.models.load import load_model
    from hwsim.models.run import run_phases, summed
    from hwsim.ops.model import ModelWorkload
    from hwsim.spec.variant import with_parameters
    from hwsim.systems.spec import is_system

    name, machine, parameters = _sorted(words)
    output = check_output(json_file, plot, (*words, weights), timeline=timeline)
    if is_system(machine):
        from hwsim.cli.layout import show_on_system

        if settings:
            raise InputError("--set changes a machine; for a system, write a machine file and a system of it")
        if weights is not None:
            raise InputError("--weights is for a model on one machine; on a system nothing is computed")
        show_on_system(name, machine, parameters, output, timeline, plot)
        return
    computer = resolve_machine(machine, settings or ())
    loaded = load_model(name)
    model = with_parameters(loaded.model, parameters)
    assert isinstance(model, ModelWorkload)
    _check_lengths(model, parameters)
    for note in loaded.notes:
        err().print(f"{name}: {note}", style="dim", soft_wrap=True)
    with spinner("simulating") as told:
        found = run_phases(computer, model, told)
        result = summed(found, math=not no_math, given=None if weights is None else read_weights(weights))
    remember(result)
    output.show(result.to_dict, lambda: print_model(result, words, tuple(settings or ())))
    if plot is not None:
        from hwsim.results.plot.timeline import plot_model

        plot_model(result, plot)
    if timeline is not None:
        _write_timeline(timeline, found)


def _check_lengths(model: ModelWorkload, parameters: Mapping[str, str]) -> None:
    """Lengths of texts mean nothing to images, and to a program that was exported with a fixed number of tokens."""
    from hwsim.models.graph import ModelGraph

    given = [name for name in ("prompt", "generate", "source") if name in parameters]
    if given and not ModelGraph.of(model).takes_tokens:
        name = given[0]
        raise InputError(
            f"{name}={parameters[name]}: {model.name} takes the same input every time, and has no {name}; batch= says "
            "how many at once"
        )


def _write_timeline(path: Path, found: ModelRun) -> None:
    from hwsim.models.run import model_timeline
    from hwsim.results.plot.style import is_plot_file
    from hwsim.results.plot.timeline import write_timeline

    made = model_timeline(found)
    spans = made.operations if is_plot_file(path) else made.spans
    write_timeline(path, spans, f"{found.model.name} on {found.machine.name}", made.power)


def _sorted(words: Sequence[str]) -> tuple[str, str, dict[str, str]]:
    """The model, the machine, and parameters; the two names in any order."""
    from hwsim.catalog import machine_names
    from hwsim.systems.spec import is_system

    names, parameters = split_words(words, "write a parameter as key=value, such as batch=8", "")
    if len(names) > 2:
        raise InputError(f"'{names[2]}': only a model and a machine are expected; parameters are key=value")
    if len(names) == 2 and (names[0] in machine_names() or is_system(names[0])):
        names.reverse()
    if len(names) == 1:
        raise InputError(f"'{names[0]}': a model and a machine are needed, as in: hwsim model {names[0]} h100")
    if not names:
        raise InputError("a model and a machine are needed, as in: hwsim model llama3_8b h100")
    return names[0], names[1], parameters


def _print_models() -> None:
    from hwsim.cli.show import _entries, _print_table

    _print_table("models", _entries("model"))
    screen().print(styled("\n", ("hwsim model llama3_8b h100 prompt=1024 generate=128 batch=8", "cyan")))


def print_model(result: RunResult, words: Sequence[str], settings: Sequence[str]) -> None:
    """One screen."""
    from hwsim.results.explanation import explain

    console, about, why = screen(), result.work.use["model"], explain(result)
    _print_head(console, result, about)
    _print_memory(console, result, about)
    console.print()
    for phase in about["phases"]:
        _print_phase(console, phase, about)
    spent = f", {joules(result.energy_j)}" if result.energy_j is not None else ""
    bar = f" {result.time.words}" if result.time.is_known else ""
    console.print(styled(("in all   ", "bold"), f"{seconds(result.time_s)}{bar}{spent}"))
    wrapped(console, "         ", f"time: {result.time.source}", style="dim")
    if result.numeric is not None:
        off = f"rms {result.numeric.rms_rel:.1e} off float64 ({about['computed']})"
        console.print(styled(("accuracy ", "bold"), off), soft_wrap=True)
    if result.power_w is None:
        console.print("this machine has no energy prices", style="dim")
    console.print()
    print_body(console, why.body)
    console.print()
    wrapped(console, "", f"{why.bound.words}.", style="bold")
    for warning in result.warnings[:-1]:
        wrapped(console, "note  ", warning, style="yellow")
    command = next_command("model", words, settings, why.advice)
    console.print(styled("\nnext  ", (command, "cyan")), soft_wrap=True)
    wrapped(console, "      ", f"{why.advice.why}; or: hwsim explain", style="dim")


def _print_head(console: Console, result: RunResult, about: Mapping[str, Any]) -> None:
    formats = about["weights"]
    if len({about["weights"], about["activations"], about["kv"]}) > 1:
        formats = f"weights {about['weights']}, activations {about['activations']}, kv {about['kv']}"
    lengths = f"prompt {about['prompt']:,}, " if about["kv_bytes_per_token"] else ""
    if lengths and {"prefill", "decode"} <= {phase["name"] for phase in about["phases"]}:
        lengths += f"generate {about['generate']:,}, "
    head = f": {lengths}batch {about['batch']:,}, {formats}, {about['kernels']} kernels"
    console.print(styled((result.workload, "bold"), " on ", (result.machine, "bold"), head), soft_wrap=True)
    active = about["active_parameters"]
    sparse = active < 0.9 * about["parameters"] and about["kv_bytes_per_token"]
    met = f", {short(active)} of them met by a token" if sparse else ""
    macs = f"{short(about['macs'])} multiply-adds in one {'step' if about['phases'][0]['name'] == 'decode' else 'pass'}"
    console.print(f"  {short(about['parameters'])} parameters{met}; {macs}", soft_wrap=True)


def _print_memory(console: Console, result: RunResult, about: Mapping[str, Any]) -> None:
    memory, fit = about["memory"], about["fit"]
    listed = [f"{data(size)} {name.replace('_', ' ')}" for name, size in memory.items() if size and name != "total"]
    each = about["kv_bytes_per_token"]
    if each:
        listed = [f"{text} ({data(each)} a token)" if "kv cache" in text else text for text in listed]
    if each and any(phase["name"] == "prefill" for phase in about["phases"]):
        some = about["tokens_at_once"] < about["batch"] * about["prompt"]
        pieces = f" ({about['tokens_at_once']:,} tokens at a time{', as engines read prompts' if some else ''})"
        listed = [text + pieces if text.endswith("activations") else text for text in listed]
    text = f"{data(memory['total'])}: {', '.join(listed)}"
    wrapped(console, "memory   ", text, style="none")
    if fit["has"] is None:
        wrapped(console, "         ", f"{result.machine} does not say how much memory it has", style="dim")
        return
    share = percent(memory["total"], fit["has"])
    if fit["fits"]:
        words = f"fits: {share} of {data(fit['has'])}"
        if fit["largest_batch"]:
            words += f"; a batch of up to {fit['largest_batch']:,} would"
        if each and fit["longest_context"]:
            words += f", or texts of up to {fit['longest_context']:,} tokens"
        wrapped(console, "         ", words, style="green")
        return
    words = f"does not fit: {share} of {data(fit['has'])}"
    words += f"; with weights={fit['narrower']} it would" if fit["narrower"] else ""
    if fit["largest_batch"]:
        words += f"; a batch of {fit['largest_batch']:,} would"
    elif not fit["narrower"]:
        words += "; no batch and no format of weights would: it takes several devices"
    wrapped(console, "         ", words, style="bold red")


def _print_phase(console: Console, phase: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """A line for what it costs, and one for what bounds it."""
    batch, steps = about["batch"], max(1.0, phase["steps"])
    each = phase["seconds"] / steps
    spent = phase["joules"]
    tokens = batch * phase["tokens"] / each
    words = f"{seconds(each):<8}"
    match phase["name"]:
        case "prefill":
            more = f"{rate(tokens, 'token')} of prompt"
        case "decode":
            each_token = f", {joules(spent / steps / batch)} a token" if spent is not None else ""
            more = f"a step at {phase['context']:,} tokens, {rate(batch / each, 'token')}{each_token}"
        case "train":
            parts = ", ".join(f"{name} {seconds(amount)}" for name, amount in phase["parts"].items())
            more = f"{rate(batch / each, 'sequence')}, {parts}"
        case _:
            more = rate(batch / each, "sequence" if about["kv_bytes_per_token"] else "input")
    power = f", {watts(spent / phase['seconds'])}" if spent is not None and phase["seconds"] else ""
    energy = f", {joules(spent / steps)}{power}" if spent is not None and phase["name"] != "decode" else power
    title = f"{phase['name']:<8} "
    console.print(styled((title, "bold"), (words, "bold cyan"), f" {more}{energy}"), soft_wrap=True)
    whole = sum(phase["bounds"].values())
    bound = ", ".join(f"{name} {percent(size, whole)}" for name, size in list(phase["bounds"].items())[:3])
    kernels = counted(phase["kernels"], "kernel")
    started = f"{kernels} started; " if phase["kernels"] else ""
    wrapped(console, "         ", f"{started}bound by {bound}", style="dim")


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
