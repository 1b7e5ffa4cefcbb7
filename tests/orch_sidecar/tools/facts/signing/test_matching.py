"""A client's times that cannot be, beside what an engine signed of the same requests."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.tools.facts.labels.recorded import Call, RecordedRun
from orch_sidecar.tools.facts.signing.proof import Proof, prove
from orch_sidecar.tools.facts.signing.recompute import impossible_times
from orch_sidecar.tools.facts.tables.notes import Arrivals
from tests.orch_sidecar.tools.facts.signing.signed import (
    BEGIN_S,
    SigningEngine,
    result_of,
    row_of,
)
from vllm_plugin.contracts.statement import Leaf

RATE_PER_S, REQUESTS, TOKENS = 3.0, 60, 64
QUEUED_S, PREFILL_S, STEP_S = 0.02, 0.08, 0.02
# The client's clock: seconds since it began, a little before the engine's first request.
ZERO_S = BEGIN_S - 0.5
POISSON: dict[str, Any] = {"arrivals": "poisson", "rate_per_s": RATE_PER_S, "clients": None}

Delays = Sequence[tuple[float, float, float]]


def leaf(number: int, arrived_s: float, tokens: int = TOKENS, queued_s: float = QUEUED_S) -> Leaf:
    decode_s = STEP_S * (tokens - 1)
    return Leaf(
        number, f"r{number}", arrived_s, arrived_s + queued_s + PREFILL_S + decode_s,
        queued_s, PREFILL_S, decode_s, 20, tokens, 0, "length",
    )  # fmt: skip


def proof_of(leaves: Sequence[Leaf]) -> Proof:
    return replace(prove(SigningEngine().measure(), {}), leaves=leaves)


def poisson(seed: int = 1, rate_per_s: float = RATE_PER_S) -> Proof:
    chance, at_s, leaves = random.Random(seed), BEGIN_S, []
    for number in range(REQUESTS):
        leaves.append(leaf(number, at_s))
        at_s += chance.expovariate(rate_per_s)
    return proof_of(leaves)


def seen(proof: Proof, delays_s: Delays | None = None, **scenario: Any) -> RecordedRun:
    """What a client recorded that sees each request with delays: on its way to the engine, of its
    first token, and of its last one, which comes no earlier than the first."""
    delays_s = delays_s or [(0.001, 0.001, 0.001)] * len(proof.leaves)
    calls = []
    for each, (before_s, first_s, last_s) in zip(proof.leaves, delays_s, strict=True):
        sent_s = each.arrived_s - before_s - ZERO_S
        first_token_s = each.arrived_s + each.queued_s + each.prefill_s + first_s - ZERO_S
        ended_s = max(first_token_s, each.ended_s + last_s - ZERO_S)
        calls.append(
            Call(sent_s, sent_s, first_token_s, ended_s, 200, "answered", "",
                 each.prompt_tokens, each.generated_tokens, None)
        )  # fmt: skip
    recorded = result_of(row_of())
    recorded["scenario"] |= POISSON | scenario
    return RecordedRun.model_validate(recorded | {"calls": calls})


def changed(change: Callable[[Call], Call]) -> Callable[[RecordedRun], RecordedRun]:
    return lambda run: run.model_copy(update={"calls": [change(call) for call in run.calls]})


def stated(**scenario: Any) -> Callable[[RecordedRun], RecordedRun]:
    return lambda run: run.model_copy(update={"load": replace(run.load, **scenario)})


def times(change: Callable[[float, float], float], *names: str) -> Callable[[Call], Call]:
    """Changes times of a call, given when it was sent."""

    def changed_call(call: Call) -> Call:
        new: dict[str, Any] = {
            name: change(getattr(call, name), call.sent_s or 0) for name in names
        }
        return replace(call, **new)

    return changed_call


def test_what_the_client_saw_a_little_later_is_possible() -> None:
    for seed in range(20):
        proof = poisson(seed)
        assert list(impossible_times(seen(proof), proof)) == []


@given(
    st.lists(
        st.tuples(
            st.integers(1, 80), st.floats(0, 30), st.floats(0, 3), st.floats(0, 3), st.floats(0, 9)
        ),
        min_size=1,
        max_size=40,
    )
)
def test_no_honest_latency_is_impossible(
    requests: list[tuple[int, float, float, float, float]],
) -> None:
    """However late the client saw its tokens, and however long a request waited for its step."""
    leaves = [
        leaf(number, BEGIN_S + at_s, tokens, queued_s=before_s)
        for number, (tokens, at_s, before_s, _, _) in enumerate(requests)
    ]
    proof = proof_of(leaves)
    run = seen(proof, [(before, first, last) for *_, before, first, last in requests])
    run = changed(lambda call: replace(call, due_s=None))(run)
    run = stated(arrivals=Arrivals.CLOSED_LOOP, rate_per_s=None)(run)
    assert list(impossible_times(run, proof)) == []


Change = Callable[[RecordedRun], RecordedRun]
IMPOSSIBLE: tuple[tuple[str, Change, str], ...] = (
    ("first tokens before their prompts", changed(times(lambda _, sent: sent + 0.01, "first_s")),
     "a TTFT is 0.01 s, the engine alone took 0.1 s"),
    ("a tenth of the latencies",
     changed(times(lambda at, sent: sent + (at - sent) / 10, "first_s", "ended_s")),
     "a TTFT is 0.0102 s, the engine alone took 0.1 s"),
    ("a tenth of everything", changed(times(lambda at, _: at / 10,
                                            "due_s", "sent_s", "first_s", "ended_s")),
     "before the engine had made them"),
    ("ten times the rate", stated(rate_per_s=30.0), "rate_per_s is 30: 60 requests came"),
    ("a tenth of the rate", stated(rate_per_s=0.3), "rate_per_s is 0.3: 60 requests came"),
    ("ten times the rate, in bursts",
     stated(arrivals=Arrivals.GAMMA, burstiness=0.5, rate_per_s=30.0),
     "rate_per_s is 30: 60 requests came"),
    ("one after the other", stated(arrivals=Arrivals.AT_ONCE, rate_per_s=None),
     "arrivals is at_once, the requests came within 1"),
    ("constant distances", stated(arrivals=Arrivals.CONSTANT), "rate_per_s is 3: 60 requests"),
    ("a schedule ten times as fast", changed(times(lambda at, _: at / 10, "due_s")),
     "s late (p99), and no client_bottleneck is noted"),
    ("a trace without a schedule", lambda run: stated(arrivals=Arrivals.TRACE)(
        changed(lambda call: replace(call, due_s=None))(run)), "had no schedule"),
    ("a request that nobody sent", lambda run: run.model_copy(update={"calls": run.calls[1:]}),
     "the engine finished 60 requests, of which 59 were sent"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "reason"), [each[1:] for each in IMPOSSIBLE], ids=[each[0] for each in IMPOSSIBLE]
)
def test_times_that_the_engine_contradicts(change: Change, reason: str) -> None:
    proof = poisson()
    assert reason in "; ".join(impossible_times(change(seen(proof)), proof))


def test_short_latency_is_found_among_long_ones_by_its_tokens() -> None:
    """One answer of other lengths: only one request can have been it."""
    proof = poisson()
    leaves = [*proof.leaves[:-1], leaf(59, proof.leaves[-1].arrived_s, tokens=200)]
    proof = replace(proof, leaves=leaves)
    run = seen(proof)
    calls = list(run.calls)
    first, last = calls[0], calls[-1]
    calls[0] = replace(first, ended_s=(first.ended_s or 0) + 30)
    calls[-1] = replace(last, ended_s=(last.ended_s or 0) - 2)
    found = "; ".join(impossible_times(run.model_copy(update={"calls": calls}), proof))
    assert "before the engine had made them" in found


def test_requests_that_waited_before_the_engine_came_as_their_client_says() -> None:
    """Due at 30 a second before a sidecar that lets 3 a second through: the latencies say so."""
    proof, chance = poisson(), random.Random(7)
    gaps = (chance.expovariate(30) for _ in pairwise(proof.leaves))
    due_s = list(accumulate(gaps, initial=0.0))
    delays = [
        (each.arrived_s - proof.leaves[0].arrived_s - at_s, 0.001, 0.001)
        for each, at_s in zip(proof.leaves, due_s, strict=True)
    ]
    assert min(before for before, *_ in delays) >= 0, "each request waits"
    assert list(impossible_times(seen(proof, delays, rate_per_s=30.0), proof)) == []


def closed(clients: int, stated_clients: int, *bottleneck: str, turn_s: float = 1.4) -> str:
    """A loop of clients whose requests take a second each, said to be one of another number.
    `turn_s`: from one request of a client to its next."""
    leaves = [
        leaf(turn * clients + client, BEGIN_S + turn_s * turn + 0.001 * client)
        for turn in range(5)
        for client in range(clients)
    ]
    proof = proof_of(leaves)
    run = seen(proof, arrivals="closed_loop", rate_per_s=None, clients=stated_clients)
    run = changed(lambda call: replace(call, due_s=None))(run)
    paused = run.model_copy(update={"bottleneck": [*bottleneck]})
    return "; ".join(impossible_times(paused, proof))


def test_closed_loop_has_a_request_of_each_client_in_flight_and_no_more() -> None:
    assert closed(4, 4) == ""
    assert "at_once is 3, 4 requests were in flight at once" in closed(4, 3)
    assert "at_once is 8, of which" in closed(4, 8)
    assert "at_once is 24, at most 4 requests were in flight at once" in closed(4, 24)
    assert "at_once is 4, of which" in closed(4, 4, turn_s=2.8)
    blocked = "its event loop was blocked"
    assert closed(4, 4, blocked, turn_s=2.8) == "", "its row notes the client's pauses"
    assert "at_once is 8, at most 4" in closed(4, 8, blocked), "all clients begin at once"
