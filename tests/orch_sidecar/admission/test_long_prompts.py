"""How a rule for short prompts could fail long ones, and that it does not: in virtual time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import pytest

from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.prediction.prompts import MAX_SHORTER_FACTOR
from orch_sidecar.admission.types import AdmissionRequest, Lease, StepTime
from orch_sidecar.api.refusal import Reason, Refusal
from tests.orch_sidecar.admission.examples import (
    bulk,
    class_rules,
    core_of,
    fill,
    interactive,
    reason_of,
    report,
    rules,
)

SLOTS = 64
SLO_S = 4.0
# Decoding takes no time.
STEP_TIME = StepTime(t0_ms=0.01, c_ms=0.0, alpha=1.0, largest=64)


def core_that_reads(tokens_per_s: float = 1000.0, slots: int = SLOTS) -> AdmissionController:
    of_rules = rules(class_rules(ttft_p95_ms=1000 * SLO_S))
    known: dict[str, Any] = {"step_time": STEP_TIME, "prefill_tokens_per_s": tokens_per_s}
    return core_of(slots, of_rules, chunk_tokens=64, step_tokens=256, **known)


@dataclass(slots=True)
class Served:
    """Whether the requests that came were served: prompt tokens, key, refusal."""

    found: list[tuple[int, bytes, Refusal | None]] = field(default_factory=list)

    def share(self, tokens: int, key: bytes = b"") -> float:
        """The share of the requests with such prompts, of this key, that was served."""
        refused = [refusal for each, of, refusal in self.found if (each, of) == (tokens, key)]
        return refused.count(None) / len(refused)


def serve(
    core: AdmissionController,
    coming: Iterable[tuple[float, AdmissionRequest]],
    true_rate: float = 1000.0,
) -> Served:
    """Each ends when the engine has read its prompt, one after the other; it reports each time."""
    served, now_reads = Served(), 0.0
    ends: list[tuple[float, str]] = []
    known: dict[str, Any] = {"step_time": STEP_TIME, "chunk_tokens": 64, "step_tokens": 256}
    rate = core.service_times.prompts.tokens_per_s
    for number, (at, request) in enumerate(sorted(coming, key=lambda each: each[0])):
        while ends and ends[0][0] <= at:
            ended_at, ticket = heappop(ends)
            core.release(ticket, ended_at, 1)
            state = report(SLOTS, prefill_tokens_per_s=rate, prefilling=len(ends), **known)
            core.engine_reports(state, ended_at)
        outcome = core.arrive(f"r{number}", request, at)
        if isinstance(outcome, Lease):
            now_reads = max(at, now_reads) + request.prompt_tokens / true_rate
            heappush(ends, (now_reads, outcome.id))
        refusal = outcome if isinstance(outcome, Refusal) else None
        served.found.append((request.prompt_tokens, request.key, refusal))
    return served


def every(
    seconds: float, tokens: int, until: float, begin: float = 0.0, **asked: Any
) -> list[tuple[float, AdmissionRequest]]:
    """A request with such a prompt in each of these intervals."""
    count = int((until - begin) / seconds)
    request = {"prompt_tokens": tokens, "max_tokens": 1, **asked}
    return [(begin + number * seconds, interactive(**request)) for number in range(count)]


def test_short_prompts_are_served_and_few_long_ones_where_not_all_can_be_read() -> None:
    coming = every(0.1, 60, 60.0) + every(0.5, 800, 60.0, 0.05)
    served = serve(core_that_reads(), coming)
    assert served.share(60) == 1
    assert 0.15 <= served.share(800) <= 0.3, "short ones leave 0.4 s of each, for 1.6 s"


def test_long_prompts_are_served_where_there_is_room() -> None:
    coming = every(0.1, 20, 60.0) + every(2.0, 800, 60.0, 0.05)
    served = serve(core_that_reads(), coming)
    assert served.share(20) == served.share(800) == 1


@pytest.mark.parametrize("prompt", [400, 3000, 100_000])
def test_overload_by_short_prompts_keeps_no_length_out_for_ever(prompt: int) -> None:
    """They ask for 1.2 times the engine's time; a client repeats the long one until it is in."""
    core = core_that_reads()
    coming = every(0.05, 60, 120.0) + every(1.0, prompt, 120.0, 0.025)
    assert serve(core, coming).share(prompt) > 0


