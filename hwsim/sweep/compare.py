"""`hwsim.compare`: machines by workloads side by side, for Python and notebooks.

Named runs side by side: any list of them for a comparison, and the ladders of the course.

A ladder is data: the same computation in steps that each change one thing. Its rungs change the workload on each
machine; a rung may name a machine of its own, where the step is to another kind of hardware. A class of machines may
take the steps in its own way; of the ladder's own steps, choices that mean nothing to a machine are left out, and so
are steps that then differ in nothing. Rungs and machines that are not there are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwsim.api import DEFAULT_MACHINE, DEFAULT_WORKLOAD, resolve_machine, resolve_workload, run_all
from hwsim.catalog import machine_names, workload_names
from hwsim.errors import CapacityError, InputError
from hwsim.numerics.format import FORMATS
from hwsim.result import RunResult
from hwsim.results.explanation import explain
from hwsim.results.metrics import aligned, html_table, metrics_of, shown, write
from hwsim.spec.fields import did_you_mean
from hwsim.sweep.grid import MACHINE, WORKLOAD, SweepRequest, make_request
from hwsim.target import Rung, Target, find_target, unread
from hwsim.units import ratio

if TYPE_CHECKING:
    from hwsim.results.plot.style import Figure

Names = str | Path | Sequence[str | Path]


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs by their names, one for each head; speed-ups are against the first."""

    heads: tuple[str, ...]
    runs: Mapping[tuple[str, ...], RunResult]
    refused: Mapping[str, str]
    """Why a combination is not among them."""

    def __getitem__(self, names: str | tuple[str, ...]) -> RunResult:
        """One run: ``comparison["course_cpu", "add"]``."""
        return self.runs[(names,) if isinstance(names, str) else names]

    def __len__(self) -> int:
        return len(self.runs)

    def speed_up(self, names: tuple[str, ...]) -> float:
        """How many times as fast as the first run this one is."""
        first = next(iter(self.runs.values()))
        return first.time_s / self.runs[names].time_s

    def to_dicts(self) -> list[dict[str, Any]]:
        """One flat dictionary for each run: names, speed-up, what bounds it, and all metrics."""
        return [
            {
                **dict(zip(self.heads, names, strict=True)),
                "speed_up": self.speed_up(names),
                "bound": explain(result).bound.short,
                **metrics_of(result),
            }
            for names, result in self.runs.items()
        ]

    def plot(self, path: str | Path | None = None) -> Figure:
        """Bars of time, energy and traffic; in a notebook they show themselves."""
        from hwsim.results.plot.compare import ComparedRun, plot_compare

        entries = [ComparedRun(names[0], " ".join(names[1:]), result) for names, result in self.runs.items()]
        return plot_compare(entries, None if path is None else Path(path))

    def __repr__(self) -> str:
        return "\n".join(aligned([self._titles(), *self._rows()]))

    def _repr_html_(self) -> str:
        return html_table(self._titles(), self._rows())

    def _titles(self) -> list[str]:
        return [*self.heads, "speed-up", *(metric.head or metric.title for metric in shown("compare")), "bound by"]

    def _rows(self) -> list[list[str]]:
        found = []
        for names, result in self.runs.items():
            row = metrics_of(result)
            cells = [write(metric.name, row[metric.name]) for metric in shown("compare")]
            found.append([*names, ratio(self.speed_up(names)), *cells, explain(result).bound.short])
        return found


def compare(
    machine: Names = DEFAULT_MACHINE,
    workload: Names = DEFAULT_WORKLOAD,
    *,
    set: Mapping[str, object] | None = None,  # noqa: A002 - the same word as --set on the command line
    math: bool = True,
    **parameters: object,
) -> Comparison:
    """Run every combination: ``hwsim.compare(["course_cpu", "zen3"], ["matmul_naive", "matmul_simd"], n=50)``.

    Values are one value, a list, or a text as on the command line; what has several is part of a run's names.
    """
    request = make_request(machine, workload, parameters, {})
    heads, tasks = named_runs(request, [f"{name}={value}" for name, value in (set or {}).items()])
    refused: dict[str, str] = {}
    mine, _ = read_by_some(list(tasks.values()))
    results = run_named(mine, math=math, refused=refused)
    runs = {names: results[task.label] for names, task in tasks.items() if task.label in results}
    return Comparison(heads, runs, refused)


@dataclass(frozen=True)
class NamedRun:
    """One run, and what it is called."""

    label: str
    machine: str
    workload: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    settings: tuple[str, ...] = ()


