"""Latencies and rates that cannot be, beside what an engine signed of the same requests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.tools.facts.labels.figures import CompletedRequest, figures
from orch_sidecar.tools.facts.signing.client_times import time_contradictions
from orch_sidecar.tools.facts.signing.proof import Proof, prove
from tests.orch_sidecar.tools.facts.signing.signed import BEGIN_S, SigningEngine
from vllm_plugin.contracts.statement import Leaf

RATE_PER_S, REQUESTS, TOKENS = 3.0, 60, 64
QUEUED_S, PREFILL_S, STEP_S = 0.02, 0.08, 0.02


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


def seen(proof: Proof, delays_s: Sequence[tuple[float, float, float]]) -> dict[str, str]:
    """The notes of a client that sees each request with delays: on its way to the engine, of its
    first token, and of its last one, which comes no earlier than the first."""
    served = []
    for each, (before_s, first_s, last_s) in zip(proof.leaves, delays_s, strict=True):
        first_token_s = each.arrived_s + each.queued_s + each.prefill_s + first_s
        served.append(
            CompletedRequest(
                each.arrived_s - before_s,
                first_token_s,
                max(first_token_s, each.ended_s + last_s),
                each.prompt_tokens,
                each.generated_tokens,
            )
        )
    found = figures(served)
    notes: dict[str, str] = {"requests": str(found.requests)}
    spreads = {"ttft": found.ttft_s, "tpot": found.tpot_s, "latency": found.latency_s}
    for name, values in spreads.items():
        if values is not None:
            notes[f"{name}_p50_ms"] = f"{values.p50 * 1000:.3f}"
            notes[f"{name}_p95_ms"] = f"{values.p95 * 1000:.3f}"
    return notes


def notes_of(proof: Proof, **changes: Any) -> dict[str, str]:
    notes = seen(proof, [(0.001, 0.001, 0.001)] * len(proof.leaves))
    notes |= {"arrivals": "poisson", "rate_per_s": str(RATE_PER_S)}
    return notes | {name: str(value) for name, value in changes.items()}


def test_what_the_client_saw_a_little_later_is_possible() -> None:
    for seed in range(20):
        proof = poisson(seed)
        assert list(time_contradictions(notes_of(proof), proof)) == []


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
    notes = seen(
        proof, [(before_s, first_s, last_s) for _, _, before_s, first_s, last_s in requests]
    )
    assert list(time_contradictions(notes, proof)) == []


IMPOSSIBLE: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("first tokens before their prompts", {"ttft_p50_ms": 10.1}, "the engine alone took 99.9"),
    ("the slowest of them", {"ttft_p95_ms": 90}, "ttft_p95_ms is 90, the engine alone took"),
    ("a tenth of the latency", {"latency_p50_ms": 136.1}, "latency_p50_ms is 136.1, the engine"),
    ("a tenth of the time between tokens", {"tpot_p50_ms": 2.0}, "tpot_p50_ms is 2.0, the engine"),
    ("a hundredth of a millisecond", {"tpot_p50_ms": 0.01}, "tpot_p50_ms is 0.01, the engine"),
    ("ten times the rate", {"rate_per_s": 30}, "rate_per_s is 30: 60 requests came to the engine"),
    ("a tenth of the rate", {"rate_per_s": 0.3}, "rate_per_s is 0.3: 60 requests came"),
    (
        "ten times the rate at constant distances",
        {"rate_per_s": 30, "arrivals": "constant"},
        "rate_per_s is 30: 60 requests came to the engine",
    ),
)


@pytest.mark.parametrize(
    ("change", "reason"), [each[1:] for each in IMPOSSIBLE], ids=[each[0] for each in IMPOSSIBLE]
)
def test_times_that_the_engine_contradicts(change: dict[str, Any], reason: str) -> None:
    proof = poisson()
    assert reason in "; ".join(time_contradictions(notes_of(proof, **change), proof))


def test_requests_that_waited_before_the_engine_came_as_their_client_says() -> None:
    """Due at 30 a second before a sidecar that lets 3 a second through: the latencies say so."""
    proof = poisson()
    begun_s = proof.leaves[0].arrived_s
    delays = [
        (each.arrived_s - begun_s - number / 30, 0.001, 0.001)
        for number, each in enumerate(proof.leaves)
    ]
    notes = seen(proof, delays) | {"arrivals": "poisson", "rate_per_s": "30"}
    assert list(time_contradictions(notes, proof)) == []


def test_latencies_of_a_part_of_the_requests_are_no_less_than_the_shortest() -> None:
    proof = poisson()
    notes = notes_of(proof, latency_of="interactive", rate_per_s=30)
    assert list(time_contradictions(notes, proof)) == []
    found = list(time_contradictions(notes | {"latency_p95_ms": "140"}, proof))
    assert found == ["latency_p95_ms is 140, the engine alone took 1198.8"]