def test_beside_bulk_requests_long_prompts_have_less_room() -> None:
    coming = every(0.1, 30, 60.0) + every(1.0, 500, 60.0, 0.05)
    alone = serve(core_that_reads(), coming)
    assert alone.share(500) >= 0.95
    core = core_that_reads()
    fill(core, bulk(SLOTS // 2), "bulk")
    beside = serve(core, coming)
    assert beside.share(30) == 1
    assert beside.share(500) <= alone.share(500)


def test_a_key_with_long_prompts_is_not_displaced_by_the_short_ones_of_another() -> None:
    """Requests of all lengths ask for three times what the engine can read."""
    flood = [
        (0.04 * number, interactive(prompt_tokens=20 + 10 * (number * 8 % 21), key=b"flood"))
        for number in range(1500)
    ]
    coming = flood + every(3.0, 600, 60.0, 0.01, key=b"long")
    one_key = [(at, interactive(prompt_tokens=each.prompt_tokens)) for at, each in coming]
    own = serve(core_that_reads(), coming).share(600, b"long")
    assert own >= 2 * serve(core_that_reads(), one_key).share(600)


@pytest.mark.parametrize("wrong", [1 / 3, 3])
def test_a_wrong_rate_costs_short_prompts_little(wrong: float) -> None:
    """The engine reads three times as fast as it reports, or a third."""
    coming = every(0.1, 20, 60.0) + every(0.5, 300, 60.0, 0.05)
    right = serve(core_that_reads(), coming)
    served = serve(core_that_reads(1000.0 * wrong), coming)
    assert served.share(20) >= right.share(20) - 0.1


def test_cached_prompts_take_no_time_from_others() -> None:
    """By their lengths they ask for three times what the engine reads, of which it has most."""
    coming = every(0.1, 300, 60.0) + every(2.0, 400, 60.0, 0.05)
    served = serve(core_that_reads(), coming, 20_000.0)
    assert served.share(300) >= 0.95
    assert served.share(400) >= 0.95


def crowded() -> AdmissionController:
    """Shorter prompts take more time than the engine has."""
    core = core_that_reads()
    coming = [interactive(prompt_tokens=100 + number) for number in range(60)]
    for request in coming:
        core.enqueuer.shorter_prompts.recent.append((0.0, request))
        core.enqueuer.shorter_prompts.recent.append((0.0, request))
    return core


def test_refusal_states_why_and_until_when() -> None:
    core = crowded()
    fill(core, interactive(prompt_tokens=200), "a")
    refusal = core.arrive("b", interactive(prompt_tokens=500), 0.0)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.SLO_MISS
    assert "400 ms are left for prediction errors, and 400" in refusal.message, MAX_SHORTER_FACTOR
    assert "ms for the many shorter prompts" in refusal.message
    assert "a shorter prompt than of 500 tokens, or as bulk" in refusal.message
    assert refusal.retry_after_ms is not None
    assert 200 <= refusal.retry_after_ms <= 260, "when the prompt before it is read"
    fill(core, interactive(prompt_tokens=500), "c", at=refusal.retry_after_ms / 1000)


def test_prompts_that_none_could_serve_in_time_wait_for_their_turn_too() -> None:
    core = crowded()
    fill(core, interactive(prompt_tokens=50_000), "a")
    assert reason_of(core.arrive("b", interactive(prompt_tokens=50_000), 1.0)) is Reason.SLO_MISS
    fill(core, interactive(prompt_tokens=50_000), "c", at=50.1)


def test_neither_retries_nor_deadlines_of_a_millisecond_count_as_prompts() -> None:
    core = core_that_reads()
    fill(core, interactive(prompt_tokens=900), "a")
    repeated, own = interactive(prompt_tokens=300, identity=7), core.constraints.reserve.interactive
    own.refused(repeated, 60.0, 0.0)
    for number in range(60):
        core.release(f"b{number - 1}", 0.0)
        core.arrive(f"b{number}", repeated, 0.0)
        gaming = interactive(prompt_tokens=300, deadline_ms=1.0)
        assert reason_of(core.arrive(f"d{number}", gaming, 0.0)) is Reason.DEADLINE_MISS
    core.release("b59", 0.0)
    fill(core, interactive(prompt_tokens=600), "e")