def named_runs(
    request: SweepRequest, settings: Iterable[str]
) -> tuple[tuple[str, ...], dict[tuple[str, ...], NamedRun]]:
    """Heads of names (machine, workload, and whatever has several values), and each run by its names."""
    heads = (MACHINE, WORKLOAD, *(axis.name for axis in request.axes if axis.swept))
    tasks: dict[tuple[str, ...], NamedRun] = {}
    for place in request.coordinates():
        names = tuple(str(place[head]) for head in heads)
        own = {axis.name: place[axis.name] for axis in request.axes}
        tasks[names] = NamedRun(" ".join(names), names[0], names[1], own, tuple(settings))
    return heads, tasks


def read_by_some(runs: Sequence[NamedRun]) -> tuple[list[NamedRun], dict[str, list[str]]]:
    """Tasks for machines of several classes, without choices that only others of these machines read.

    The second answer names the choices that were left out, by machine. A choice that no machine reads stays: it is
    refused when it is run.
    """
    strange: dict[str, list[str]] = {}
    for run in runs:
        target = find_target(resolve_machine(run.machine, run.settings))
        work = resolve_workload(run.workload, run.parameters)
        strange[run.label] = list(unread(target, work, run.parameters))
    nowhere = set.intersection(*(set(names) for names in strange.values())) if strange else set()
    left_out: dict[str, list[str]] = {}
    found = []
    for run in runs:
        names = [name for name in strange[run.label] if name not in nowhere]
        kept = {name: value for name, value in run.parameters.items() if name not in names}
        found.append(replace(run, parameters=kept))
        if names:
            left_out.setdefault(run.machine, names)
    return found, left_out


def like_with_like(runs: Sequence[NamedRun]) -> tuple[list[NamedRun], list[str]]:
    """Runs on several machines, in one precision and on the whole of each machine where nobody chose otherwise.

    The second answer says what was chosen, and what still differs.
    """
    if len({run.machine for run in runs}) < 2:
        return list(runs), []
    everywhere, widened = _on_all_cores(runs)
    same, precisions = _in_one_precision(everywhere)
    return same, [*precisions, *widened]


def _on_all_cores(runs: Sequence[NamedRun]) -> tuple[list[NamedRun], list[str]]:
    """With all cores of a machine whose programs use one core where nobody asks for more."""
    found, changed = [], dict[str, None]()
    for run in runs:
        target = find_target(resolve_machine(run.machine, run.settings))
        work = resolve_workload(run.workload, run.parameters)
        schedule = getattr(work, "schedule", None)
        chosen = {"parallel", "cores"} & run.parameters.keys()
        alone = getattr(schedule, "parallel", None) == "none" and "parallel" in target.reads(work)
        if alone and not chosen:
            run = replace(run, parameters={**run.parameters, "parallel": "rows"})
            changed[run.machine] = None
        found.append(run)
    words = f"parallel=rows on {', '.join(changed)}: all cores that find work take part; parallel=none is one core"
    return found, [words] if changed else []


def _in_one_precision(runs: Sequence[NamedRun]) -> tuple[list[NamedRun], list[str]]:
    """In the narrowest format that all have, where their own choices would differ."""
    own = {run.label: str(_own_precision(run)) for run in runs}
    unlike = [] if all("precision" in run.parameters for run in runs) else _unlike(runs, own)
    if not unlike:
        return list(runs), []
    nobody_chose = not any("precision" in run.parameters or _names_precision(run) for run in runs)
    if nobody_chose:
        for name in sorted(FORMATS, key=lambda name: (FORMATS[name].bits, name)):
            tried = [replace(run, parameters={**run.parameters, "precision": name}) for run in runs]
            if all(map(_computes, tried)):
                return tried, [f"precision={name} everywhere: the narrowest format that all of these machines have"]
    why = " (no format is computed by all)" if nobody_chose else ""
    words = f"{', '.join(unlike)}: machines differ in precision{why}, so their times compare unlike things"
    return list(runs), [words]


def _unlike(runs: Sequence[NamedRun], precision: Mapping[str, str]) -> list[str]:
    """Workloads that would not be computed in the same format everywhere."""
    found: dict[str, set[str]] = {}
    for run in runs:
        found.setdefault(run.workload, set()).add(precision[run.label])
    return [workload for workload, formats in found.items() if len(formats) > 1]


