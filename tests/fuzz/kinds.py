"""What is fuzzed: each kind makes a case from a number, the same one every time."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import yaml

from hwsim.catalog import shipped_folder
from tests.fuzz.case import Case, _call
from tests.fuzz.mutation import HOSTILE, NUMBERS, at, mutate_bytes, mutate_text, mutate_tree, paths, put, strange_value

MACHINES = (
    "course_cpu",
    "zen3",
    "a100_40",
    "t4",
    "tpu_v1",
    "gemmini16",
    "eyeriss",
    "ladder_asic",
    "mali_g78",
    "ladder_gpu",
)
WORKLOADS = (
    "matmul_tiled", "matmul", "conv2d", "maxpool", "add", "softmax", "layernorm",
    "attention_fused", "attention_naive", "formula_matmul", "sum_columns", "pointer_chase", "stream_read",
    "resnet_block", "embedding", "matvec", "transpose",
)  # fmt: skip
SMALL = {"course_cpu": "matmul_tiled n=8 tile=4", "eyeriss": "conv2d ci=2 co=2 height=6"}
OTHER = "matmul n=8"


def machine(number: int) -> Case:
    """A machine file with something wrong: it is checked and, where that is fine, runs a small product."""
    random = Random(f"machine {number}")
    name = random.choice(MACHINES)
    text = _machine_text(name)
    if random.random() < 0.75:
        tree = mutate_tree(yaml.safe_load(text), random, random.choice((1, 1, 1, 2, 4)))
        text = dump(tree)
    else:
        text = mutate_text(text, random, random.choice((1, 1, 2, 5)))
    if random.random() < 0.1:
        text = (
            f"format: 1\nname: m\nextends: {random.choice((*HOSTILE[:40], 'course_cpu', 'm.yaml', 'n.yaml', 'sub'))}\n"
        )
    files = {"m.yaml": encoded(text), "n.yaml": b"format: 1\nname: n\nextends: m.yaml\n", "sub/x.yaml": b"a: 1\n"}
    run = ("run", "./m.yaml", *SMALL.get(name, OTHER).split(), "--no-math", "--json", "-")
    look = random.choice((("show", "m.yaml"), ("show", "m.yaml", "--resolved"), ("show", "m.yaml", "--diagram")))
    return Case("machine", files, (("check", "m.yaml"), look, run))


def table(number: int) -> Case:
    """An energy table with something wrong, and a machine that needs it."""
    random = Random(f"table {number}")
    tree = yaml.safe_load((shipped_folder("machine") / "energy" / "cmos_45nm.yaml").read_text())
    tree["name"] = "mine"
    tree = mutate_tree(tree, random, random.choice((1, 1, 2, 3)))
    if random.random() < 0.2 and isinstance(tree, dict):
        tree["between"] = random.choice(
            (["mine", "mine"], ["mine", "cmos_7nm"], ["cmos_45nm", "cmos_7nm"], ["x", "y"], [1], "a")
        )
    use = "format: 1\nname: m\nextends: course_cpu\nenergy: {node: 45 nm, table: mine, instruction: in_order}\n"
    files = {"machines/energy/mine.yaml": encoded(dump(tree)), "m.yaml": use.encode()}
    run = ("run", "./m.yaml", "matmul_tiled", "n=8", "tile=4", "--no-math", "--json", "-")
    return Case("table", files, (("check", "machines/energy/mine.yaml"), ("check", "m.yaml"), run))


def workload(number: int) -> Case:
    """A workload file with something wrong: it is checked and, where that is fine and it is small, it runs."""
    random = Random(f"workload {number}")
    name = random.choice(WORKLOADS)
    tree = _small_workload(name)
    if random.random() < 0.8:
        tree = mutate_tree(tree, random, random.choice((1, 1, 1, 2, 3)))
        text = dump(tree)
    else:
        text = mutate_text(dump(tree), random, random.choice((1, 1, 3)))
    files = {"w.yaml": encoded(text)}
    on = random.choice(("course_cpu", "course_cpu", "a100_40", "tpu_v1", "eyeriss", "ladder_asic"))
    math = ("--no-math",) if random.random() < 0.3 else ()
    run = ("run", on, "./w.yaml", "--json", "-", *math)
    return Case("workload", files, (("check", "w.yaml"), ("show", "w.yaml"), run))


CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 128, "tie_word_embeddings": True,
    "hidden_act": "silu", "sliding_window": 8, "max_position_embeddings": 64, "torch_dtype": "bfloat16",
}  # fmt: skip
FAMILIES = ("llama", "mistral", "qwen3", "gemma2", "phi", "gpt_neox", "bert", "mixtral", "qwen3_moe", "vit", "x")
LAYERS = (
    b"Layer name, IFMAP Height, IFMAP Width, Filter Height, Filter Width, Channels, Num Filter, Strides,\n"
    b"A, 9, 9, 3, 3, 2, 4, 1,\n"
)


def model(number: int) -> Case:
    """A config.json, a table of layers or a model file with something wrong: it is imported, and a model of it runs."""
    random = Random(f"model {number}")
    chosen = random.choice(("config", "config", "config", "layers", "file"))
    if chosen == "config":
        tree = {**CONFIG, "model_type": random.choice(FAMILIES), "num_local_experts": 4, "num_experts": 4}
        text = json.dumps(mutate_tree(tree, random, random.choice((1, 1, 2, 4))), default=str)
        text = mutate_text(text, random, 2) if random.random() < 0.15 else text
        name, files = "c.json", {"c.json": encoded(text)}
    elif chosen == "layers":
        name, files = "l.csv", {"l.csv": mutate_bytes(LAYERS, random, random.choice((1, 2, 4)))}
    else:
        tree = yaml.safe_load((shipped_folder("model") / "gpt2.yaml").read_text())
        tree["blocks"][1]["repeat"] = 2
        name, files = "m.yaml", {"m.yaml": encoded(dump(mutate_tree(tree, random, random.choice((1, 1, 2)))))}
    first = ("check", name) if chosen == "file" else ("import", name, "-o", "made.yaml")
    on = random.choice(("h100", "a100_40", "tpu_v4"))
    run = ("model", name, on, "prompt=8", "generate=2", "--json", "-", "--no-math")
    return Case("model", files, (first, run))


COMMANDS = (
    "run", "run", "run", "show", "check", "list", "sweep", "sweep", "compare", "roofline", "tune", "export", "report",
    "explain", "replay", "schema", "ladder",
)  # fmt: skip
PARAMETERS = (
    "n", "tile", "order", "precision", "accumulate", "chunk", "scale", "seed", "v1", "vector", "m", "k", "parallel",
    "distribution", "tile.l1.k", "tile.shared.m", "split_k", "mapping.order", "threads.bm", "banana", "",
)  # fmt: skip
VALUES = (
    "8", "16", "0", "-1", "1e9", "9" * 40, "9" * 400, "auto", "fp16", "int8", "e4m3", "ijk", "true", "none", "inf",
    "nan", "8,16", "4..16:x2", "1..9", "1..1000000:x1.000001", "1..1e9", "x", "[i,j]", "{a: 1}", "null", "0x8", "",
    "..", "1..", ":x2",
)  # fmt: skip
FIELDS = (
    "l1.size", "l1.ways", "l1.line", "dram.latency", "clock.core.frequency", "core.count", "core.simd.bits",
    "energy.node", "energy.actions.l1.read.energy", "dram.timing.trefi", "l2.shared_by", "memory", "banana",
    "l1.size.x", "",
)  # fmt: skip
SETTINGS = (
    "64 KiB", "0 B", "-1", "inf", "1e60 GHz", "9" * 300 + " ns", "1 Hz", "full", "8", "null", "[", "{a: 1}",
    "64 KB", "", "1e-300 pJ", "0 us", "0.1 nm", "banana", "\u202e",
)  # fmt: skip


def words(number: int) -> Case:
    """A command line that nobody means."""
    random = Random(f"words {number}")
    command = random.choice((*COMMANDS, random.choice(HOSTILE)))
    given = [command]
    if command in ("run", "sweep", "compare", "roofline", "tune"):
        given += [
            random.choice(("course_cpu", "zen3", "a100_40", *HOSTILE)),
            random.choice(("matmul_tiled", "add", *HOSTILE)),
        ]
        given += ["n=16", *(["tile=4"] if given[2] == "matmul_tiled" else [])]
        given += ["--no-math"] if command == "run" and random.random() < 0.5 else []
        given += ["--yes"] if command == "sweep" and random.random() < 0.3 else []
    elif command in ("show", "check", "export", "report", "explain", "ladder"):
        given.append(random.choice(("course_cpu", "matmul_tiled", "x.txt", "empty.json", "sub", "a.db", *HOSTILE)))
    elif command == "replay":
        given += ["course_cpu", random.choice(("x.txt", "t.din", "sub", "/dev/null", *HOSTILE))]
    for _ in range(random.choice((0, 1, 1, 2, 3))):
        match random.randrange(5):
            case 0 | 1:
                given.append(f"{random.choice(PARAMETERS)}={random.choice(VALUES)}")
            case 2:
                given += ["--set", f"{random.choice(FIELDS)}={random.choice(SETTINGS)}"]
            case 3:
                given.append(
                    random.choice(
                        ("--json", "--plot", "--seed", "--jobs", "--limit", "--resolved", "--strict", "--nope", "-")
                    )
                )
            case 4:
                given.insert(random.randrange(len(given) + 1), random.choice(HOSTILE))
    given = [word.replace("\0", "") for word in given if word not in ("validate",)]
    files = {"x.txt": b"hello\n", "empty.json": b"", "t.din": b"0 1000\n1 2000\n", "sub/y.yaml": b"a: 1\n"}
    return Case("words", files, (tuple(given),))


def trace(number: int) -> Case:
    """A damaged trace: din, lackey, npz, any of them in gzip."""
    random = Random(f"trace {number}")
    name = random.choice(("t.din", "t.lackey", "t.npz", "t.gz", "z.npz"))
    times = random.choice((1, 1, 2, 8))
    content = _strange_archive(random) if name == "z.npz" else mutate_bytes(_traces()[name], random, times)
    if name == "t.gz" and random.random() < 0.3:
        content = gzip.compress(mutate_bytes(_traces()["t.din"], random, times))
    form = ("--format", random.choice(("din", "lackey", "npz"))) if random.random() < 0.2 else ()
    return Case(
        "trace", {name: content}, (("replay", random.choice(("course_cpu", "zen3")), name, *form, "--json", "-"),)
    )


def result(number: int) -> Case:
    """A damaged result: what cannot be must be refused, by `explain` and by `report`."""
    random = Random(f"result {number}")
    whole = random.choice(_results())
    command = random.choice(
        (("explain", "r.json"), ("explain", "r.json", "--json"), ("report", "r.json", "-o", "r.html"))
    )
    if random.random() < 0.3:
        text = mutate_text(json.dumps(whole, indent=2), random, random.choice((1, 1, 3)))
        return Case("result", {"r.json": encoded(text)}, (command,))
    tree = json.loads(json.dumps(whole))
    path = random.choice(list(paths(tree)))
    old = at(tree, path)
    free = "resolved" in path or "use" in path or path[0] in ("numeric", "error", "warnings")
    must = False
    if isinstance(path[-1], str) and random.random() < 0.3:
        del at(tree, path[:-1])[path[-1]]
        must = len(path) == 1
    else:
        new = strange_value(old, random)
        put(tree, path, new)
        wrong = isinstance(new, int | float) and not isinstance(new, bool) and not 0 <= new < 1e300
        must = not free and isinstance(old, int | float) and not isinstance(old, bool) and wrong
    return Case("result", {"r.json": encoded(json.dumps(tree))}, (command,), must_refuse=must)


SWEEP = ("sweep", "course_cpu", "matmul_tiled", "n=8", "tile=2,4", "--jobs", "1", "--out")
STORE_COMMANDS = (
    ("export", "s.db", "--format", "csv"),
    ("export", "s.db", "--format", "json"),
    ("report", "s.db", "-o", "s.html"),
    (*SWEEP, "s.db"),
)


def store(number: int) -> Case:
    """A damaged store of a sweep: bytes of the file, or what is written in its tables."""
    random = Random(f"store {number}")
    content = _store()
    if random.random() < 0.6:
        content = mutate_bytes(content, random, random.choice((1, 1, 2, 8)))
    else:
        content = _mutate_rows(content, random)
    command = random.choice(STORE_COMMANDS)
    return Case("store", {"s.db": content}, (command,))


KINDS: dict[str, tuple[Callable[[int], Case], float]] = {
    "machine": (machine, 0.17),
    "workload": (workload, 0.16),
    "model": (model, 0.11),
    "words": (words, 0.14),
    "trace": (trace, 0.11),
    "result": (result, 0.11),
    "store": (store, 0.1),
    "table": (table, 0.1),
}
"""How a case of each kind is made, and its share of all cases."""


def cases(total: int) -> list[tuple[str, int]]:
    """So many cases, by kind and number."""
    return [(kind, number) for kind, (_, share) in KINDS.items() for number in range(round(total * share))]


def dump(tree: Any) -> str:
    """YAML as a person could have written it, also of what no loader would make."""
    return yaml.dump(tree, sort_keys=False, allow_unicode=True, width=1000)


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


@lru_cache
def _machine_text(name: str) -> str:
    return (shipped_folder("machine") / f"{name}.yaml").read_text()


@lru_cache
def _small_tree(name: str) -> str:
    tree = yaml.safe_load((shipped_folder("workload") / f"{name}.yaml").read_text())
    for group, most in (("sizes", 8), ("schedule", 4)):
        for path in paths(tree.get(group, {})):
            if isinstance(at(tree[group], path), int) and at(tree[group], path) > most:
                put(tree[group], path, most)
    if name == "pointer_chase":
        tree["sizes"] |= {"bytes": "1 KiB", "steps": 100}
    if name == "stream_read":
        tree["sizes"]["bytes"] = "1 KiB"
    return json.dumps(tree)


def _small_workload(name: str) -> Any:
    return json.loads(_small_tree(name))


@lru_cache
def _traces() -> dict[str, bytes]:
    random = np.random.default_rng(0)
    addresses = random.integers(0, 1 << 20, 200, dtype=np.uint64)
    din = "".join(f"{number % 3} {address:x} 4\n" for number, address in enumerate(addresses)).encode()
    lackey = "".join(f" {'LSM'[number % 3]} {address:08x},8\n" for number, address in enumerate(addresses)).encode()
    archive = io.BytesIO()
    np.savez(archive, addr=addresses, write=addresses % 2 == 0, size=np.full(200, 4, np.int32))
    return {
        "t.din": din,
        "t.lackey": b"==1== lackey\n" + lackey,
        "t.npz": archive.getvalue(),
        "t.gz": gzip.compress(din),
    }


def _strange_archive(random: Random) -> bytes:
    """A whole archive with arrays that no trace has: other types, lengths, shapes, also in their headers alone."""
    lengths = random.choice(((5, 5), (5, 4), (0, 0), (1, 1)))
    kinds = ("uint64", "int64", "float64", "bool", "U4", "complex64", "uint8", "M8[s]", "V8")
    arrays = {
        "addr": np.zeros(lengths[0], random.choice(("uint64", "uint64", *kinds))),
        "write": np.zeros(lengths[1], random.choice(("bool", "bool", *kinds))),
    }
    if random.random() < 0.5:
        sizes = np.full(lengths[0], random.choice((0, 1, 4, 4096, 4097, 100)))
        arrays["size"] = sizes.astype(random.choice(("int64", "uint8", "float32")))
    if random.random() < 0.2:
        arrays[random.choice(("addr", "write"))] = np.zeros((2, 2), "uint64")
    archive = io.BytesIO()
    np.savez(archive, **arrays)
    content = archive.getvalue()
    shape = f"({lengths[0]},)".encode()
    other = random.choice((b"(-5,)", b"(9e9,)", b"(5, )", b"()", b"(2**9,)", b"(True,)", b"('a',)"))
    return (
        content.replace(shape, other.ljust(len(shape))[: max(len(shape), len(other))])
        if random.random() < 0.5
        else content
    )


@lru_cache
def _results() -> tuple[dict[str, Any], ...]:
    runs = (
        ("course_cpu", "matmul_tiled", "n=16", "tile=4"),
        ("a100_40", "matmul", "n=64", "precision=fp16"),
        ("tpu_v1", "matmul", "n=16", "--no-math"),
        ("eyeriss", "conv2d", "ci=2", "co=2", "height=6", "--no-math"),
    )
    return tuple(json.loads(_call(("run", *run, "--json", "-"))[1]) for run in runs)


@lru_cache
def _store() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "s.db"
        code, out, err = _call((*SWEEP, str(file)))
        assert code == 0, out + err
        return file.read_bytes()


def _mutate_rows(content: bytes, random: Random) -> bytes:
    """What the tables hold, cell by cell."""
    import sqlite3

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "s.db"
        file.write_bytes(content)
        with sqlite3.connect(file) as database:
            tables = [row[0] for row in database.execute("select name from sqlite_master where type = 'table'")]
            for _ in range(random.choice((1, 1, 3))):
                name = random.choice(tables)
                columns = [row[1] for row in database.execute(f"pragma table_info({name})")]
                column = random.choice(columns)
                key = columns[0]
                rows = database.execute(f"select {key}, {column} from {name}").fetchall()
                if not rows:
                    continue
                place, old = random.choice(rows)
                new: Any = random.choice(
                    (None, -1, "", "banana", b"\xff\xfe", "[]", "{}", '{"a": 1}', 2**62, 1.5, *NUMBERS[:5])
                )
                if isinstance(old, str) and random.random() < 0.5:
                    new = mutate_text(old, random, 1).encode("utf-8", "replace").decode()
                with contextlib.suppress(sqlite3.Error):
                    database.execute(f"update or ignore {name} set {column} = ? where {key} = ?", (new, place))
        database.close()
        return file.read_bytes()
