"""What a request must keep, and how a scenario is described."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orch_sidecar.tools.bench.load.prompts import Prompt
from orch_sidecar.tools.bench.load.scenario import Replay
from orch_sidecar.tools.facts.labels.figures import CompletedRequest
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.traces import Trace, TracedRequest
from tests.orch_sidecar.tools.bench.sample_results import OFFLINE, ONLINE, SINGLE
from vllm_plugin.contracts.profile import ServiceClass

# TTFT 100 ms, TPOT 10 ms, latency 200 ms.
SERVED = CompletedRequest(0.0, 0.1, 0.2, 32, 11)


@pytest.mark.parametrize(
    ("slo_ms", "kept"),
    [
        ({}, True),
        ({"ttft": 100.0}, True),
        ({"ttft": 99.0}, False),
        ({"tpot": 10.001}, True),
        ({"tpot": 9.9}, False),
        ({"latency": 200.0}, True),
        ({"latency": 199.0}, False),
        ({"ttft": 100.0, "latency": 199.0}, False),
    ],
)
def test_every_bound_must_be_kept(slo_ms: dict[str, float], kept: bool) -> None:
    assert SERVED.meets(slo_ms) is kept


def test_answer_of_one_token_has_no_time_per_token_to_keep() -> None:
    assert replace(SERVED, output_tokens=1).meets({"tpot": 1.0})


def test_answer_without_a_first_token_misses_the_ttft_bound() -> None:
    unseen = replace(SERVED, first_token_s=None)
    assert not unseen.meets({"ttft": 1000.0})
    assert not unseen.meets({"tpot": 1000.0})
    assert unseen.meets({"latency": 200.0})


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


def prompts(replay: Replay, seed: int = 1) -> list[Prompt]:
    return list(replay.prompts(IDS, seed))


def tokens(replay: Replay, seed: int = 1) -> list[tuple[int, ...]]:
    return [each.content for each in prompts(replay, seed)]  # type: ignore[misc]


def test_prompts_have_exactly_the_lengths_of_the_trace() -> None:
    found = prompts(Replay(trace(TracedRequest(0.0, 40, 7), TracedRequest(1.0, 1, 1))))
    assert [(len(each.content), each.input_tokens) for each in found] == [(40, 40), (1, 1)]
    assert [each.output_tokens for each in found] == [7, 1]


def test_prompts_with_the_same_blocks_begin_alike() -> None:
    first = TracedRequest(0.0, 70, 1, (1, 2, 3))
    second = TracedRequest(1.0, 90, 1, (1, 2, 4))
    other = TracedRequest(2.0, 64, 1, (5, 2))
    a, b, c = tokens(Replay(trace(first, second, other, block_tokens=32)))
    assert a[:64] == b[:64]
    assert a[64:70] != b[64:70]
    assert a[:32] != c[:32]
    assert a[32:64] == c[32:64]  # the block is the same, although its prefix is not
    assert (len(a), len(b), len(c)) == (70, 90, 64)


def test_tokens_beyond_the_blocks_are_of_the_request_alone() -> None:
    a, b = tokens(Replay(trace(*2 * [TracedRequest(0.0, 48, 1, (1,))], block_tokens=32)))
    assert a[:32] == b[:32]
    assert a[32:] != b[32:]


def test_prompts_depend_on_the_seed() -> None:
    replay = Replay(trace(TracedRequest(0.0, 48, 1, (1,)), block_tokens=32))
    assert tokens(replay, 1) == tokens(replay, 1)
    assert tokens(replay, 1)[0][:32] != tokens(replay, 2)[0][:32]


def test_bulk_trace_is_merged_by_time_and_shares_no_prefix() -> None:
    replay = Replay(
        trace(TracedRequest(0.0, 32, 1, (1,)), TracedRequest(2.0, 32, 1, (1,)), block_tokens=32),
        trace(TracedRequest(1.0, 32, 1, (1,)), block_tokens=32, sha="1"),
    )
    assert replay.due_s == (0.0, 1.0, 2.0)
    assert replay.classes == [INTERACTIVE, BULK, INTERACTIVE]
    first, bulk, last = tokens(replay)
    assert first == last != bulk


def test_replay_has_bulk_work_if_a_trace_or_clients_make_it() -> None:
    one = trace(TracedRequest(0.0, 1, 1))
    assert not Replay(one).document.has_bulk
    assert Replay(one, bulk=one).document.has_bulk
    assert Replay(one, bulk_clients=1).document.has_bulk
