"""Serving: requests come, a scheduler makes steps of them, steps take time; an event simulation of one or more engines.

Every replica is an agent: it plans a step, waits as long as the step takes, and gives out the tokens. What a step takes
is asked of a price, so that the simulation knows nothing of models and machines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import Any, Protocol

from hwsim.engine import FEMTOSECONDS, Event, Floor, Span, Wait
from hwsim.errors import InputError
from hwsim.systems.scheduler import Job, Request, Scheduler, SchedulerCounts, StepWork, Stream
from hwsim.systems.spec import EngineSpec, Timed, as_femtoseconds

MOST_SPANS = 50_000
TOLD_EVERY = 64
"""Finished requests between two words of progress."""


@dataclass(frozen=True)
class StepTime:
    """What a step costs: seconds of the devices by part, and joules of all devices together."""

    prompts: float
    decoding: float
    communication: float
    joules: float | None = None

    @property
    def seconds(self) -> float:
        return self.prompts + self.decoding + self.communication


class Price(Protocol):
    """What serving asks of a model on a system."""

    @property
    def idle_watts(self) -> float | None:
        """Power of the devices while they wait; None where the machine has no prices."""

    def blocks_of(self, block: int) -> int:
        """Blocks of keys and values of so many tokens that fit beside the weights."""

    def step(self, work: StepWork) -> StepTime:
        """The same work has the same price, always."""


@dataclass(frozen=True)
class Served:
    """What became of one request; times in femtoseconds."""

    number: int
    prompt: int
    output: int
    asked_fs: int
    first_fs: int
    done_fs: int
    preempted: int

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return (self.first_fs - self.asked_fs) / FEMTOSECONDS

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first; None where there is only one."""
        return (self.done_fs - self.first_fs) / FEMTOSECONDS / (self.output - 1) if self.output > 1 else None

    @property
    def latency(self) -> float:
        return (self.done_fs - self.asked_fs) / FEMTOSECONDS


@dataclass
class Account:
    """Where the time of a replica went, in femtoseconds, and what else was counted."""

    prompts_fs: int = 0
    decoding_fs: int = 0
    communication_fs: int = 0
    host_fs: int = 0
    """Beyond what the devices hide."""
    steps: int = 0
    joules: float = 0.0
    priced: bool = True
    block_fs: int = 0
    """Blocks in use times time."""
    most_blocks: int = 0
    batch_fs: int = 0
    """Requests in the batch times time."""

    @property
    def busy_fs(self) -> int:
        return self.prompts_fs + self.decoding_fs + self.communication_fs + self.host_fs


