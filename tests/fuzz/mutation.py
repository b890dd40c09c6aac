"""Mutations: of trees (what YAML and JSON files hold), of text, of bytes. All from a seeded generator, all by name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

Path = tuple[str | int, ...]

NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2, 3, 7, 10**12, 10**30, 2**63, -(2**63), 2**64, int("9" * 300), 0.5, -0.0, 1e-300, 1e300,
    float("inf"), float("-inf"), float("nan"), True,
)  # fmt: skip
AMOUNTS = (
    "0", "-1", "1e400", "9" * 400, "inf", ".inf", "-.inf", "nan", ".nan", "1e-300", "1e60", "1e99", "0x10", "1_0",
    "٣", "½", "1e999999999", "-0", "",
)  # fmt: skip
UNITS = (
    "", "B", "KB", "KiB", "TiB", "GHz", "Hz", "kHz", "ns", "us", "s", "fs", "cycles", "pJ", "pJ/bit", "J", "W", "kW",
    "nm", "B/cycle", "TB/s", "B/s", "banana", "%",
)  # fmt: skip
HOSTILE = (
    "", "[/]", "[red]x[/red]", "[bold", "<script>alert(1)</script>", "<!--<script>", "]]>", "=cmd|'/C calc'!A0", "+1",
    "-1", "@x", "\x1b[31mred", "\x1b]0;title\x07", "\x9b31m", "\u202egnp.exe", "\u0000", "line\nbreak", "\r", "\t",
    "'; DROP", '"', "{{x}}", "${HOME}", "%s%n", "../../etc/passwd", "/etc/passwd", "~nosuchuser/x.yaml", "~/x.yaml",
    ".", "..", "/", "/dev/zero", "/dev/null", "./", "con", "a" * 5000, "é" * 300, "𝔘𝔫𝔦", "\ud800", "no", "null", "~",
    "1e9", "banana", "fp32", "e2m1", "inf",
)  # fmt: skip
KEYS = (
    "banana",
    "size",
    "name",
    "kind",
    "extends",
    "op",
    "format",
    "source",
    "after",
    "remove",
    "",
    "é",
    "a" * 300,
    "[/]",
    "1",
)


def paths(tree: Any, here: Path = ()) -> Iterator[Path]:
    """Every place in a tree but its root."""
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, child in children:
        yield (*here, key)
        yield from paths(child, (*here, key))


def at(tree: Any, path: Path) -> Any:
    for part in path:
        tree = tree[part]
    return tree


def put(tree: Any, path: Path, value: Any) -> None:
    at(tree, path[:-1])[path[-1]] = value


def mutate_tree(tree: Any, random: Random, times: int) -> Any:
    """A copy with some of its values, keys or groups changed."""
    tree = copy.deepcopy(tree)
    for _ in range(times):
        places = list(paths(tree))
        if not places:
            break
        path = random.choice(places)
        random.choice(_TREE_MUTATIONS)(tree, path, random)
    return tree


def strange_value(old: Any, random: Random) -> Any:
    """A value in place of another: of its kind but wrong, or of another kind."""
    choice = random.random()
    if isinstance(old, str) and old[:1].isdigit() and choice < 0.7:
        number, _, unit = old.partition(" ")
        return random.choice(
            (f"{random.choice(AMOUNTS)} {unit}", f"{number} {random.choice(UNITS)}", number, f"-{old}")
        )
    if isinstance(old, int | float) and not isinstance(old, bool) and choice < 0.7:
        return random.choice(NUMBERS)
    if choice < 0.8:
        return random.choice(HOSTILE)
    return random.choice((None, True, [], {}, [old], {"a": old}, 1, -1.5, [[[]]], {"name": "x"}))


def _replace(tree: Any, path: Path, random: Random) -> None:
    put(tree, path, strange_value(at(tree, path), random))


def _delete(tree: Any, path: Path, random: Random) -> None:
    del at(tree, path[:-1])[path[-1]]


def _rename(tree: Any, path: Path, random: Random) -> None:
    group = at(tree, path[:-1])
    if isinstance(group, dict):
        group[random.choice(KEYS)] = group.pop(path[-1])


def _add(tree: Any, path: Path, random: Random) -> None:
    group = at(tree, path)
    if isinstance(group, dict):
        group[random.choice(KEYS)] = random.choice(HOSTILE)
    elif isinstance(group, list) and group:
        group.append(copy.deepcopy(random.choice(group)))


def _swap(tree: Any, path: Path, random: Random) -> None:
    other = random.choice(list(paths(tree)))
    put(tree, path, copy.deepcopy(at(tree, other)))


def _nest(tree: Any, path: Path, random: Random) -> None:
    value = at(tree, path)
    for _ in range(random.choice((1, 5, 60))):
        value = [value] if random.random() < 0.5 else {"a": value}
    put(tree, path, value)


TreeMutation = Callable[[Any, Path, Random], None]
_TREE_MUTATIONS: tuple[TreeMutation, ...] = (
    _replace,
    _replace,
    _replace,
    _replace,
    _delete,
    _rename,
    _add,
    _swap,
    _nest,
)

_PIECES = (
    "&a ", "*a", "!!python/object/apply:os.system ['true'] ", "!!binary ", "<<: *a", "\t", "---\n", "...\n", "? ",
    "- ", "{", "}", "[", "]", "|\n", ">-\n", "%YAML 9.9\n", "\ufeff", "\u2028", "\x07", "\ud800", "extends: .\n",
    "extends: ../\n", "# ", "'", '"', "a: &x [*x]\n", "name: \"\\e[31m[/]\"\n",
)  # fmt: skip


def mutate_text(text: str, random: Random, times: int) -> str:
    """Lines and letters changed, without regard to what they mean."""
    for _ in range(times):
        lines = text.split("\n")
        line, place = random.randrange(len(lines)), random.randrange(len(text) + 1)
        match random.randrange(7):
            case 0:
                text = text[:place] + random.choice(_PIECES) + text[place:]
            case 1:
                text = text[:place] + text[place + random.choice((1, 5, 50)) :]
            case 2:
                text = "\n".join([*lines[:line], *lines[line + 1 :]])
            case 3:
                text = "\n".join([*lines[: line + 1], *lines[line:]])
            case 4:
                text = "\n".join([*lines[:line], " " * random.choice((1, 2, 7)) + lines[line], *lines[line + 1 :]])
            case 5:
                text = text[:place]
            case 6:
                text = text[:place] + random.choice(HOSTILE) + text[place:]
    return text


def mutate_bytes(data: bytes, random: Random, times: int) -> bytes:
    """Bits flipped, stretches lost, doubled or overwritten."""
    found = bytearray(data)
    for _ in range(times):
        if not found:
            break
        place = random.randrange(len(found))
        length = random.choice((1, 1, 4, 64, 1000))
        match random.randrange(6):
            case 0 | 1:
                found[place] ^= 1 << random.randrange(8)
            case 2:
                del found[place : place + length]
            case 3:
                found[place:place] = found[place : place + length]
            case 4:
                found[place : place + length] = random.randbytes(len(found[place : place + length]))
            case 5:
                del found[place:]
    return bytes(found)
