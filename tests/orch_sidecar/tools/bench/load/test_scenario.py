"""When requests arrive, what they must keep, and how a scenario is described."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, islice, pairwise, repeat
from math import inf
from statistics import fmean, pstdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.tools.bench.load import scenario as arrivals
from orch_sidecar.tools.bench.load.scenario import (
    Scenario,
    gamma,
    replaying,
    schedule,
    traced_prompts,
    until,
)
from orch_sidecar.tools.facts.labels.figures import CompletedRequest
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.publication import (
    MIN_DURATION_S,
    MIN_QUERIES,
    shortfalls,
)
from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.traces import Trace, TracedRequest, merged
from tests.orch_sidecar.tools.bench.sample_results import OFFLINE, ONLINE, SINGLE
from vllm_plugin.contracts.profile import ServiceClass

MANY = 20_000


def gaps(times: Iterator[float]) -> list[float]:
    """The first intervals, that before the first request included."""
    return [later - earlier for earlier, later in pairwise((0.0, *islice(times, MANY)))]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0, 100.0])
def test_gamma_intervals_have_the_mean_of_the_rate_and_vary_by_burstiness(
    burstiness: float, seed: int
) -> None:
    found = gaps(gamma(50.0, burstiness, seed))
    assert fmean(found) * 50 == pytest.approx(1, abs=0.04)
    assert pstdev(found) / fmean(found) == pytest.approx(burstiness**-0.5, rel=0.05)


def test_constant_arrivals_keep_their_interval_and_do_not_drift() -> None:
    assert list(islice(gamma(4.0, inf, 0), 4)) == [0.25, 0.5, 0.75, 1.0]
    assert next(islice(gamma(3.0, inf, 0), 2_999_999, None)) == 1_000_000.0


def test_same_seed_gives_the_same_times_and_another_one_others() -> None:
    first, again, other = (list(islice(gamma(5.0, 0.5, seed), 200)) for seed in (1, 1, 2))
    assert first == again
    assert not set(first) & set(other)


@given(rate=st.floats(1e-300, 1e300), burstiness=st.floats(1e-300, 1e300), seed=st.integers())
def test_times_never_decrease(rate: float, burstiness: float, seed: int) -> None:
    times = [0.0, *islice(gamma(rate, burstiness, seed), 20)]
    assert all(earlier <= later for earlier, later in pairwise(times))


@given(
    steps=st.lists(st.floats(0, 5), min_size=60, max_size=60),
    requests=st.integers(1, 40),
    seconds=st.floats(0, 60),
)
def test_schedule_is_the_shortest_beginning_that_is_enough(
    steps: list[float], requests: int, seconds: float
) -> None:
    times = list(accumulate(steps))

    def enough(count: int) -> bool:
        return count >= requests and times[count - 1] - times[0] >= seconds

    if times[-1] - times[0] < seconds:
        return
    taken = until(iter(times), requests, seconds)
    assert taken == tuple(times[: len(taken)])
    assert enough(len(taken))
    assert not enough(len(taken) - 1)


@pytest.mark.parametrize("rate", [1.2, 2.0, 8.0])
def test_default_run_is_never_too_short_to_be_published(rate: float) -> None:
    """The window is from the first arrival on: long enough even of answers that take no time."""
    for times in (gamma(rate, inf, 0), *(gamma(rate, 1.0, seed) for seed in range(20))):
        due_s = until(times, MIN_QUERIES[Label.BATCHED_ONLINE], MIN_DURATION_S)
        assert shortfalls(Label.BATCHED_ONLINE, len(due_s), due_s[-1] - due_s[0]) == []


def test_schedule_that_would_exhaust_memory_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "MAX_REQUESTS", 5)
    assert len(until(gamma(1.0, inf, 0), 5, 0.0)) == 5
    with pytest.raises(ValueError, match="5 requests, the limit, arrive within 6 s"):
        until(gamma(1.0, inf, 0), 6, 0.0)
    with pytest.raises(ValueError, match="within 0 s"):
        until(repeat(0.0), 1, 1.0)


# TTFT 100 ms, TPOT 10 ms, latency 200 ms.
SERVED = CompletedRequest(0.0, 0.1, 0.2, 32, 11)
ONE_TOKEN = replace(SERVED, output_tokens=1)  # without a time per token
UNSEEN = replace(SERVED, first_token_s=None)


@pytest.mark.parametrize(
    ("served", "slo_ms", "kept"),
    [
        (SERVED, {}, True),
        (SERVED, {"ttft": 100.0}, True),
        (SERVED, {"ttft": 99.0}, False),
        (SERVED, {"tpot": 10.001}, True),
        (SERVED, {"tpot": 9.9}, False),
        (SERVED, {"latency": 200.0}, True),
        (SERVED, {"latency": 199.0}, False),
        (SERVED, {"ttft": 100.0, "latency": 199.0}, False),
        (ONE_TOKEN, {"tpot": 1.0}, True),
        (UNSEEN, {"ttft": 1000.0}, False),
        (UNSEEN, {"tpot": 1000.0}, False),
        (UNSEEN, {"latency": 200.0}, True),
    ],
)
def test_every_bound_must_be_kept(
    served: CompletedRequest, slo_ms: dict[str, float], kept: bool
) -> None:
    assert served.meets(slo_ms) is kept


def test_scenarios_are_described_as_text() -> None:
    gamma = replace(ONLINE, arrivals=Arrivals.GAMMA, burstiness=0.5)
    closed = replace(ONLINE, arrivals=Arrivals.CLOSED_LOOP, rate_per_s=None, clients=8)
    assert [each.text for each in (SINGLE, OFFLINE, ONLINE, gamma, closed)] == [
        "one by one",
        "at once",
        "poisson arrivals at 10/s",
        "gamma arrivals of burstiness 0.5 at 10/s",
        "closed loop of 8",
    ]


INTERACTIVE, BULK = ServiceClass.INTERACTIVE, ServiceClass.BULK
IDS = range(1000, 2000)


def trace(*requests: TracedRequest, block_tokens: int | None = None, sha: str = "0") -> Trace:
    return Trace("some.jsonl", sha * 64, requests, block_tokens)


WHOLE: dict[str, Any] = {"window_s": (0.0, None), "time_factor": 1.0, "length_factor": 1.0}


def tokens(first: Trace, bulk: Trace | None = None, *, seed: int = 1) -> list[tuple[int, ...]]:
    made = traced_prompts(merged(first, bulk), IDS, seed)
    return [each.prompt for each, _ in made if isinstance(each.prompt, tuple)]


def test_prompts_have_the_lengths_of_the_trace_and_alike_beginnings_of_the_same_blocks() -> None:
    first = TracedRequest(0.0, 70, 7, (1, 2, 3))
    second = TracedRequest(1.0, 90, 1, (1, 2, 4))
    other = TracedRequest(2.0, 64, 1, (5, 2))
    beyond = TracedRequest(3.0, 48, 1, (1,))
    short = TracedRequest(4.0, 1, 1)
    whole = trace(first, second, other, beyond, beyond, short, block_tokens=32)
    found = [each for each, _ in traced_prompts(merged(whole, None), IDS, 1)]
    assert [(each.input_tokens, each.output_tokens) for each in found] == [
        (each.prompt_tokens, each.output_tokens) for each in whole.requests
    ]
    a, b, c, d, e, _ = tokens(whole)
    assert a[:64] == b[:64]
    assert a[64:70] != b[64:70]
    assert a[:32] != c[:32]
    assert a[32:64] == c[32:64]  # the block is the same, although its prefix is not
    assert d[:32] == e[:32]
    assert d[32:] != e[32:]  # beyond the blocks they are of the request alone


def test_bulk_trace_is_merged_by_time_and_shares_no_prefix() -> None:
    first, second = (TracedRequest(at_s, 32, 1, (1,)) for at_s in (0.0, 2.0))
    both = (
        trace(first, second, block_tokens=32),
        trace(replace(first, at_s=1.0), block_tokens=32, sha="1"),
    )
    made = Scenario(Label.BATCHED_ONLINE, seed=0, **replaying(*both, **WHOLE))
    assert schedule(made) == (0.0, 1.0, 2.0)
    assert [each for _, each, _ in made.replay] == [INTERACTIVE, BULK, INTERACTIVE]
    first_tokens, bulk_tokens, last_tokens = tokens(*both)
    assert first_tokens == last_tokens != bulk_tokens


def test_replay_has_bulk_work_if_a_trace_or_clients_make_it() -> None:
    one = trace(TracedRequest(0.0, 1, 1))
    ways: tuple[dict[str, Any], ...] = ({}, {"bulk": one}, {"bulk_clients": 1})
    assert [replaying(one, **WHOLE, **way)["trace"].has_bulk for way in ways] == [False, True, True]


def test_what_is_sent_at_once_is_due_at_the_start() -> None:
    assert schedule(Scenario(Label.OFFLINE, 3, arrivals=Arrivals.AT_ONCE)) == (0.0, 0.0, 0.0)