@dataclass(frozen=True)
class Percentiles:
    """Of one measure over all requests."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: list[float]) -> Percentiles | None:
        """By nearest rank; None where nothing was measured."""
        if not values:
            return None
        ordered = sorted(values)

        def rank(share: float) -> float:
            return ordered[max(0, ceil(share * len(ordered)) - 1)]

        return cls(sum(ordered) / len(ordered), rank(0.5), rank(0.9), rank(0.99))


@dataclass(frozen=True)
class ServeResult(Timed):
    """What a stream of requests experienced, and what it cost."""

    words: str
    replicas: int
    served: tuple[Served, ...]
    elapsed_fs: int
    accounts: tuple[Account, ...]
    counters: tuple[SchedulerCounts, ...]
    blocks: int
    idle_joules: float
    spans: tuple[Span, ...] = ()
    users: int | None = None
    """Who come back when they are answered; None where arrivals are given."""

    @property
    def ttft(self) -> Percentiles:
        found = Percentiles.of([each.ttft for each in self.served])
        assert found is not None
        return found

    @property
    def tpot(self) -> Percentiles | None:
        return Percentiles.of([each.tpot for each in self.served if each.tpot is not None])

    @property
    def latency(self) -> Percentiles:
        found = Percentiles.of([each.latency for each in self.served])
        assert found is not None
        return found

    @property
    def output_tokens(self) -> int:
        return sum(each.output for each in self.served)

    @property
    def prompt_tokens(self) -> int:
        return sum(each.prompt for each in self.served)

    @property
    def output_per_s(self) -> float:
        return self.output_tokens / self.seconds if self.elapsed_fs else 0.0

    @property
    def requests_per_s(self) -> float:
        return len(self.served) / self.seconds if self.elapsed_fs else 0.0

    @property
    def kv_mean(self) -> float:
        """Share of the blocks in use, over time."""
        total = self.elapsed_fs * self.blocks * self.replicas
        return sum(account.block_fs for account in self.accounts) / total if total else 0.0

    @property
    def kv_most(self) -> float:
        return max(account.most_blocks for account in self.accounts) / self.blocks

    @property
    def batch_mean(self) -> float:
        """Requests in a batch, over time."""
        return (
            sum(each.batch_fs for each in self.accounts) / self.elapsed_fs / self.replicas if self.elapsed_fs else 0.0
        )

    @property
    def joules(self) -> float | None:
        if not all(account.priced for account in self.accounts):
            return None
        return sum(account.joules for account in self.accounts) + self.idle_joules

    @property
    def joules_per_token(self) -> float | None:
        return self.joules / self.output_tokens if self.joules is not None else None

    @property
    def preemptions(self) -> int:
        return sum(counters.preemptions for counters in self.counters)

    @property
    def steps(self) -> int:
        return sum(account.steps for account in self.accounts)

    def shares(self) -> dict[str, float]:
        """Where the time of the replicas went; together 1."""
        total = self.elapsed_fs * self.replicas
        parts = {
            name: sum(getattr(account, f"{name}_fs") for account in self.accounts) / total
            for name in ("prompts", "decoding", "communication", "host")
        }
        return {**parts, "idle": max(0.0, 1.0 - sum(parts.values()))}

    def limit(self) -> str:
        """What limits, in words."""
        blocked, full = (sum(getattr(each, name) for each in self.counters) for name in ("blocked", "full"))
        shares = self.shares()
        if self.preemptions or blocked > self.steps / 10:
            return f"key/value memory: requests wait for blocks, {self.preemptions} were put back"
        if full > self.steps / 10:
            return "places in the batch: the engine takes no more requests at a time"
        if shares["idle"] > 0.5:
            return "nothing: the devices wait for requests most of the time"
        name = max((part for part in shares if part != "idle"), key=lambda part: shares[part])
        words = {
            "prompts": "reading prompts takes most of the time",
            "decoding": "decoding takes most of the time",
            "communication": "devices talk to each other most of the time",
            "host": "the host: devices wait for the scheduler",
        }
        return words[name]

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it; the same run gives the same bytes."""
        from dataclasses import asdict

        return {
            "load": self.words, "replicas": self.replicas, "requests": len(self.served), "seconds": self.seconds,
            "prompt_tokens": self.prompt_tokens, "output_tokens": self.output_tokens,
            "output_tokens_per_s": self.output_per_s, "requests_per_s": self.requests_per_s,
            "ttft_s": asdict(self.ttft), "tpot_s": asdict(self.tpot) if self.tpot is not None else None,
            "latency_s": asdict(self.latency), "shares": self.shares(), "limit": self.limit(),
            "kv": {"blocks": self.blocks, "mean": self.kv_mean, "most": self.kv_most}, "batch_mean": self.batch_mean,
            "steps": self.steps, "counters": [asdict(each) for each in self.counters],
            "joules": self.joules, "joules_per_token": self.joules_per_token,
        }  # fmt: skip


