"""Writes the pages of docs/reference that follow from the program itself: `make docs`.

What a YAML file may say is declared in hwsim/spec, what a command takes in hwsim/cli. These pages repeat it
for people; a test compares them with what this script would write.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from typer.models import ArgumentInfo, CommandInfo, OptionInfo

from hwsim.catalog import energy_table_names, load_energy_table
from hwsim.cli.app import COMMANDS, make_app
from hwsim.energy import EnergyTableSpec, resolve_table, sram_price
from hwsim.files import write_text
from hwsim.spec.fields import choices, json_schema, literals
from hwsim.spec.machine import Level, MachineSpec
from hwsim.spec.workload import WorkloadSpec, any_workload
from hwsim.units import format_bytes, plain
from hwsim.validation.standing import Aim, FamilyStanding, by_family, read_standings, standing_file

REFERENCE = Path(__file__).resolve().parent / "reference"
EXPLANATION = REFERENCE.parent / "explanation"
VALIDATION = "validation.md"
NOTICE = "<!-- Written by docs/generate.py; change hwsim and run `make docs`. -->\n"

QUANTITIES = (
    ("a size", "`B`, `kB` `MB` `GB` `TB` (1000s), `KiB` `MiB` `GiB` `TiB` (1024s)", "`32 KiB`, `inf`"),
    ("a frequency", "`Hz`, `kHz`, `MHz`, `GHz`", "`1.41 GHz`"),
    ("a time", "`cycles` of the part's clock, or `fs` `ps` `ns` `us` `ms` `s`", "`4 cycles`, `0.5 ns`"),
    ("a bandwidth", "`B/cycle` of the part's clock, or a size and `/s`", "`64 B/cycle`, `25.6 GB/s`, `inf`"),
    ("an energy", "`fJ` `pJ` `nJ` `uJ` `mJ` `J` per action, or with `/bit` or `/B`", "`10 pJ`, `4 pJ/bit`"),
    ("a power", "`uW`, `mW`, `W`, `kW`", "`75 W`"),
    ("a length", "`nm`", "`45 nm`"),
)  # fmt: skip
_UNITS = (
    (r"B/(cycle|s)$", "bandwidth"), (r"(B|inf)$", "size"), (r"Hz$", "frequency"), (r"(cycles?|s)$", "time"),
    (r"J(/bit)?$", "energy"), (r"W$", "power"), (r"nm$", "length"),
)  # fmt: skip

_PLACES = {"format": 0, "name": 0, "kind": 1, "source": 3}
"""Where a field comes in its table: names first, sources last, all others as they are declared."""

_MACHINE = """\
A machine is one YAML file: clocks, compute units, memory levels from the compute unit outwards, and energy
prices. A field that is not listed here is refused, and so is a number without its unit. Fields without a
default have to be given. [How to describe a machine](../how-to/describe-a-machine.md) goes through an
example.
"""
_WORKLOAD = """\
A workload is one YAML file: an operation, its sizes, the schedule by which it is computed, and its
precision. The schedule changes what it costs and never the answer, up to rounding. Which sizes and choices
there are depends on `op`.
"""
_COMMANDS = """\
`hwsim` alone prints a few commands to try. Exit codes: 0 fine, 1 a run or a check failed, 2 the input is
wrong. `--debug`, anywhere on the line, shows Python tracebacks; `--version` prints the version; `--help`
after any command tells what it takes.
"""
_TABLES = """\
Prices that machine files use by naming a table (`energy.table`, `energy.dram`). They lie in
`machines/energy/`; one of yours goes into `./machines/energy/`. What lies between two nodes is interpolated
in the logarithms of node and energy. An empty cell is not known: it is never taken for 0.
[Price a machine's energy](../how-to/price-energy.md) shows how to use them.
"""
_AMOUNTS = "`KB` could mean 1000 or 1024 bytes and is refused. Amounts are exact: `0.1 ns` is a tenth.\n"

Schema = dict[str, Any]


def machine_page() -> str:
    """What a machine file may say."""
    schema = json_schema("Machine", MachineSpec)
    parts = schema["$defs"]
    common = list(Level.model_fields)
    text = [
        "# Machine files\n",
        NOTICE,
        _MACHINE,
        *_section("The machine", parts["MachineSpec"]),
        "A file may instead say `extends: NAME` and give only what differs.\n",
        *_section("clocks", parts["ClockSpec"]),
        *_section("compute: kind cpu", parts["CpuSpec"]),
        *_group("ports", parts["PortsSpec"]),
        *_group("latency", parts["OpLatencySpec"]),
        *_group("simd", parts["SimdSpec"]),
        *_group("matrix", parts["MatrixSpec"]),
        *_group("tlb", parts["TlbSpec"]),
        *_group("one entry of formats of a core", parts["CoreFormatSpec"]),
        *_group("a format of your own", parts["FormatSpec"]),
        *_section("compute: kind systolic", parts["SystolicSpec"]),
        *_group("one entry of formats of an array", parts["ArrayFormatSpec"]),
        *_group("command", parts["CommandSpec"]),
        *_group("vector", parts["VectorUnitSpec"]),
        *_group("dma", parts["DmaSpec"]),
        *_section("compute: kind grid", parts["GridSpec"]),
        *_section("compute: kind gpu", parts["GpuSpec"]),
        *_group("latency of a gpu", parts["GpuLatencySpec"]),
        *_group("launch", parts["LaunchSpec"]),
        *_group("library", parts["LibrarySpec"]),
        *_group("one of tensor_tiles or lane_tiles", parts["TileSpec"]),
        *_group("one of attention", parts["AttentionKernelSpec"]),
        *_section("compute: kind pim", parts["PimSpec"]),
        *_group("one entry of formats of a bank", parts["BankFormatSpec"]),
        "## memory: what every level has\n",
        *_table(parts["CacheSpec"], common),
    ]
    for name in ("RegistersSpec", "CacheSpec", "ScratchpadSpec", "DramSpec", "StorageSpec"):
        kind = parts[name]["properties"]["kind"]["const"]
        own = [field for field in parts[name]["properties"] if field not in common]
        text += _section(f"memory: kind {kind}", parts[name], own)
        if kind == "cache":
            text += _group("prefetch", parts["PrefetchSpec"])
        if kind == "dram":
            text += _group("timing", parts["DramTiming"])
    text += _section("energy", parts["EnergySpec"])
    text += _group("one entry of actions", parts["PriceSpec"])
    text += _group("one entry of static", parts["StaticSpec"])
    text += _group("tdp", parts["LimitSpec"])
    text += _units()
    return _page(text)


def workload_page() -> str:
    """What a workload file may say."""
    parts = json_schema("Workload", any_workload())["$defs"]
    operations = list(choices(any_workload()))
    common = list(WorkloadSpec.model_fields)
    first = parts[operations[0].__name__]
    first["properties"]["op"] = {"enum": [word for model in operations for word in _operation_names(model)]}
    about_op = WorkloadSpec.model_fields["op"].description or ""
    text = [
        "# Workload files\n", NOTICE, _WORKLOAD,
        "## What every workload has\n", *_table(first, common, {"op": about_op}),
        *_group("precision: a format of your own", parts["FormatSpec"]),
    ]  # fmt: skip
    for model in operations:
        definition = parts[model.__name__]
        own = [field for field in definition["properties"] if field not in common]
        words = ", ".join(f"`{word}`" for word in _operation_names(model))
        text += _section(f"op: {words}", definition, own)
        for field in own:
            group = _referenced(definition["properties"][field])
            if group is not None and parts[group]["properties"]:
                text += _group(field, parts[group])
            text += _entries(field, definition["properties"][field], parts)
    return _page([*text, *_units()])


def _entries(field: str, definition: Schema, parts: dict[str, Schema]) -> list[str]:
    """The variants of a list's entries, each with its fields: the operations of a chain."""
    items = definition.get("items", {})
    names = [variant["$ref"].rsplit("/", 1)[-1] for variant in items.get("oneOf", [])]
    if "$ref" in items:
        names = [items["$ref"].rsplit("/", 1)[-1]]
    text: list[str] = []
    for name in names:
        op = parts[name]["properties"].get("op", {})
        words = ", ".join(f"`{word}`" for word in op.get("enum", [op.get("const")]) if word)
        text += _group(f"one entry of {field}" + (f": {words}" if words and len(names) > 1 else ""), parts[name])
    return text


def cli_page() -> str:
    """Every command with its arguments and options."""
    text = ["# Commands\n", NOTICE, _COMMANDS]
    for command in make_app(COMMANDS).registered_commands:
        text += _command(command)
    return _page(text)


def energy_page() -> str:
    """The prices of all energy tables, with their sources, and what a table may say."""
    tables = {name: resolve_table(load_energy_table(name), load_energy_table) for name in energy_table_names()}
    nodes = sorted((t for t in tables.values() if t.operations), key=lambda t: -(t.node or 0))
    head = " | ".join(f"{plain(table.node or Fraction(0))} nm" for table in nodes)
    text = ["# Energy tables\n", NOTICE, _TABLES, "## Arithmetic, pJ\n"]
    text += [f"| operation | {head} | area at 45 nm, um² | source at 45 nm |", "|---" * (len(nodes) + 3) + "|"]
    oldest = nodes[0]
    for operation, price in oldest.operations.items():
        cells = " | ".join(plain(table.operations[operation].energy.picojoules) for table in nodes)
        area = oldest.areas.get(operation)
        shown = "" if area is None else f"{area.square_micrometres:g}"
        text.append(f"| `{operation}` | {cells} | {shown} | {_cell(price.source)} |")
    text += ["", "## Memories on a chip, pJ/bit\n", f"| size | {head} |", "|---" * (len(nodes) + 1) + "|"]
    for kib in (8, 32, 128, 512, 1024, 4096, 131072):
        prices = [sram_price(table, 1024 * kib) for table in nodes]
        cells = " | ".join("" if price is None else plain(price.read.picojoules) for price in prices)
        text.append(f"| {format_bytes(1024 * kib)} | {cells} |")
    text += ["", "## Main memory, pJ/bit\n", "| kind | device | controller | source |", "|---|---|---|---|"]
    for kind, memory in tables["dram"].dram.items():
        controller = "" if memory.controller is None else plain(memory.controller.picojoules)
        text.append(f"| `{kind}` | {plain(memory.device.picojoules)} | {controller} | {_cell(memory.source)} |")
    text += ["", "## Instructions, pJ\n", "| table | kind | | source |", "|---|---|---|---|"]
    for name, table in tables.items():
        for kind, price in table.instructions.items():
            text.append(f"| `{name}` | `{kind}` | {plain(price.energy.picojoules)} | {_cell(price.source)} |")
    parts = json_schema("Energy table", EnergyTableSpec)["$defs"]
    text += ["", *_section("What a table may say", parts["EnergyTableSpec"])]
    text += _group("one entry of operations, instructions or registers", parts["PriceSpec"])
    text += [*_group("one entry of sram", parts["SramSpec"]), *_group("one entry of dram", parts["DramKindSpec"])]
    return _page([*text, *_group("special", parts["SpecialSpec"]), *_group("one entry of areas", parts["AreaSpec"])])


_VALIDATION = """\
# How far off

Every family of measurements that hwsim was compared with, as `hwsim validate --write` found it. Rows that a
constant may have been fitted on are not among the rows here: a hash of the shape decides, whatever the machine. The
rows that are left make the error bars, in two halves, and each row is judged by the bars of the half that it is not
in. [How to read an error bar](../how-to/read-an-error-bar.md) says what they mean. Single rows are not shown: models
are judged on them, and who looks at them can fit to them.

- **error**: |simulated - measured| / measured, the mean over rows, every machine counting alike.
- **within**: the share of the judging rows that lie inside their bar, which is made for 80 %; 75 to 85 % are wanted
  where there are 50 of them or more.
- **unseen machine**: the same with the machine of each row left out of the table, as if it had never been measured.
  Nothing where fewer than two machines would be left.
- **furthest off**: the decade of simulated times with the largest mean error.
- **half a bar**: half of the interval over the simulated number, on average.

Where an aim is given, it is the mean error (or median, where it says so) that the model is to stay below.
"""
_WHY = {
    "cpu_matmul": (
        "One core of one CPU. What its caches replace, and which pages lie where, is not known; set conflicts at "
        "powers of two are the worst cases."
    ),
    "gemm_tensor": (
        "Small products: which of its kernels a library takes is a guess, and some hundred nanoseconds matter."
    ),
    "gemm_8bit": (
        "Kernels with block scales, and the kernel that rounds activations before them, differ from library to library."
    ),
    "gemm_fp32": "Thin products and split sums.",
    "gemm_weight_only": (
        "Weights are turned into 16 bits in the kernel, by instructions that are counted and not measured."
    ),
    "bmm": "Many small products: the library's choice among kernels for them is not known.",
    "conv_implicit": (
        "Which kernel the library takes, its tile and how channels are padded, is not known for each shape."
    ),
    "conv_winograd_fft": (
        "Rows of PyTorch carry what the host adds, 150 us that differ from call to call; which of two algorithms ran "
        "is not known, and the quicker one is taken."
    ),
    "attention_fused": (
        "Short prompts, of which the host and further kernels take most; long ones on GPUs that lower their clock."
    ),
    "attention_decode": (
        "Keys of a single sequence that many blocks share, batches of hundreds, and what the host of Arc B60 adds."
    ),
    "attention_unfused": "A handful of rows; frameworks materialise masks and dropout besides.",
    "attention_backward": "Few rows; those of FlashAttention-1 are taken as 3.5 times the forward pass.",
    "memory_bound": "Kernels of some microseconds, where launching is most of the time.",
    "sgemm_ladder": "One shape on one GPU, rung by rung.",
    "array_products": (
        "The profile of tpu_v6e jumps by a factor of two between neighbouring shapes; bank conflicts, "
        "unaligned requests and the shared cache of Gemmini are not modelled; the shapes of the first TPU's layers are "
        "not published."
    ),
    "gpu_model_inference": "Forward passes in PyTorch; nothing was fitted to whole models.",
    "gpu_model_training": "Steps of training in PyTorch; what the framework does between kernels is a guess.",
    "gpu_model_served": "Time per token of one model behind one engine.",
    "collective": "Host bridges of PCIe systems, and messages at which a library changes its algorithm.",
    "serving_token": "Engines whose host limits small steps, and rows whose precision was not recorded.",
    "serving_first_token": "How a benchmark sends its requests decides when the first token comes.",
    "array_attentions": "Short queries against long caches.",
    "grid_layers": (
        "Five layers of one network on one chip, each with both energy constants fitted to the other four; main "
        "memory is not part of the measurement."
    ),
    "gpu_power": (
        "Average power of matrix products; short bursts above the limit and partly idle chips are the worst cases."
    ),
    "served_first_token": (
        "Benchmarks differ in how users come, which tables do not record; where keys and values ran out here and not "
        "there, times are off by a factor. Bars are of h100 and h200 alone."
    ),
    "served_output_token": (
        "One group of h200 shows times of decoding alone, as if prompts were found in a cache. On h200 bars are too "
        "narrow: rows of one engine and model are off together."
    ),
    "gpu_power_sweep": "One instruction over arithmetic intensity: the prices were fitted on such rows.",
}
"""What is known about the worst rows of a family."""


def validation_page() -> str:
    """Where every family stands, from the file that `hwsim validate --write` makes."""
    found = by_family(read_standings(standing_file()))
    text = ["<!-- Written by docs/generate.py from what `hwsim validate --write` found; do not edit. -->", _VALIDATION]
    text += [
        "| family | quantity | machines | rows for fits | rows | error | aim | | within | unseen machine | half a bar |"
    ]
    text += ["|---|---|---|---|---|---|---|---|---|---|---|"]
    for each in found:
        aims = [(aim, value) for aim in each.aims if (value := each.reached(aim)) is not None]
        said = ", ".join(f"{aim.limit:.1%}{_for(aim)}" for aim, _ in aims)
        held = "" if not aims else "holds" if all(value <= aim.limit for aim, value in aims) else "missed"
        text.append(
            f"| [{each.family}](#{_anchor(each)}) | {each.quantity} | {len(each.machines)} | "
            f"{sum(row.for_fits for row in each.machines):,} | {each.rows:,} | {each.mean_error:.1%} | {said} | "
            f"{held} | {_share(each.coverage)} | {_share(each.unseen_coverage)} | {_share(each.width)} |"
        )
    for each in found:
        text += ["", f"## {each.family}, {each.quantity}", "", _WHY.get(each.family, ""), ""]
        text += [", ".join(f"`hwsim validate {check}`" for check in each.checks), ""]
        text += [
            "| machine | rows for fits | rows | mean error | median | within | unseen | half a bar | furthest off |"
        ]
        text += ["|---|---|---|---|---|---|---|---|---|"]
        for row in each.machines:
            inside = f"{row.inside} of {row.judged}" if row.judged else "–"
            strange = f"{row.unseen_inside} of {row.unseen_judged}" if row.unseen_judged else "–"
            text.append(
                f"| {row.machine} | {row.for_fits:,} | {row.rows:,} | {row.mean_error:.1%} | {row.median_error:.1%} | "
                f"{inside} | {strange} | {_share(row.width if row.judged else None)} | {_cell(row.worst)} |"
            )
    return _page(text)


def _for(aim: Aim) -> str:
    words = " ".join(word for word in (aim.machine, "median" if aim.statistic == "median" else "") if word)
    return f" ({words})" if words else ""


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _anchor(each: FamilyStanding) -> str:
    return f"{each.family}-{each.quantity}"


PAGES: dict[str, Callable[[], str]] = {
    "machine-format.md": machine_page,
    "workload-format.md": workload_page,
    "cli.md": cli_page,
    "energy-tables.md": energy_page,
}


def main(folder: Path = REFERENCE) -> None:
    folder.mkdir(exist_ok=True)
    for name, write in PAGES.items():
        write_text(folder / name, write())
        print(f"docs/reference/{name}")
    write_text((EXPLANATION if folder == REFERENCE else folder) / VALIDATION, validation_page())
    print(f"docs/explanation/{VALIDATION}")


def _page(text: Iterable[str]) -> str:
    return "\n".join(text).rstrip() + "\n"


def _section(title: str, definition: Schema, fields: list[str] | None = None) -> list[str]:
    return [f"## {title}\n", definition.get("description", "") + "\n", *_table(definition, fields)]


def _group(title: str, definition: Schema) -> list[str]:
    about = definition.get("description", "")
    return [f"### {title}\n", f"{about}\n", *_table(definition)]


def _table(definition: Schema, fields: list[str] | None = None, meanings: dict[str, str] | None = None) -> list[str]:
    properties = definition["properties"]
    rows = ["| field | value | default | meaning |", "|---|---|---|---|"]
    for name in sorted(properties if fields is None else fields, key=lambda name: _PLACES.get(name, 2)):
        field = properties[name]
        about = (meanings or {}).get(name) or field.get("description", "")
        rows.append(f"| `{name}` | {_value(field)} | {_default(field)} | {_cell(about)} |")
    return [*rows, ""]


def _default(field: Schema) -> str:
    if "default" not in field:
        return ""
    default = field["default"]
    if isinstance(default, dict) and default and all(isinstance(value, int | float) for value in default.values()):
        return ", ".join(f"`{name}: {value:g}`" for name, value in default.items())
    if default is None or default in ({}, [], "") or isinstance(default, dict):
        return "none" if default is None else "as below" if default else "empty"
    if isinstance(default, list):
        return ", ".join(f"`{item}`" for item in default)
    return f"`{json.dumps(default) if not isinstance(default, str) else default}`"


def _value(field: Schema) -> str:
    """What may be written, in words."""
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return ", ".join(f"`{word}`" for word in field["enum"])
    if "anyOf" in field or "oneOf" in field:
        listed = field.get("anyOf") or field.get("oneOf") or []
        kinds = [choice for choice in listed if choice.get("type") != "null"]
        if "examples" in field and len(kinds) == 1:
            kinds = [{**kinds[0], "examples": field["examples"]}]
        words = list(dict.fromkeys(_value(choice) for choice in kinds))
        return words[0] if words == ["a group"] else " or ".join(words)
    if _referenced(field):
        return "a group"
    return _plain(field)


def _plain(field: Schema) -> str:
    kind = field.get("type")
    if kind in ("integer", "number"):
        limits = [f"from {field['minimum']}"] if "minimum" in field else []
        limits += [f"above {field['exclusiveMinimum']}"] if "exclusiveMinimum" in field else []
        limits += [f"to {field['maximum']}"] if "maximum" in field else []
        limits += [f"multiple of {field['multipleOf']}"] if "multipleOf" in field else []
        return " ".join(["number", *limits])
    if kind == "array":
        inside = _value(field["items"]) if "items" in field else "values"
        inside = "groups" if inside == "a group" else inside
        least, most = field.get("minItems", 0), field.get("maxItems")
        if least == most:
            return f"list of {least} {inside}"
        limits = f", {least} to {most}" if most else f", at least {least}" if least else ""
        return f"list of {inside}{limits}"
    if kind == "object":
        entries = [field.get("additionalProperties"), *field.get("patternProperties", {}).values()]
        entry = next((entry for entry in entries if isinstance(entry, dict)), None)
        return f"names with {_value(entry)} each" if entry is not None else "names with values"
    if kind == "boolean":
        return "`true`, `false`"
    if "pattern" in field:
        return "name"
    return _quantity([example for example in field.get("examples", ()) if isinstance(example, str)])


def _quantity(examples: list[str]) -> str:
    kind = next((name for unit, name in _UNITS if examples and re.search(rf"^[\d.]+ ?\S*{unit}", examples[0])), None)
    if kind is None:
        return f"text, such as `{examples[0]}`" if examples else "text"
    return f"{kind}, such as {' or '.join(f'`{example}`' for example in examples if example != 'inf')}"


def _referenced(field: Schema) -> str | None:
    """The definition that a field refers to, if it is one group."""
    for place in (field, *field.get("anyOf", ()), *field.get("allOf", ())):
        if "$ref" in place:
            return str(place["$ref"]).rsplit("/", 1)[-1]
    return None


def _operation_names(model: Any) -> list[str]:
    return literals(model.model_fields["op"].annotation)


def _units() -> list[str]:
    rows = [f"| {what} | {units} | {examples} |" for what, units, examples in QUANTITIES]
    return [
        "## Units\n", _AMOUNTS,
        "| for | units | examples |", "|---|---|---|", *rows,
    ]  # fmt: skip


def _command(command: CommandInfo) -> Iterator[str]:
    function = command.callback
    assert function is not None
    declared = list(_parameters(function))
    arguments = [(name, info, hint) for name, info, hint in declared if isinstance(info, ArgumentInfo)]
    words = [name.upper() if _required(function, name) else f"[{name.upper()}]" for name, _, _ in arguments]
    yield f"## hwsim {command.name}\n"
    yield f"    hwsim {' '.join([str(command.name), *words, '[OPTIONS]'])}\n"
    yield inspect.getdoc(function) or ""
    yield ""
    yield from ("| argument or option | value | default | meaning |", "|---|---|---|---|")
    for name, info, hint in declared:
        shown = f"`{name.upper()}`" if isinstance(info, ArgumentInfo) else _option(name, info)
        default = inspect.signature(function).parameters[name].default
        told = (
            ""
            if default is inspect.Parameter.empty or default is None or default is False or default == ""
            else f"`{default}`"
        )
        yield f"| {shown} | {_taken(info, hint)} | {told} | {_cell(info.help or '')} |"
    yield ""
    if command.epilog:
        examples = re.findall(r"\[cyan\](.*?)\[/cyan\]", command.epilog)
        yield f"Example: {', '.join(f'`{example}`' for example in examples)}\n"


def _parameters(function: Callable[..., Any]) -> Iterator[tuple[str, Any, Any]]:
    hints = get_type_hints(function, include_extras=True)
    for name in inspect.signature(function).parameters:
        hint = hints[name]
        if get_origin(hint) is not Annotated:
            continue
        info = next(extra for extra in hint.__metadata__ if isinstance(extra, ArgumentInfo | OptionInfo))
        yield name, info, get_args(hint)[0]


def _required(function: Callable[..., Any], name: str) -> bool:
    return inspect.signature(function).parameters[name].default is inspect.Parameter.empty


def _option(name: str, info: OptionInfo) -> str:
    given = (
        info.default,
        *(info.param_decls or ()),
    )  # Annotated options have their first name as the default
    words = [word for word in given if isinstance(word, str) and word.startswith("-")]
    words = words or [f"--{name.replace('_', '-')}"]
    return ", ".join(f"`{word}`" for word in words)


def _taken(info: Any, hint: Any) -> str:
    if info.metavar:
        return f"`{info.metavar}`".replace("|", r"\|")
    kinds = [kind for kind in choices(hint) if kind is not type(None)]
    names = []
    for kind in kinds:
        if get_origin(kind) is list:
            names.append("one or more" if isinstance(info, ArgumentInfo) else "repeatable")
        elif hasattr(kind, "__members__"):
            names.append(", ".join(f"`{member.value}`" for member in kind))
        else:
            names.append({"int": "number", "str": "text", "bool": "", "Path": "file"}.get(kind.__name__, kind.__name__))
    return " or ".join(names)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


if __name__ == "__main__":
    main(*(Path(folder) for folder in sys.argv[1:2]))
