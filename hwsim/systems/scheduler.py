"""Scheduler: which requests a step works on. Continuous batching with a token budget, chunked prompts, blocks of keys
and values with a limit, and preemption. It has no clock: a step is planned, somebody says how long it took, it is
finished.

All decoding requests go on by one token in every step that decodes. So what happens to each of them is known when it
begins to decode: the step in which it ends, and the steps in which it needs a further block. A step costs as much to
plan for a thousand requests as for one.

Requests and how they come: users who wait for their answer, a rate, or a trace file.

A stream is made before the simulation, from a seed: the same words give the same requests.
"""

from __future__ import annotations

import csv
import heapq
import random
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, isfinite
from pathlib import Path

from hwsim.errors import CapacityError, InputError, Problem, SpecError
from hwsim.files import note_input
from hwsim.systems.spec import EngineSpec

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


WATERMARK = 0.01
"""Share of the blocks that stays free when a request comes in, as in vLLM."""


@dataclass
class Job:
    """A request under way."""

    request: Request
    asked_fs: int
    computed: int = 0
    """Tokens whose keys and values are there."""
    target: int = 0
    """Tokens to read before the next one can be made: the prompt, and what was made before preemption."""
    made: int = 0
    """Output tokens."""
    blocks: int = 0
    """Of its own; those of a decoding request grow with the steps since it began."""
    shared: int = 0
    """Blocks at the beginning that all requests share."""
    began: int = -1
    """The number of decoding steps before its first one; -1 while it reads its prompt."""
    base: int = 0
    """Output tokens when it began to decode."""
    first_fs: int = -1
    done_fs: int = -1
    preempted: int = 0


@dataclass(frozen=True)
class PromptChunk:
    """Tokens of a prompt that a step reads, after those that were read before."""

    job: Job
    tokens: int
    cached: int

    @property
    def ends_prompt(self) -> bool:
        return self.cached + self.tokens == self.job.target


@dataclass(frozen=True)
class StepWork:
    """What one step does: pieces of prompts, and one token for each decoding request."""

    chunks: tuple[PromptChunk, ...]
    decoding: int
    context: int
    """Tokens before the new one, all decoding requests together."""

    @property
    def prompt_tokens(self) -> int:
        return sum(chunk.tokens for chunk in self.chunks)


@dataclass
class SchedulerCounts:
    """What the scheduler did, for the report."""

    preemptions: int = 0
    reused: int = 0
    """Tokens of prompts that were there already."""
    blocked: int = 0
    """Steps in which a request waited for blocks of keys and values."""
    full: int = 0
    """Steps in which a request waited because the batch had as many as the engine takes."""
    prompt_tokens: int = 0
    output_tokens: int = 0