def _own_precision(run: NamedRun) -> object:
    """The format that a run takes where it is left alone."""
    target = find_target(resolve_machine(run.machine, run.settings))
    work = resolve_workload(run.workload, run.parameters)
    try:
        return target.defaults(work).precision
    except InputError:
        return work.precision


def _names_precision(run: NamedRun) -> bool:
    return "precision" in resolve_workload(run.workload, {}).model_fields_set


def _computes(run: NamedRun) -> bool:
    """Whether a machine has the format that a run names, as far as one sees without simulating it."""
    target = find_target(resolve_machine(run.machine, run.settings))
    try:
        target.prepare(target.defaults(resolve_workload(run.workload, run.parameters)), math=False)
    except (InputError, CapacityError):
        return False
    return True


def baselines(runs: Sequence[RunResult]) -> list[RunResult]:
    """What each of several runs is compared with: the first that does as much work; on several machines, of the same
    workload."""
    several = len({run.machine for run in runs}) > 1
    return [
        next(other for other in runs if _as_much(run, other) and (not several or run.workload == other.workload))
        for run in runs
    ]


def _as_much(run: RunResult, other: RunResult) -> bool:
    """Whether two runs compute the same in two ways, or about as much: one is no part of a larger problem."""
    mine, others = run.resolved.workload, other.resolved.workload
    if run.workload != other.workload and (mine["op"], mine.get("sizes")) == (others["op"], others.get("sizes")):
        return True
    less, more = sorted((run.work.useful_flops, other.work.useful_flops))
    return more <= (THE_SAME if run.workload == other.workload else AS_MUCH) * less


AS_MUCH = 1.5
"""Work of an operation that is written in several ways differs by less than this; another problem's by more."""
THE_SAME = 1.01
"""Work of one workload at another size differs by more than this; that of another schedule does not."""


def run_named(
    runs: Sequence[NamedRun], *, math: bool = True, refused: dict[str, str] | None = None
) -> dict[str, RunResult]:
    """Run one after the other; whatever is wrong with any of them is said before the first one starts.

    A machine may turn out not to have what a workload needs. With `refused`, that is noted there and the others go on.
    """
    wrong = []
    for run in runs:
        try:
            resolve_machine(run.machine, run.settings)
            resolve_workload(run.workload, run.parameters)
        except InputError as error:
            wrong.append(f"{run.label}: {error}")
    if wrong:
        raise InputError("\n".join(wrong))
    results = {}
    for run in runs:
        try:
            done = run_all(run.machine, run.workload, set=run.settings, math=math, parameters=run.parameters)
        except InputError as error:
            if refused is None:
                raise
            refused[run.label] = str(error)
        else:
            results[run.label] = done.result
    if not results and refused:
        raise InputError("\n".join(dict.fromkeys(refused.values())))
    return results


@dataclass(frozen=True)
class Ladder:
    """Steps on one machine, or on several to see where each step pays."""

    title: str
    question: str
    machines: tuple[str, ...]
    rungs: tuple[Rung, ...]
    common: Mapping[str, object] = field(default_factory=dict)
    """Parameters that all rungs have."""
    math: bool = True
    """Whether the answers are computed, where that does not take far longer than to simulate."""


