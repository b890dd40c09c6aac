"""Requests and how they come: users who wait for their answer, a rate, or a trace file.

A stream is made before the simulation, from a seed: the same words give the same requests.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from pathlib import Path

from hwsim.errors import InputError, Problem, SpecError
from hwsim.files import note_input

FEMTOSECONDS = 10**15
MOST_REQUESTS = 1_000_000
MOST_TOKENS = 10_000_000
COLUMNS = ("arrival", "prompt", "output")


@dataclass(frozen=True)
class Request:
    """One request: when it comes (None: when its user has the answer to the one before), and how long it is."""

    number: int
    prompt: int
    output: int
    arrival_fs: int | None = None


@dataclass(frozen=True)
class Stream:
    """Requests in order; `users` of them are under way at a time in a closed loop, None where arrivals are given."""

    requests: tuple[Request, ...]
    users: int | None
    words: str

    @property
    def prompt_tokens(self) -> int:
        return sum(request.prompt for request in self.requests)

    @property
    def output_tokens(self) -> int:
        return sum(request.output for request in self.requests)


def closed_loop(
    users: int, prompt: int, output: int, count: int | None = None, spread: float = 0.0, seed: int = 0
) -> Stream:
    """So many users, each with one request at a time; `spread` 0.1 makes lengths 90 to 110 % of what is given."""
    if users < 1:
        raise InputError(f"load={users}: nobody asks for anything; at least one user is needed")
    count = count if count is not None else max(32, 6 * users)
    lengths = _lengths(prompt, output, _checked(count), spread, seed)
    made = tuple(Request(number, *each) for number, each in enumerate(lengths))
    return Stream(made, users, f"{users} users, {prompt} + {output} tokens")


def open_loop(
    rate: float, prompt: int, output: int, count: int | None = None, spread: float = 0.0, seed: int = 0
) -> Stream:
    """Requests at a mean rate per second, at random moments (a Poisson process)."""
    if not isfinite(rate) or rate <= 0:
        raise InputError(f"rate={rate:g}: no request ever comes; the rate is in requests per second, more than 0")
    count = _checked(count if count is not None else 200)
    clock, now = random.Random(f"arrivals {seed}"), 0.0
    made = []
    for number, each in enumerate(_lengths(prompt, output, count, spread, seed)):
        now += clock.expovariate(rate)
        made.append(Request(number, *each, round(now * FEMTOSECONDS)))
    return Stream(tuple(made), None, f"{rate:g} requests per second, {prompt} + {output} tokens")


def read_trace(path: Path) -> Stream:
    """A CSV file with arrival (seconds), prompt and output (tokens) in each line; all bad lines are told at once."""
    note_input(path)
    problems: list[Problem] = []
    found: list[tuple[float, int, int, int]] = []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.reader(file)
            header = [word.strip() for word in next(reader, [])]
            missing = [name for name in COLUMNS if name not in header]
            if missing:
                raise SpecError(
                    (Problem(str(path), 1, "", f"the column {missing[0]!r} is missing; a trace has arrival (seconds), "
                             "prompt and output (tokens)"),)
                )  # fmt: skip
            places = [header.index(name) for name in COLUMNS]
            for row in reader:
                if not any(cell.strip() for cell in row):
                    continue
                if len(found) >= MOST_REQUESTS:
                    raise InputError(f"{path}: more than {MOST_REQUESTS:,} requests")
                try:
                    found.append((*_row(row, places), reader.line_num))
                except ValueError as error:
                    problems.append(Problem(str(path), reader.line_num, "", str(error)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SpecError((Problem(str(path), 0, "", f"cannot be read as a CSV table: {error}"),)) from error
    for before, after in pairwise(found):
        if after[0] < before[0]:
            words = f"arrives at {after[0]:g} s, before the line above ({before[0]:g} s); sort the trace by arrival"
            problems.append(Problem(str(path), after[3], "arrival", words))
            break
    if problems:
        raise SpecError(tuple(sorted(problems, key=lambda problem: problem.line)[:20]))
    if not found:
        raise SpecError((Problem(str(path), 1, "", "the trace has no requests"),))
    made = tuple(
        Request(number, prompt, output, round(arrival * FEMTOSECONDS))
        for number, (arrival, prompt, output, _) in enumerate(found)
    )
    return Stream(made, None, path.name)


def _row(row: Sequence[str], places: Sequence[int]) -> tuple[float, int, int]:
    if len(row) <= max(places):
        raise ValueError(f"has {len(row)} fields, and arrival, prompt and output are needed")
    arrival = float("nan")
    with suppress(ValueError):
        arrival = float(row[places[0]])
    if not isfinite(arrival) or not 0 <= arrival <= 1e9:
        raise ValueError(f"arrival: '{row[places[0]].strip()}' is not a time in seconds")
    numbers = []
    for name, place in zip(COLUMNS[1:], places[1:], strict=True):
        text = row[place].strip()
        if not text.isdecimal() or not 1 <= int(text) <= MOST_TOKENS:
            raise ValueError(f"{name}: '{text}' is not a number of tokens from 1 to {MOST_TOKENS:,}")
        numbers.append(int(text))
    return arrival, numbers[0], numbers[1]


def _lengths(prompt: int, output: int, count: int, spread: float, seed: int) -> list[tuple[int, int]]:
    for name, tokens in (("prompt", prompt), ("generate", output)):
        if not 1 <= tokens <= MOST_TOKENS:
            raise InputError(f"{name}={tokens}: from 1 to {MOST_TOKENS:,} tokens")
    if not 0 <= spread < 1:
        raise InputError(f"spread={spread:g}: a share of the length, from 0 to below 1")
    if not spread:
        return [(prompt, output)] * count
    chance = random.Random(f"lengths {seed}")
    ends = [(max(1, round(tokens * (1 - spread))), round(tokens * (1 + spread))) for tokens in (prompt, output)]
    return [(chance.randint(*ends[0]), chance.randint(*ends[1])) for _ in range(count)]


def _checked(count: int) -> int:
    if not 1 <= count <= MOST_REQUESTS:
        raise InputError(f"requests={count}: from 1 to {MOST_REQUESTS:,}")
    return count