@dataclass
class Scheduler:
    """The batch of one engine, and those who wait for a place in it."""

    engine: EngineSpec
    blocks: int
    """Blocks of keys and values that there are."""
    prefix: int = 0
    """Tokens at the beginning of every prompt that are the same for all."""
    counters: SchedulerCounts = field(default_factory=SchedulerCounts)
    waiting: deque[Job] = field(default_factory=deque)
    free: int = field(init=False)
    running: dict[int, Job] = field(default_factory=dict)
    """In the order in which they came into the batch."""
    decoding: int = 0
    context: int = 0
    steps: int = 0
    """Decoding steps so far."""

    def __post_init__(self) -> None:
        self.free = self.blocks
        self._reading: dict[int, Job] = {}
        self._phases = [0] * self.engine.block
        self._ends: list[tuple[int, int]] = []
        self._prefix_blocks = self.prefix // self.engine.block
        self._prefix_ready = False

    # Coming in --------------------------------------------------------------------------------------------------------

    def check(self, request: Request) -> None:
        """Raises CapacityError for a request that never fits, however long it waits."""
        needed = self._blocks_for(request.prompt + request.output)
        if needed > self.blocks:
            raise CapacityError(
                f"request {request.number}: {request.prompt} + {request.output} tokens need {needed:,} blocks of keys "
                f"and values ({self.engine.block} tokens each), and there is room for {self.blocks:,}; it would never "
                "be served"
            )
        if not self.engine.chunked and request.prompt > self.engine.tokens:
            raise CapacityError(
                f"request {request.number}: its prompt of {request.prompt} tokens is longer than the token budget of a "
                f"step, {self.engine.tokens}, and {self.engine.name} does not read prompts in pieces"
            )

    def add(self, request: Request, now_fs: int) -> None:
        self.waiting.append(Job(request, now_fs, target=request.prompt))

    # A step -----------------------------------------------------------------------------------------------------------

    def plan(self) -> StepWork | None:
        """What the next step does; None where there is nothing to do."""
        prompts_first = not self.engine.mixed
        preempted = False
        if not prompts_first:
            preempted = self._make_room()
        budget = self.engine.tokens - (0 if prompts_first else self.decoding)
        chunks = self._continue(budget)
        budget -= sum(chunk.tokens for chunk in chunks)
        if not preempted:
            chunks += self._admit(budget)
        if prompts_first:
            if chunks:
                return StepWork(tuple(chunks), 0, 0)
            self._make_room()
        if not chunks and not self.decoding:
            return None
        return StepWork(tuple(chunks), self.decoding, self.context)

    def finish(self, work: StepWork, now_fs: int) -> list[Job]:
        """The step is over: tokens are there, requests end; those that ended are given back."""
        ended = []
        if work.decoding:
            self.steps += 1
            self.context += work.decoding
            self.counters.output_tokens += work.decoding
            while self._ends and self._ends[0][0] <= self.steps:
                _, number = heapq.heappop(self._ends)
                job = self.running.get(number)
                if job is not None and job.began >= 0 and self._made(job) == job.request.output:
                    ended.append(self._end(job, now_fs))
        for chunk in work.chunks:
            chunk.job.computed += chunk.tokens
            self.counters.prompt_tokens += chunk.tokens
            if chunk.ends_prompt:
                del self._reading[chunk.job.request.number]
                self._begin(chunk.job, now_fs)
                if self._made(chunk.job) == chunk.job.request.output:
                    ended.append(self._end(chunk.job, now_fs))
        return ended

    # Prompts ----------------------------------------------------------------------------------------------------------

    def _continue(self, budget: int) -> list[PromptChunk]:
        """Prompts that were begun go on."""
        chunks = []
        for job in list(self._reading.values()):
            tokens = min(budget, job.target - job.computed)
            if tokens <= 0 or not self._take(job, job.computed + tokens):
                continue
            chunks.append(PromptChunk(job, tokens, job.computed))
            budget -= tokens
        return chunks

    def _admit(self, budget: int) -> list[PromptChunk]:
        """Those who wait come in, first come first served, as far as budget, places and blocks allow."""
        chunks: list[PromptChunk] = []
        while self.waiting and budget > 0:
            job = self.waiting[0]
            if len(self.running) >= self.engine.requests:
                self.counters.full += 1
                break
            cached = self._shared_tokens(job)
            tokens = min(budget, job.target - cached)
            if tokens < job.target - cached and not (self.engine.chunked or job.preempted):
                break  # what was put back may have grown beyond a step: it is read in pieces
            job.shared = cached // self.engine.block
            if not self._take(job, cached + tokens, self._reserve()):
                job.shared = 0
                self.counters.blocked += 1
                break
            self.waiting.popleft()
            job.computed = cached
            self.counters.reused += cached
            self.running[job.request.number] = job
            self._reading[job.request.number] = job
            chunks.append(PromptChunk(job, tokens, cached))
            budget -= tokens
        return chunks

    def _reserve(self) -> int:
        """Blocks that are left when somebody comes in, so that it does not push others out at once."""
        if not self.running:
            return 0
        return max(self._needed(), ceil(self.blocks * WATERMARK))

    def _shared_tokens(self, job: Job) -> int:
        """Whole blocks at the beginning of the prompt that somebody has read before; its last token is always read."""
        if not self._prefix_ready:
            return 0
        return min(self._prefix_blocks, (job.target - 1) // self.engine.block) * self.engine.block

    # Decoding ---------------------------------------------------------------------------------------------------------

    def _begin(self, job: Job, now_fs: int) -> None:
        """The prompt has been read, and with it the next token made."""
        job.made += 1
        self.counters.output_tokens += 1
        if job.first_fs < 0:
            job.first_fs = now_fs
        if self._prefix_blocks and not self._prefix_ready and job.target >= self._prefix_blocks * self.engine.block:
            self._prefix_ready = True  # its first blocks stay, and belong to nobody
            job.blocks, job.shared = job.blocks - self._prefix_blocks, self._prefix_blocks
        job.began, job.base = self.steps, job.made
        self.decoding += 1
        self.context += job.computed
        self._phases[self._phase(job)] += 1
        heapq.heappush(self._ends, (self.steps + job.request.output - job.made, job.request.number))

    def _phase(self, job: Job) -> int:
        """Decoding steps whose number has this rest need a further block for it."""
        return (job.began + 1 - job.target) % self.engine.block

    def _made(self, job: Job) -> int:
        return job.base + self.steps - job.began

    def _end(self, job: Job, now_fs: int) -> Job:
        job.made, job.done_fs = self._made(job), now_fs
        self._leave(job)
        return job

    def _leave(self, job: Job) -> None:
        """Out of the batch; its blocks are free again."""
        del self.running[job.request.number]
        self._reading.pop(job.request.number, None)
        if job.began >= 0:
            gone = self.steps - job.began
            self.decoding -= 1
            self.context -= job.target + gone
            self._phases[self._phase(job)] -= 1
            job.blocks += self._grown(job, gone)
        self.free += job.blocks
        job.blocks = job.shared = 0

    def _grown(self, job: Job, steps: int) -> int:
        """Blocks that so many decoding steps took, beyond those of the prompt."""
        return self._blocks_for(job.target + steps) - self._blocks_for(job.target)

    def _make_room(self) -> bool:
        """Blocks for the next token of everybody who decodes; whoever came last gives way where there are too few."""
        preempted = False
        while self._needed() > self.free:
            self._preempt(next(reversed(self.running.values())))
            preempted = True
        self.free -= self._needed()
        return preempted

    def _needed(self) -> int:
        return self._phases[(self.steps + 1) % self.engine.block]

    def _preempt(self, job: Job) -> None:
        """Its keys and values are dropped; later it reads its prompt and what it had made once more."""
        if job.began >= 0:
            job.made = self._made(job)
        self._leave(job)
        self.counters.preemptions += 1
        job.preempted += 1
        job.computed, job.began = 0, -1
        job.target = job.request.prompt + job.made
        self.waiting.appendleft(job)

    # Blocks -----------------------------------------------------------------------------------------------------------

    def _take(self, job: Job, tokens: int, reserve: int = 0) -> bool:
        """Blocks for so many tokens of a request, if there are enough, and some are left beside."""
        more = max(0, self._blocks_for(tokens) - job.shared - job.blocks)
        if more and more + reserve > self.free:
            return False
        self.free -= more
        job.blocks += more
        return True

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.engine.block)

    @property
    def used(self) -> int:
        """Blocks that are taken, those that all share included."""
        return self.blocks - self.free
