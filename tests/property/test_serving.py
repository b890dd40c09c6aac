"""Whatever comes: tokens are conserved, every request is served, blocks come back, and twice gives the same bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwsim.errors import CapacityError, InputError, SpecError
from hwsim.systems.scheduler import Request, Scheduler, StepWork, Stream, closed_loop, open_loop, read_trace
from hwsim.systems.serve import ServeResult, StepTime, serve
from hwsim.systems.spec import EngineSpec


def engine(**changes: Any) -> EngineSpec:
    host = {"step": "0 s", "request": "0 s", "overlap": True, "source": "made up"}
    fields = {
        "format": 1, "name": "made_up", "description": "", "tokens": 512, "requests": 64, "block": 16, "memory": 0.9,
        "chunked": True, "mixed": True, "library": "nccl", "host": host, "source": "made up",
    }  # fmt: skip
    return EngineSpec.model_validate({**fields, **changes})


@dataclass
class Linear:
    """A step takes a millisecond, and a microsecond for each token of a prompt."""

    blocks: int = 100_000
    idle_watts: float | None = 100.0
    step_s: float = 1e-3
    token_s: float = 1e-6

    def blocks_of(self, block: int) -> int:
        return self.blocks

    def step(self, work: StepWork) -> StepTime:
        return StepTime(work.prompt_tokens * self.token_s, self.step_s if work.decoding else 0.0, 0.0, 1.0)


def check(result: ServeResult, stream: Stream) -> None:
    """Nothing is lost and nothing invented."""
    assert [each.number for each in result.served] == [each.number for each in stream.requests]
    assert result.output_tokens == stream.output_tokens == sum(each.output_tokens for each in result.counters)
    read = sum(each.prompt_tokens + each.reused for each in result.counters)
    assert read >= stream.prompt_tokens
    if not result.preemptions:
        assert read == stream.prompt_tokens
    for each in result.served:
        assert each.asked_fs < each.first_fs <= each.done_fs <= result.elapsed_fs
    assert sum(result.shares().values()) == pytest.approx(1)


requests = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 60), st.integers(0, 10**13)), min_size=1, max_size=40)


@settings(max_examples=80, deadline=None)
@given(
    given_requests=requests, users=st.one_of(st.none(), st.integers(1, 20)), blocks=st.integers(23, 60),
    mixed=st.booleans(), chunked=st.booleans(), prefix=st.sampled_from([0, 8, 16, 50]), replicas=st.integers(1, 3),
)  # fmt: skip
def test_tokens_are_conserved_with_few_blocks_preemption_chunks_and_prefixes(
    given_requests: list[tuple[int, int, int]], users: int | None, blocks: int, mixed: bool, chunked: bool, prefix: int,
    replicas: int,
) -> None:  # fmt: skip
    ordered = sorted(given_requests, key=lambda each: each[2])
    made = tuple(Request(n, p, o, None if users else at) for n, (p, o, at) in enumerate(ordered))
    stream = Stream(made, users, "made up")
    chosen = engine(mixed=mixed, chunked=chunked, requests=8)
    first, second = (serve(stream, chosen, Linear(blocks), replicas=replicas, prefix=prefix) for _ in range(2))
    check(first, stream)
    assert json.dumps(first.to_dict()) == json.dumps(second.to_dict())
    assert first.kv_most <= 1


def test_all_blocks_come_back() -> None:
    scheduler = Scheduler(engine(requests=4), 30)
    for number in range(12):
        scheduler.add(Request(number, 100, 50), 0)
    while (work := scheduler.plan()) is not None:
        scheduler.finish(work, 1)
    assert scheduler.counters.preemptions > 0
    assert (scheduler.free, scheduler.decoding, scheduler.context) == (30, 0, 0)


def test_one_user_waits_for_prompt_and_steps_and_nothing_else() -> None:
    result = serve(closed_loop(1, 500, 11, 3), engine(), Linear())
    for each in result.served:
        assert each.ttft == pytest.approx(500e-6)
        assert each.tpot == pytest.approx(1e-3)
    assert result.seconds == pytest.approx(3 * (500e-6 + 10e-3))


def test_time_per_token_follows_the_closed_form() -> None:
    """TPOT = step + (b-1)/osl · prefill: each of the others reads one prompt while a request makes its tokens."""
    b, osl = 16, 128
    result = serve(closed_loop(b, 400, osl, 40 * b, spread=0.3, seed=1), engine(), Linear())
    formula = 1e-3 + (b - 1) / osl * 400e-6
    assert result.tpot is not None
    assert result.tpot.mean == pytest.approx(formula, rel=0.05)


def test_more_users_bring_throughput_and_longer_waits() -> None:
    few, many = (serve(closed_loop(users, 200, 50), engine(), Linear()) for users in (1, 16))
    assert many.output_per_s > 8 * few.output_per_s
    assert many.tpot is not None and few.tpot is not None and many.tpot.p50 > few.tpot.p50


def test_prompts_first_makes_decoding_wait() -> None:
    """Apart, prompts are read before anybody decodes further: first tokens come earlier."""
    stream = open_loop(50, 400, 40, 200)
    price = Linear(token_s=100e-6)
    together, apart = (serve(stream, engine(mixed=mixed), price) for mixed in (True, False))
    assert apart.ttft.mean < together.ttft.mean


def test_a_shared_prefix_is_read_once() -> None:
    stream = closed_loop(4, 320, 8, 50)
    plain, shared = (serve(stream, engine(), Linear(), prefix=prefix) for prefix in (0, 256))
    assert sum(each.reused for each in shared.counters) >= 40 * 256
    assert shared.ttft.mean < plain.ttft.mean


def test_the_host_counts_where_it_is_slower() -> None:
    host = {"step": "3 ms", "request": "0 s", "overlap": True, "source": "made up"}
    hidden = serve(closed_loop(1, 16, 11, 2), engine(host=host), Linear())
    added = serve(closed_loop(1, 16, 11, 2), engine(host={**host, "overlap": False}), Linear())
    assert hidden.tpot is not None and added.tpot is not None
    assert hidden.tpot.p50 == pytest.approx(3e-3)
    assert added.tpot.p50 == pytest.approx(4e-3)
    assert hidden.limit().startswith("the host")


def test_a_request_is_read_before_it_stands_in_the_queue() -> None:
    """5 ms to be read, 500 µs of prompt; then steps of 1 ms, which nothing delays."""
    host = {"step": "0 s", "request": "0 s", "overlap": True, "arrival": "5 ms", "source": "made up"}
    result = serve(closed_loop(1, 500, 11, 3), engine(host=host), Linear())
    assert all(each.ttft == pytest.approx(5.5e-3) and each.tpot == pytest.approx(1e-3) for each in result.served)


def test_tokens_wait_in_line_where_steps_make_them_faster_than_they_are_given_out() -> None:
    """40 users, steps of 1 ms: at 20 µs a token the line is empty after each step, 0.8 ms; at 50 µs 20,000 tokens a
    second leave at most, the time per token is 40 x 50 µs, and first tokens stand behind others."""
    host = {"step": "0 s", "request": "0 s", "overlap": True, "source": "made up"}
    stream = closed_loop(40, 16, 100, 400, spread=0.5)
    fast, slow = (serve(stream, engine(host={**host, "token": token}), Linear()) for token in ("20 us", "50 us"))
    assert fast.tpot is not None and slow.tpot is not None
    assert fast.tpot.mean == pytest.approx(1e-3, rel=0.05)
    assert slow.output_per_s == pytest.approx(20_000, rel=0.03)
    assert slow.ttft.p50 > 10 * fast.ttft.p50
    check(slow, stream)


def test_a_prompt_that_was_put_back_is_read_in_pieces_where_it_has_outgrown_a_step() -> None:
    stream = closed_loop(8, 500, 100, 16)
    result = serve(stream, engine(chunked=False, tokens=520), Linear(70))
    assert result.preemptions
    check(result, stream)


def test_a_request_that_never_fits_is_refused_before_anything_runs() -> None:
    with pytest.raises(CapacityError, match=r"request 0: 500 \+ 100 tokens need 38 blocks.*room for 37"):
        serve(closed_loop(1, 500, 100, 1), engine(), Linear(37))
    serve(closed_loop(1, 500, 100, 1), engine(), Linear(38))
    with pytest.raises(CapacityError, match="does not read prompts in pieces"):
        serve(closed_loop(1, 513, 1, 1), engine(chunked=False), Linear())


def test_no_load_is_no_question() -> None:
    with pytest.raises(InputError, match="nobody asks"):
        closed_loop(0, 10, 10)
    with pytest.raises(InputError, match="no request ever comes"):
        open_loop(0.0, 10, 10)


def test_all_bad_lines_of_a_trace_are_told_with_their_numbers(tmp_path: Any) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("arrival,prompt,output\n0,10,5\n-1,10,5\n1,ten,5\n2,10,0\n3,10\n", encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        read_trace(file)
    assert [problem.line for problem in caught.value.problems] == [3, 4, 5, 6]
    file.write_text("arrival,prompt,output\n2,10,5\n1,10,5\n", encoding="utf-8")
    with pytest.raises(SpecError, match="sort the trace"):
        read_trace(file)
    file.write_text("arrival,prompt,output\n", encoding="utf-8")
    with pytest.raises(SpecError, match="no requests"):
        read_trace(file)
    file.write_text("when,prompt,output\n0,1,1\n", encoding="utf-8")
    with pytest.raises(SpecError, match="'arrival' is missing"):
        read_trace(file)


def test_a_trace_is_served_in_its_order(tmp_path: Any) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("prompt,arrival,output\n10,0,5\n\n20,0.5,6\n", encoding="utf-8")
    stream = read_trace(file)
    assert [(each.prompt, each.output, each.arrival_fs) for each in stream.requests] == [
        (10, 5, 0), (20, 6, 5 * 10**14),
    ]  # fmt: skip
    check(serve(stream, engine(), Linear()), stream)


def test_idle_time_costs_idle_power() -> None:
    stream = replace(open_loop(1.0, 10, 2, 1))
    result = serve(stream, engine(), Linear())
    arrival = stream.requests[0].arrival_fs
    assert arrival is not None
    assert result.joules == pytest.approx(2.0 + 100.0 * arrival / 1e15)


def test_every_second_of_a_replica_is_work_talk_host_or_idleness_and_idleness_has_its_power() -> None:
    """Five users, prompts of 0.5 ms, steps of 1 ms with 0.2 ms of talk and 0.3 ms of a host that hides nothing."""

    @dataclass
    class Talking(Linear):
        def step(self, work: StepWork) -> StepTime:
            return replace(super().step(work), communication=2e-4)

    host = {"step": "300 us", "request": "0 s", "overlap": False, "source": "made up"}
    result = serve(open_loop(50, 500, 11, 20), engine(host=host), Talking(), replicas=2)
    parts = [
        sum(getattr(account, name) for account in result.accounts)
        for name in ("prompts_fs", "decoding_fs", "communication_fs", "host_fs")
    ]
    assert parts[0] == 20 * 500 * 10**9
    assert parts[2] == result.steps * 2 * 10**11
    assert parts[3] == result.steps * 3 * 10**11
    assert sum(account.busy_fs for account in result.accounts) == sum(parts)
    idle_s = (2 * result.elapsed_fs - sum(parts)) / 1e15
    assert result.idle_joules == pytest.approx(100.0 * idle_s)
    assert result.shares()["idle"] == pytest.approx(idle_s / 2 / result.seconds)
    assert result.joules == pytest.approx(result.steps * (1.0 + 100.0 * 3e-4) + 100.0 * idle_s)
