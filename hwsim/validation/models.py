"""`hwsim validate models`: whole models against times measured in PyTorch, and against a serving engine.

Every row goes through what `hwsim model` runs. Nothing was fitted to any of these rows, but for two constants of memory
that was given back, which were fitted to steps of training of one half (split.py). The rows of PyTorch are forward
passes (`inf`) and steps of training (`train`, forward and backward, with dropout and without an optimizer) in fp32,
operation by operation, compiled (`fusion`), or on several devices (`dp4`, `tp4`, `pp4_1`). The serving rows are the
time for each token under continuous batching: a step of generating, and the prompts of other sequences that are read
meanwhile.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from statistics import mean

from hwsim.catalog import load_machine, machine_names
from hwsim.errors import HwsimError
from hwsim.models.load import load_model
from hwsim.models.run import run
from hwsim.ops.model import ModelWorkload
from hwsim.spec.machine import MachineSpec
from hwsim.spec.variant import with_parameters
from hwsim.systems.communicate import Network
from hwsim.systems.parallel import make_layout
from hwsim.systems.shards import run_layout
from hwsim.systems.spec import load_system
from hwsim.validation.report import Bar, ComparisonRow, Progress, relative_error, report
from hwsim.validation.residual import FIT, Residual, purpose_of, unfitted_half
from hwsim.validation.table import Record, integer, number, read_table, row_error, sample, shipped, tables

TRAINING = "gpu_model_training"
WHAT = "seconds of whole models, against PyTorch on real GPUs and a serving engine"
COLUMNS = ("machine", "model", "mode", "seq", "batch", "variant", "e2e_ms", "pred_roofline_ms", "pred_neusight_ms")
SERVING_COLUMNS = ("machine", "model", "isl", "osl", "batch", "tpot_ms")
BARS = {"inf": 0.06, "train": 0.12, "several": 0.15, "serving": 0.10}
NAMES = {
    "inf": "inference",
    "train": "training",
    "several": "on several devices",
    "serving": "Llama-3.1-8B served on one H100",
}
OTHERS = {"pred_neusight_ms": "NeuSight", "pred_roofline_ms": "a roofline"}
"""Other predictors of the same rows."""

STOCK = {
    "bert": "bert_base", "bert_large": "bert_large", "gpt2_med": "gpt2_medium", "gpt2_large": "gpt2_large",
    "gpt2_xl": "gpt2_xl", "opt_13": "opt_1_3b",
}  # fmt: skip
OWN = {"gpt3_xl": "gpt3_xl", "switchxl4": "switchxl4"}
"""Models that only these measurements have: files beside the table. Of others a folder `configs` beside the table may
hold the config.json, by the name that the table has for them."""
TRAINED = {"bert_large": "bert_large_words"}
"""What is trained has another head."""
DROPOUT = {"opt_13": "layers"}
"""OPT drops nothing of its scores; the others drop everywhere."""
ONE_DEVICE = ("", "fusion")
SEVERAL = re.compile(r"(?P<axis>dp|tp|pp)(?P<devices>\d{1,3})(?:_(?P<micro>\d{1,4}))?")
"""Variants of several devices: dp4, tp4, and pp4_1, four stages with one microbatch. `batch` is that of all of them."""


def validate(data: Path | None = None, count: int | None = None, seed: int = 0) -> Progress:
    """The number of rows to come, then each row as it is done, then the report."""
    (path,) = tables(data, "models.csv", ())
    records = sample(read_table(path, COLUMNS), lambda r: (r["mode"], r["machine"]), count, seed)
    left_out: dict[str, int] = defaultdict(int)
    kept = []
    for record in records:
        if reason := _reason(path, record):
            left_out[reason] += 1
        else:
            kept.append(record)
    served = (
        [] if data is not None and not data.is_dir() else read_table(shipped("models_serving.csv"), SERVING_COLUMNS)
    )
    served = sample(served, lambda r: r["machine"], count, seed)
    yield len(kept) + len(served)
    rows: list[ComparisonRow] = []
    errors: defaultdict[str, list[float]] = defaultdict(list)
    others: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for record in kept:
        measured = number(path, record, "e2e_ms")
        found = 1e3 * pytorch_seconds(path, record)
        family = TRAINING if record["mode"] == "train" else "gpu_model_inference"
        group = f"{record['mode']} {record['machine']}"
        rows.append(_compared(record, group, _name(record), found, measured, family))
        errors["several" if SEVERAL.fullmatch(record["variant"]) else record["mode"]].append(rows[-1].error)
        for column, who in OTHERS.items():
            if record[column]:
                others[record["mode"], who].append(relative_error(number(path, record, column), measured))
        yield rows[-1]
    for record in served:
        measured = float(record["tpot_ms"])
        found = 1e3 * served_seconds(shipped("models_serving.csv"), record)
        name = f"{record['model']} prompt {record['isl']} generate {record['osl']} users {record['batch']}"
        rows.append(_compared(record, f"serving {record['machine']}", name, found, measured, "gpu_model_served"))
        errors["serving"].append(rows[-1].error)
        yield rows[-1]
    unseen = [
        row.error for row in rows if row.residual and row.residual.family == TRAINING and row.residual.purpose != FIT
    ]
    half = [f"training, steps of the half that nothing was fitted to: mean error {mean(unseen):.1%}"] if unseen else []
    yield report("models", WHAT, rows, _bars(errors), [*_notes(errors, others), *half, *_left_out(left_out)])


def _compared(record: Record, group: str, name: str, found: float, measured: float, family: str) -> ComparisonRow:
    detail = f"{found:.4g} ms simulated, {measured:.4g} ms measured"
    half = purpose_of if family == TRAINING else unfitted_half
    residual = Residual(family, record["machine"], found * 1e-3, measured * 1e-3, half("model", name))
    return ComparisonRow.of(name, group, found, measured, detail, residual)


def _name(record: Record) -> str:
    variant = f" {record['variant']}" if record["variant"] else ""
    return f"{record['model']} seq {record['seq']} batch {record['batch']}{variant}"


def _reason(path: Path, record: Record) -> str:
    """Why a row is left out; nothing where it is compared."""
    if record["machine"] not in machine_names():
        return f"there is no machine {record['machine']}"
    if record["model"] not in STOCK | OWN and not _config(path, record["model"]).is_file():
        return f"the numbers of {record['model']} are not known"
    if record["variant"] not in ONE_DEVICE and not SEVERAL.fullmatch(record["variant"]):
        return f"the variant {record['variant']} is not known"
    return "" if record["mode"] in ("inf", "train") else f"{record['mode']} is no mode"


def pytorch_seconds(path: Path, record: Record) -> float:
    """A row as it was measured: token ids in, scores for all tokens out; or a step of training without an update."""
    train = record["mode"] == "train"
    model = _model(path, record["model"], train)
    seq = integer(path, record, "seq")
    parameters: dict[str, object] = {
        "precision": "fp32", "phase": "train" if train else "forward", "prompt": seq, "source": seq,
        "batch": integer(path, record, "batch"), "optimizer": "none", "allocator": "emptied",
        "kernels": "compiled" if record["variant"] == "fusion" else "eager",
        "dropout": DROPOUT.get(record["model"], "all"),
    }  # fmt: skip
    if (several := SEVERAL.fullmatch(record["variant"])) is not None:
        return _seconds_of_several(path, record, model, parameters, several)
    return _seconds(path, record, model, parameters)


def _seconds_of_several(
    path: Path, record: Record, model: ModelWorkload, parameters: Mapping[str, object], variant: re.Match[str]
) -> float:
    """The same on several devices, as `hwsim model bert_large 4xa100_40 dp=4 phase=train` runs it."""
    numbers = {"tp": 1, "micro": int(variant["micro"] or 1), variant["axis"]: int(variant["devices"])}
    with _blaming(path, record):
        system = load_system(f"{variant['devices']}x{record['machine']}")
        asked = with_parameters(model, parameters)
        assert isinstance(asked, ModelWorkload)
        return run_layout(asked, system, make_layout(system, numbers), Network(system)).seconds


def served_seconds(path: Path, record: Record) -> float:
    """Time for each token: a step at the mean length, and its share of the prompts that other sequences begin with."""
    isl, osl, users = (integer(path, record, name) for name in ("isl", "osl", "batch"))
    model = _model(path, record["model"], False)
    step = _seconds(path, record, model, {"phase": "decode", "prompt": isl + osl // 2, "batch": users})
    prompt = _seconds(path, record, model, {"phase": "prefill", "prompt": isl, "batch": 1, "generate": 0})
    return step + (users - 1) / osl * prompt


def _seconds(path: Path, record: Record, model: ModelWorkload, parameters: Mapping[str, object]) -> float:
    with _blaming(path, record):
        asked = with_parameters(model, parameters)
        assert isinstance(asked, ModelWorkload)
        return run(_machine(record["machine"]), asked, math=False).time_s


@contextmanager
def _blaming(path: Path, record: Record) -> Iterator[None]:
    """What cannot be simulated is a mistake of the row."""
    try:
        yield
    except HwsimError as error:
        raise row_error(path, record, "", str(error)) from error


@cache
def _machine(name: str) -> MachineSpec:
    return load_machine(name).spec


def _config(path: Path, name: str) -> Path:
    """Where the config.json of a model lies beside a table; names of tables lead nowhere else."""
    return path.parent / "configs" / f"{re.sub('[^A-Za-z0-9_.-]', '_', name)}.json"


@cache
def _model(path: Path, name: str, train: bool) -> ModelWorkload:
    own = (TRAINED.get(name) if train else None) or OWN.get(name)
    if own:
        return load_model(shipped(f"models/{own}.yaml")).model
    config = _config(path, name)
    return load_model(config if name not in STOCK and config.is_file() else STOCK.get(name, name)).model


def _bars(errors: dict[str, list[float]]) -> list[Bar]:
    found = {mode: mean(errors[mode]) for mode in BARS if errors.get(mode)}
    return [Bar.at_most(f"{NAMES[mode]}, mean error", BARS[mode], error) for mode, error in found.items()]


def _notes(errors: dict[str, list[float]], others: dict[tuple[str, str], list[float]]) -> list[str]:
    notes = []
    for mode, own in errors.items():
        beside = [f"{who} {mean(found):.1%} ({len(found)} rows)" for (m, who), found in others.items() if m == mode]
        words = f"; on the same rows, {', '.join(beside)}" if beside else ""
        notes.append(f"{NAMES[mode]}: mean error {mean(own):.1%} over {len(own)} rows, largest {max(own):.1%}{words}")
    return notes


def _left_out(reasons: dict[str, int]) -> list[str]:
    return [f"{count} rows left out: {reason}" for reason, count in sorted(reasons.items())]