LADDERS: Mapping[str, Ladder] = {
    "matmul": Ladder(
        "Matrix product, step by step",
        "How much do vectors, tiles and cores bring, in this order?",
        ("course_cpu",),
        (
            Rung("naive", "matmul_naive"),
            Rung("vectorised", "matmul_simd"),
            Rung("tiled", "matmul_tiled", {"vector": True, "v1": 4}),
            Rung("parallel", "matmul_parallel"),
        ),
        {"n": 256},
    ),
    "cuda": Ladder(
        "A matrix product on a GPU, from a thread for each result to tensor cores",
        "What does each step of the CUDA ladder bring, and how far is it from the library?",
        ("a6000",),
        (
            *(
                Rung(name, f"gpu_matmul_{workload}")
                for name, workload in {
                    "naive": "naive",
                    "coalesced loads": "coalesced",
                    "tiles in shared memory": "shared",
                    "a column in registers": "register_1d",
                    "a block in registers": "register_2d",
                    "loads of 16 bytes": "vectorised",
                    "tiles for each warp": "warp_tiled",
                }.items()
            ),
            Rung("library", "matmul"),
            Rung("tensor cores", "gpu_matmul_tensor", {"precision": "fp16"}),
            Rung("library, tensor cores", "matmul", {"precision": "fp16"}),
        ),
        {"n": 4096},
        math=False,
    ),
    "precision": Ladder(
        "The same product in fewer bits",
        "What do narrower numbers save, and what do they cost in accuracy?",
        ("course_cpu",),
        tuple(
            Rung(precision, "matmul_tiled", {"vector": True, "v1": 4, "precision": precision})
            for precision in ("fp64", "fp32", "bf16", "int8")
        ),
        {"n": 256, "tile": 32},
    ),
    "fusion": Ladder(
        "E = D + (A + B) * C in three passes, and in one",
        "Does each step of fusion pay, and on every machine?",
        ("course_cpu", "zen3", "cortex_a78"),
        (
            Rung("three passes", "unfused", {"vector": False}),
            Rung("vectors", "unfused", {"vector": True}),
            Rung("one pass", "fused", {"vector": True}),
        ),
        {"n": 2**20},
    ),
    "conv": Ladder(
        "A 3x3 convolution, from seven loops to blocks of a matrix product",
        "What does each way to compute it move and cost?",
        ("course_cpu",),
        (
            Rung("seven loops", "conv2d_direct"),
            Rung("tiles and vectors", "conv2d_3x3"),
            Rung("im2col", "conv2d_im2col"),
            Rung("implicit", "conv2d_implicit"),
        ),
        {"ci": 64, "co": 64, "height": 32},
    ),
    "attention": Ladder(
        "Attention with the matrix S in memory, and without",
        "What does never storing S save, and where does it pay?",
        ("a100_40", "h100", "tpu_v3"),
        (Rung("naive", "attention_naive"), Rung("fused", "attention_fused")),
        {"n": 1024, "heads": 8, "precision": "bf16"},
    ),
    "specialisation": Ladder(
        "One matrix product on more and more specialised hardware",
        "What does giving up programmability bring?",
        ("ladder_scalar",),
        tuple(
            Rung(name, "matmul", {}, f"ladder_{machine}")
            for name, machine in {
                "scalar core": "scalar",
                "vectors": "simd",
                "signal processor": "dsp",
                "GPU": "gpu",
                "FPGA": "fpga",
                "fixed function": "asic",
            }.items()
        ),
        {"n": 256, "precision": "fp16"},
    ),
}


def find_ladder(name: str) -> Ladder:
    """A ladder by name; raises InputError with those that there are."""
    if name not in LADDERS:
        raise InputError(f"there is no ladder '{name}'{did_you_mean(name, LADDERS)}; there are: {', '.join(LADDERS)}")
    return LADDERS[name]


def ladder_runs(
    ladder: Ladder,
    machines: Sequence[str] = (),
    changes: Mapping[str, object] | None = None,
    settings: Sequence[str] = (),
) -> dict[str, tuple[NamedRun, ...]]:
    """The runs of a ladder for each machine; `changes` are parameters that the user wants otherwise."""
    chosen = tuple(machines) or tuple(name for name in ladder.machines if name in machine_names())
    runs: dict[str, tuple[NamedRun, ...]] = {}
    for machine in chosen:
        target = find_target(resolve_machine(machine, settings))
        found: list[NamedRun] = []
        for rung in target.ladder(_name_of(ladder)) or ladder.rungs:
            if rung.workload not in workload_names() or (rung.machine or machine) not in _known(machine):
                continue
            own = {**ladder.common, **rung.parameters}
            own = {name: value for name, value in own.items() if name not in (changes or {})}
            if rung.machine is None:
                own = _read(target, rung.workload, own)
            run = NamedRun(
                rung.name, rung.machine or machine, rung.workload, {**own, **(changes or {})}, tuple(settings)
            )
            if not any(_same(run, other) for other in found):
                found.append(run)
        runs[machine] = tuple(found)
    return runs


def _known(machine: str) -> tuple[str, ...]:
    return (*machine_names(), machine)


def _name_of(ladder: Ladder) -> str:
    return next((name for name, each in LADDERS.items() if each is ladder), "")


def _read(target: Target, workload: str, parameters: Mapping[str, object]) -> dict[str, object]:
    """The parameters without choices that mean nothing to a machine."""
    work = resolve_workload(workload, parameters)
    strange = unread(target, work, parameters)
    return {name: value for name, value in parameters.items() if name not in strange}


def _same(one: NamedRun, other: NamedRun) -> bool:
    return (one.machine, one.workload, one.parameters) == (other.machine, other.workload, other.parameters)
