"""No file speaks of the place where it was written, and the package holds nothing unfinished."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MADE_BY_TOOLS = frozenset(("build", "dist", "out", "__pycache__"))
BINARY = frozenset((".png", ".gz", ".npz", ".pt2", ".pyc", ".pdf", ".ico"))


def _any_of(*words: str) -> str:
    """Words are given in pieces with a bar between, so that this file does not hold them itself."""
    return "|".join(re.escape(word.replace("|", "")) for word in words)


RULES = {
    "a folder of somebody's computer": (
        rf"(?<![\w.])(?:{_any_of('/ho|me/', '/Us|ers/', '/ro|ot/', '/wo|rk/', '/o|pt/', '/m|nt/')})\w"
        rf"|\b[A-Z]:\\\\?{_any_of('Us|ers')}"
    ),
    "a host that serves packages": _any_of(
        "py|pi.org",
        "python|hosted.org",
        "npm|js.org",
        "npm|js.com",
        "ana|conda.org",
        "arti|factory",
        "dev|pi.",
    ),
    "a tool of one workplace": (
        rf"(?i:\b(?:{_any_of('an|thropic', 'cla|ude', 'chat|gpt', 'open|ai', 'co|pilot', 'sub|agent')})\b)"
        rf"|\b(?:{_any_of('MIS|SION.md', 'TE|AM.md', 'CLA|UDE.md', 'AGE|NTS.md')})"
        rf"|\b(?:{_any_of('issues sh|ow', 'issues res|olved')})\b"
    ),
}
UNFINISHED = rf"\b(?:{_any_of('TO|DO', 'FIX|ME', 'X|XX')})\b"


def findings(text: str, pattern: str) -> list[tuple[int, str]]:
    """Lines on which a pattern is found, with what was found."""
    return [
        (number, match.group())
        for number, line in enumerate(text.splitlines(), start=1)
        for match in re.finditer(pattern, line)
    ]


def project_files() -> Iterator[Path]:
    """Every text file of the project; hidden folders (but .ci) and what tools make are left out."""
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        hidden = any(part.startswith(".") for part in parts[:-1] if part != ".ci")
        made = any(part in MADE_BY_TOOLS or part.endswith(".egg-info") for part in parts)
        if path.is_file() and not hidden and not made and path.suffix not in BINARY:
            yield path


FILES = tuple(project_files())


def _where(path: Path, found: list[tuple[int, str]]) -> list[str]:
    return [f"{path.relative_to(ROOT)}:{line}: {text}" for line, text in found]


def test_the_whole_project_is_looked_at() -> None:
    shown = {str(path.relative_to(ROOT)) for path in FILES}
    assert {"README.md", "Makefile", ".ci/run", "hwsim/errors.py", "machines/course_cpu.yaml"} <= shown


@pytest.mark.parametrize("rule", RULES)
def test_no_file_names(rule: str) -> None:
    found = []
    for path in FILES:
        found += _where(path, findings(path.read_text(encoding="utf-8"), RULES[rule]))
    assert found == []


def test_nothing_in_the_package_is_left_for_later() -> None:
    found = []
    for path in FILES:
        if path.relative_to(ROOT).parts[0] == "hwsim":
            found += _where(path, findings(path.read_text(encoding="utf-8"), UNFINISHED))
    assert found == []


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("a folder of somebody's computer", "read /ho" + "me/ann/data.csv"),
        ("a folder of somebody's computer", "'/Us" + "ers/ann'"),
        ("a folder of somebody's computer", "C:\\Us" + "ers\\ann"),
        ("a folder of somebody's computer", "see /wo" + "rk/x.py"),
        ("a host that serves packages", "https://py" + "pi.org/simple"),
        ("a tool of one workplace", "made with Chat" + "GPT"),
        ("a tool of one workplace", "see MIS" + "SION.md"),
    ],
)
def test_an_offending_line_is_found(rule: str, text: str) -> None:
    assert findings(f"fine\n{text}\n", RULES[rule])[0][0] == 2


@pytest.mark.parametrize(
    "text",
    ["~/.cache/hwsim", "docs/home/page.md", "a working set", "core, SM and array agents", "pip install"],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert not any(findings(text, pattern) for pattern in RULES.values())


def test_a_note_to_self_is_found_and_a_word_that_holds_one_is_not() -> None:
    assert findings("x = 1  # TO" + "DO: y", UNFINISHED) == [(1, "TO" + "DO")]
    assert findings("mastodon, TO" + "DOs_list", UNFINISHED) == []
