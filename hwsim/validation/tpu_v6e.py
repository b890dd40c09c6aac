"""`hwsim validate tpu_v6e`: products and attention of Llama-3.1-8B on one TPU v6e, measured layer by layer.

The measured profile has steps that no model of the chip explains: a layer jumps between two values a factor of two
apart at neighbouring numbers of tokens. So the bars are on medians.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import median

from hwsim.api import run_all
from hwsim.validation.report import Bar, ComparisonRow, Progress, each_row, report
from hwsim.validation.residual import Residual, is_held_out, purpose_of
from hwsim.validation.table import Record, integer, number, read_table, row_error, sample, tables

WHAT = "time of the layers of Llama-3.1-8B on tpu_v6e, against measured ones"

MACHINE = "tpu_v6e"
HEADS, KV_HEADS, HEAD = 32, 8, 128
"""Of Llama-3.1-8B."""
BARS = {"product": 0.15, "attention": 0.25}
"""The most that the median error of a group may be."""
_SIZES = ("m", "n", "k", "queries", "keys", "batch")
_COLUMNS = ("layer", "op", *_SIZES, "latency_us", "source")


def validate(data: Path | None = None, count: int | None = None, seed: int = 0) -> Progress:
    """The number of rows to come, then each row as it is done, then the report."""
    (path,) = tables(data, "tpu_v6e.csv", ())
    held_out = [record for record in read_table(path, _COLUMNS) if is_held_out(MACHINE, record["op"], *_sizes(record))]
    records = sample(held_out, lambda record: record["layer"], count, seed)
    rows = yield from each_row(records, partial(_compared, path))
    found = {op: [row.error for row in rows if row.group.startswith(f"{op}:")] for op in BARS}
    bars = [Bar.at_most(f"median error of {op}s", BARS[op], median(errors)) for op, errors in found.items() if errors]
    yield report("tpu_v6e", WHAT, rows, bars)


def _compared(path: Path, record: Record) -> ComparisonRow:
    measured, simulated = number(path, record, "latency_us"), _simulated(path, record)
    words = f"{simulated:.4g} µs simulated, {measured:.4g} measured"
    name = " ".join([record["layer"], *(f"{size}={record[size]}" for size in _SIZES if record[size])])
    purpose = purpose_of(MACHINE, record["op"], *_sizes(record))
    residual = Residual(f"array_{record['op']}s", MACHINE, simulated * 1e-6, measured * 1e-6, purpose)
    return ComparisonRow.of(name, f"{record['op']}: {record['layer']}", simulated, measured, words, residual)


def _simulated(path: Path, record: Record) -> float:
    """Microseconds of a row, as `hwsim run` gives them."""
    names: tuple[str, ...]
    parameters: dict[str, object] = {}
    if record["op"] == "product":
        workload, names = "matmul", ("m", "n", "k")
    elif record["op"] == "attention":
        workload, names = "attention_fused", ("queries", "batch")
        keys, causal = integer(path, record, "keys"), record["queries"] != "1"
        parameters = {"n": keys, "d": HEAD, "heads": HEADS, "kv_heads": KV_HEADS, "causal": causal}
    else:
        raise row_error(path, record, "op", f"{record['op']!r} is not one of product, attention")
    parameters |= {"precision": "bf16", **{name: integer(path, record, name) for name in names}}
    return run_all(MACHINE, workload, math=False, parameters=parameters).result.time_s * 1e6


def _sizes(record: Record) -> list[str]:
    """What decides whether a row is one to fit on."""
    return [record[name] for name in _SIZES if record[name]]
