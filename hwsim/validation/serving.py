"""`hwsim validate serving`: time to first token and time per output token of served models against measured ones.

Every row is served by the simulation that `hwsim serve` runs. The cost of the host in the engine files was fitted on
rows that are not reported. How a benchmark sent its requests and what its servers took at a time the table does not
say: it was found out from the times to the first token of the fitted half (below), and some of it earlier with rows of
both halves in view: which precision weights have where none is recorded (that of the published weights), BURST and
MIXED_LENGTHS.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median

from hwsim.errors import CapacityError
from hwsim.systems.bars import FIRST_TOKEN, OUTPUT_TOKEN
from hwsim.systems.scheduler import Stream, closed_loop
from hwsim.systems.serve_model import Service, make_service
from hwsim.validation.report import Bar, ComparisonRow, Progress, report
from hwsim.validation.residual import FIT, Purpose, Residual, purpose_of
from hwsim.validation.table import (
    LINE,
    Record,
    integer,
    number,
    one_of,
    read_table,
    row_error,
    sample,
    table_error,
    tables,
)

WHAT = (
    "time per output token (TPOT) and to the first token (TTFT) of served models against measured ones; rows that "
    "nothing was fitted on"
)
COLUMNS = (
    "model", "machine", "backend", "backend_version", "precision", "isl", "osl", "batch_size", "tp", "dp", "moe_ep",
    "ttft_ms", "tpot_ms",
)  # fmt: skip
POOL = "serving/ttft_tpot.csv"
FAMILIES = {"TPOT": OUTPUT_TOKEN, "TTFT": FIRST_TOKEN}
DENSE = {
    "meta-llama/Llama-3.1-8B-Instruct": "llama3_8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama3_8b",
    "meta-llama/Llama-3.1-70B": "llama3_70b",
    "Qwen/Qwen3-32B": "qwen3_32b",
}
EXPERTS = {"deepseek-ai/DeepSeek-R1": "deepseek_v3", "deepseek-ai/DeepSeek-V3": "deepseek_v3"}
MODELS = DENSE | EXPERTS
MACHINES = ("h100", "h200")
BURST = "0.5.1.post1"
"""The SGLang whose rows show that every user sent one request, all at once: the mean time to the first token is that of
half of all prompts."""
MIXED_LENGTHS = ((1024, 1024), (1024, 8192), (8192, 1024))
"""Shapes of a benchmark that draws lengths from 80 to 100 % of these, ten requests for each user."""
SWEEPS = (("trtllm", "1.0.0rc3"), ("vllm", "0.12.0"))
SWEPT_PROMPTS = (1024, 2048, 4096)
"""A benchmark with ten requests for each user, all of one length. Users who began together stay together, and then
the time to the first token is that of whole groups of prompts: it shows how many fit into a step."""
SWEPT_STEP = 2
"""Prompts that a step of its servers took at most, whatever their length."""
ONE_PLACE_FEWER = (("meta-llama/Llama-3.1-8B-Instruct", "trtllm"),)
"""Servers that had one place fewer than there were users: first tokens wait for somebody else's last one, 1/users of
the whole time of a request on average."""
SPREAD = 0.1
"""All other benchmarks: five requests for each user, lengths up to a tenth above and below what is said. With lengths
that are all equal, users who began together would stay in step for ever; on real servers they do not."""
FP8_KEYS = (("meta-llama/Llama-3.1-70B", "trtllm"),)
"""Rows whose times only keys and values in fp8 explain: with 16 bits some would not even fit the memory."""
TPOT_MEDIAN, TPOT_MEAN, TTFT_MEDIAN, EXPERT_MEDIAN = 0.08, 0.12, 0.25, 0.20

REASONS = (
    ("nvidia/Llama-3.1-8B-Instruct-FP8", "vllm",
     "prompts leave no trace in these times: they are those of decoding alone, as if prompts were found in a cache"),
    ("Qwen/Qwen3-32B", "vllm fp8", "as above: shorter than a step that decodes so many requests"),
    ("meta-llama/Llama-3.1-70B", "trtllm", "taken with keys and values in fp8, which the table does not record"),
    ("meta-llama/Llama-3.1-8B-Instruct", "sglang",
     "more users than the server took at a time: first tokens wait for seconds"),
)  # fmt: skip
"""Groups that are known to be off, and why."""


@dataclass(frozen=True)
class ServingRow:
    """One row of the table."""

    line: str
    model: str
    machine: str
    backend: str
    version: str
    precision: str
    prompt: int
    output: int
    users: int
    tp: int
    ttft: float
    tpot: float

    @property
    def purpose(self) -> Purpose:
        return purpose_of(self.model, self.prompt, self.output, self.users, self.tp)

    @property
    def held_out(self) -> bool:
        return self.purpose != FIT

    @property
    def group(self) -> str:
        return f"{self.model.rpartition('/')[2]} {self.machine} {self.backend} {self.precision or 'not recorded'}"

    @property
    def swept(self) -> bool:
        return (self.backend, self.version) in SWEEPS and self.prompt in SWEPT_PROMPTS

    def server(self) -> dict[str, int]:
        """Settings of the engine that its benchmark changed."""
        found = {"tokens": SWEPT_STEP * self.prompt + self.users} if self.swept else {}
        if (self.model, self.backend) in ONE_PLACE_FEWER and self.users > 1:
            found["requests"] = self.users - 1
        return found

    def stream(self) -> Stream:
        """The requests, as the benchmark that measured this row sent them."""
        if self.swept:
            return closed_loop(self.users, self.prompt, self.output, 10 * self.users)
        if self.version == BURST:
            return closed_loop(self.users, self.prompt, self.output, self.users)
        if (self.prompt, self.output) in MIXED_LENGTHS:
            prompt, output = (round(0.9 * tokens) for tokens in (self.prompt, self.output))
            return closed_loop(self.users, prompt, output, 10 * self.users, spread=1 / 9)
        return closed_loop(self.users, self.prompt, self.output, 5 * self.users, spread=SPREAD)


def validate(data: Path | None = None, count: int | None = None, seed: int = 0) -> Progress:
    """The number of rows to come, then each row as it is done, then the report."""
    (path,) = tables(data, "serving.csv", (POOL,))
    records = read_table(path, COLUMNS)
    known = [(record, row) for record in records if (row := _measured(path, record)) is not None]
    held = [(record, row) for record, row in known if row.held_out]
    if not held:
        raise table_error(path, 1, "", "no row of this table is held out and of a model and machine that hwsim has")
    groups = {record[LINE]: row.group for record, row in held}
    chosen = {each[LINE] for each in sample([record for record, _ in held], lambda r: groups[r[LINE]], count, seed)}
    rows = [row for _, row in held if row.line in chosen]
    yield len(rows)
    services: dict[tuple[object, ...], Service] = {}
    compared: list[ComparisonRow] = []
    notes: list[str] = []
    dense: list[tuple[float, float]] = []
    experts: list[float] = []
    for row in rows:
        try:
            errors = list(compare(services, row))
        except CapacityError as error:  # what was measured did fit: as wrong as a prediction can be
            notes.append(f"line {row.line}, {row.group}: {error}")
            errors = [
                ComparisonRow(f"line {row.line}", f"{what} {row.group}", 1.0, "refused") for what in ("TPOT", "TTFT")
            ]
        compared += errors
        (dense.append((errors[0].error, errors[1].error)) if row.model in DENSE else experts.append(errors[0].error))
        yield errors[0]
    skipped = {
        "of models or machines that hwsim has not, or other layouts": len(records) - len(known),
        "with shapes that constants were fitted on": len(known) - len(held),
    }
    notes += [f"{number} rows {why} are left out" for why, number in skipped.items() if number]
    notes += _known_reasons(rows)
    yield report("serving", WHAT, compared, list(_bars(dense, experts)), notes)


def _bars(dense: list[tuple[float, float]], experts: list[float]) -> Iterator[Bar]:
    if dense:
        tpot, ttft = [each[0] for each in dense], [each[1] for each in dense]
        yield Bar.at_most("dense models: median error of TPOT", TPOT_MEDIAN, median(tpot))
        yield Bar.at_most("dense models: mean error of TPOT", TPOT_MEAN, mean(tpot))
        yield Bar.at_most("dense models: median error of TTFT", TTFT_MEDIAN, median(ttft))
    if experts:
        yield Bar.at_most("mixtures of experts: median error of TPOT", EXPERT_MEDIAN, median(experts))


def _known_reasons(rows: list[ServingRow]) -> list[str]:
    found = {
        f"{row.model} {row.backend}: {reason}": None
        for row in rows
        for model, backend, reason in REASONS
        if row.model == model and f"{row.backend} {row.precision}".startswith(backend)
    }
    return list(found)


def compare(services: dict[tuple[object, ...], Service], row: ServingRow) -> Iterator[ComparisonRow]:
    """A row against the same simulation that `hwsim serve` runs: first TPOT, then TTFT, means over requests."""
    key = (row.model, row.machine, row.backend, row.precision, row.tp)
    if key not in services:
        formats = {"weights": row.precision} if row.precision in ("fp8", "int4") else {}
        if (row.model, row.backend) in FP8_KEYS:
            formats["kv"] = "fp8"
        given = {"tp": str(row.tp), "engine": row.backend, **formats}
        services[key] = make_service(MODELS[row.model], f"8x{row.machine}", given)
    service = services[key]
    engine = service.engine.model_copy(update=row.server())
    result = replace(service, engine=engine).run(row.stream())
    assert result.tpot is not None
    name = f"line {row.line}: {row.prompt} + {row.output} tokens, {row.users} users, tp={row.tp}"
    for what, found, measured in (("TPOT", result.tpot.mean, row.tpot), ("TTFT", result.ttft.mean, row.ttft)):
        words = f"{found * 1e3:.1f} ms simulated, {measured * 1e3:.1f} measured"
        residual = Residual(FAMILIES[what], row.machine, found, measured, row.purpose)
        yield ComparisonRow.of(name, f"{what} {row.group}", found, measured, words, residual)


def _measured(path: Path, record: Record) -> ServingRow | None:
    """A row of a model and a machine that are here, in a layout that is modelled; None for others."""
    if record["model"] not in MODELS or record["machine"] not in MACHINES:
        return None
    one_of(path, record, "backend", ("vllm", "trtllm", "sglang"))
    prompt, output, users, tp = (integer(path, record, name) for name in ("isl", "osl", "batch_size", "tp"))
    ttft, tpot = (number(path, record, name) for name in ("ttft_ms", "tpot_ms"))
    if min(prompt, users, tp) < 1 or output < 2 or ttft <= 0 or tpot <= 0:
        raise row_error(path, record, "", "isl, batch_size and tp are at least 1, osl at least 2, times more than 0")
    alone = record["dp"] in ("", "1", "1.0")
    if not alone or tp > 8 or record["moe_ep"] not in ("", "0", "1"):
        return None
    return ServingRow(
        record[LINE], record["model"], record["machine"], record["backend"], record["backend_version"],
        record["precision"], prompt, output, users, tp, ttft * 1e-3, tpot * 1e-3,
    )  # fmt: skip