@dataclass
class Replica:
    """One engine on its devices."""

    floor: Floor
    name: str
    scheduler: Scheduler
    price: Price
    done: Callable[[Job], None]
    account: Account = field(default_factory=Account)
    closed: bool = False
    """Nobody will come any more."""

    def __post_init__(self) -> None:
        self._bell: Event | None = None
        self._busy_until = 0

    def add(self, request: Request) -> None:
        """Somebody sends a request; it stands in the queue when the host has read it."""
        later_fs = as_femtoseconds(self.scheduler.engine.host.arrival)
        if later_fs:
            self.floor.start(self._read(request, self.floor.now, later_fs))
        else:
            self.scheduler.add(request, self.floor.now)
            self.ring()

    def _read(self, request: Request, asked_fs: int, later_fs: int) -> Wait:
        yield self.floor.delay(later_fs)
        self.scheduler.add(request, asked_fs)
        self.ring()

    def ring(self) -> None:
        """There is something to do, or nothing will come any more."""
        if self._bell is not None and not self._bell.triggered:
            self._bell.succeed()

    def work(self) -> Wait:
        """Step after step; the engine sleeps while nobody asks."""
        while True:
            step = self.scheduler.plan()
            if step is None:
                if self.closed:
                    return
                self._bell = self.floor.event()
                yield self._bell
                continue
            begin, used, batch = self.floor.now, self.scheduler.used, len(self.scheduler.running)
            yield self.floor.delay(self._pay(step))
            passed = self.floor.now - begin
            self.account.block_fs += used * passed
            self.account.most_blocks = max(self.account.most_blocks, used)
            self.account.batch_fs += batch * passed
            if len(self.floor.spans) < MOST_SPANS:
                words = f"{step.decoding} decoding" + (f", {step.prompt_tokens} of prompts" if step.chunks else "")
                self.floor.record(self.name, words, begin, self.floor.now)
            seen = self._given_out(step)
            ended = self.scheduler.finish(step, seen)
            if seen > self.floor.now and ended:
                self.floor.start(self._answer(ended, seen - self.floor.now))
            else:
                for job in ended:
                    self.done(job)

    def _given_out(self, step: StepWork) -> int:
        """When the tokens of a step have left: a process of its own hands them on, step after step."""
        tokens = step.decoding + sum(chunk.ends_prompt for chunk in step.chunks)
        each_fs = as_femtoseconds(self.scheduler.engine.host.token)
        self._busy_until = max(self._busy_until, self.floor.now) + tokens * each_fs
        return self._busy_until

    def _answer(self, ended: list[Job], later_fs: int) -> Wait:
        yield self.floor.delay(later_fs)
        for job in ended:
            self.done(job)

    def _pay(self, step: StepWork) -> int:
        """The time of a step, at least a femtosecond; where it went is written down."""
        time, host = self.price.step(step), self.scheduler.engine.host
        parts = [round(part * FEMTOSECONDS) for part in (time.prompts, time.decoding, time.communication)]
        device_fs = sum(parts)
        count = step.decoding + len(step.chunks)
        host_fs = round((host.step.amount + count * host.request.amount) * FEMTOSECONDS)
        more_fs = max(0, host_fs - device_fs) if host.overlap else host_fs
        if device_fs + more_fs == 0:
            more_fs = 1
        account = self.account
        account.prompts_fs += parts[0]
        account.decoding_fs += parts[1]
        account.communication_fs += parts[2]
        account.host_fs += more_fs
        account.steps += 1
        if time.joules is None:
            account.priced = False
        else:
            account.joules += time.joules + float(Fraction(more_fs, FEMTOSECONDS)) * (self.price.idle_watts or 0.0)
        return device_fs + more_fs


def serve(
    stream: Stream,
    engine: EngineSpec,
    price: Price,
    *,
    replicas: int = 1,
    prefix: int = 0,
    blocks: int | None = None,
    timeline: bool = False,
    told: Callable[[int], None] | None = None,
) -> ServeResult:
    """Let a stream of requests be served; `blocks` limits keys and values further, `told` hears of progress."""
    room = price.blocks_of(engine.block)
    if blocks is not None:
        if blocks < 1:
            raise InputError(f"blocks={blocks}: at least one block of keys and values is needed")
        room = min(room, blocks)
    floor = Floor(timeline=timeline)
    served: list[Served] = []
    waiting = iter(stream.requests)
    members: list[Replica] = []

    def finished(number: int) -> Callable[[Job], None]:
        def note(job: Job) -> None:
            request = job.request
            served.append(
                Served(request.number, request.prompt, request.output, job.asked_fs, job.first_fs, job.done_fs,
                       job.preempted)
            )  # fmt: skip
            if told is not None and len(served) % TOLD_EVERY == 0:
                told(len(served))
            if stream.users is not None and (following := next(waiting, None)) is not None:
                members[number].add(following)
            if len(served) == len(stream.requests):
                _close(members)

        return note

    for number in range(replicas):
        scheduler = Scheduler(engine, room, prefix)
        name = f"engine[{number}]" if replicas > 1 else engine.name
        members.append(Replica(floor, name, scheduler, price, finished(number)))
    for request in stream.requests:
        members[0].scheduler.check(request)
    for member in members:
        floor.start(member.work())
    if stream.users is not None:
        for user in range(min(stream.users, len(stream.requests))):
            members[user % replicas].add(next(waiting))
    else:
        floor.start(_arrivals(floor, stream, members))
    floor.run()
    assert len(served) == len(stream.requests), "every request is served"
    idle_fs = sum(floor.now - member.account.busy_fs for member in members)
    idle = idle_fs / FEMTOSECONDS * (price.idle_watts or 0.0)
    return ServeResult(
        stream.words, replicas, tuple(sorted(served, key=lambda each: each.number)), floor.now,
        tuple(member.account for member in members), tuple(member.scheduler.counters for member in members), room, idle,
        tuple(floor.spans), stream.users,
    )  # fmt: skip


def _arrivals(floor: Floor, stream: Stream, members: list[Replica]) -> Wait:
    """Requests come at their times, to one replica after the other."""
    for request in stream.requests:
        assert request.arrival_fs is not None
        if request.arrival_fs > floor.now:
            yield floor.delay(request.arrival_fs - floor.now)
        members[request.number % len(members)].add(request)


def _close(members: list[Replica]) -> None:
    for member in members:
        member.closed = True
        member.ring()
