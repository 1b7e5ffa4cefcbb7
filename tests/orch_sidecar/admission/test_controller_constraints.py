"""The admission controller by example: the reserve, the cache, prefill, and reloaded rules."""

from __future__ import annotations

import pytest

from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.types import Decision, Queued
from orch_sidecar.api.refusal import Reason
from tests.orch_sidecar.admission.examples import (
    BULK,
    INTERACTIVE,
    bulk,
    bulk_only,
    class_rules,
    core_of,
    fill,
    granted,
    interactive,
    kv_of,
    queue,
    reason,
    reason_of,
    refused,
    report,
    rules,
)
from vllm_plugin.contracts.profile import BatchBounds


def busy(core: AdmissionController, until: float) -> None:
    """Interactive requests of a second come twice in it, from 0 s on."""
    for number in range(int(2 * until)):
        now = number / 2
        fill(core, interactive(max_tokens=100), f"busy{number}", at=now)
        if number >= 2:
            core.release(f"busy{number - 2}", now, 100)
    for number in range(int(2 * until) - 2, int(2 * until)):
        core.release(f"busy{number}", until, 100)


def test_reserve_comes_back_to_bulk_when_interactive_requests_stay_away() -> None:
    core = core_of(4)
    busy(core, until=30.0)
    fill(core, bulk(), "a", "b", "b2", at=30.0)
    queue(core, bulk(), "c", at=30.0)
    assert reason(core.blocked_by) == "reserve"
    now, decisions = 30.0, list[Decision]()
    while not decisions:
        at = core.next_event(now)
        assert at is not None
        assert at > now
        decisions = core.dispatch(now := at)
    assert granted(decisions) == ["c"]
    assert 31.0 <= now <= 60.0


def test_the_next_interactive_request_finds_a_slot() -> None:
    core = core_of(8)
    busy(core, until=30.0)
    fill(core, bulk(6), "a", at=30.0)
    fill(core, bulk(), "b", at=30.0)
    queue(core, bulk(), "c", at=30.0)
    assert reason(core.blocked_by) == "reserve"
    fill(core, interactive(), "i", at=30.5)


def test_preemption_blocks_requests_until_the_cache_has_recovered() -> None:
    core = core_of(4, kv=kv_of(1000))
    fill(core, bulk(prompt_tokens=700, max_tokens=100), "a")
    core.engine_reports(report(4, kv=kv_of(1000), kv_usage=0.95, preemptions_total=1), 1.0)
    queue(core, bulk(prompt_tokens=100, max_tokens=50), "b", at=1.0)
    assert reason(core.blocked_by) == "kv"
    now, decisions = 1.0, list[Decision]()
    while not decisions:
        at = core.next_event(now)
        assert at is not None
        assert now + 0.2 <= at, "it looks now and then"
        decisions = core.dispatch(now := at)
    assert granted(decisions) == ["b"]
    assert now == pytest.approx(25.0, abs=0.3), "950 of 1000 tokens, 750 at first, 30 s to recover"


def test_blocked_prompt_is_dispatched_after_the_prefill_of_the_one_before() -> None:
    core = core_of(8, prefill_tokens_per_s=1000.0)
    fill(core, interactive(), "i")
    fill(core, bulk(prompt_tokens=600), "a")
    queue(core, bulk(prompt_tokens=100), "b")
    assert reason(core.blocked_by) == "prefill"
    at = core.next_event(0.0)
    assert at is not None
    assert at == pytest.approx(0.2)
    assert granted(core.dispatch(at + 1e-9)) == ["b"]


# Reloaded rules


def test_reloaded_rules_apply_to_new_requests_and_end_none() -> None:
    core = core_of(2)
    fill(core, interactive(2), "a")
    queue(core, interactive(), "b", "c")
    small = class_rules(queue_capacity=1, max_wait_s=1.0, batch=BatchBounds(least=1, most=1))
    assert core.replace_rules(rules(small, small), 1.0) == []
    assert (core.ledger.leased, core.queue_depth) == (2, 2)
    limits = core.constraints.batch.limits
    assert limits.batch(INTERACTIVE) == limits.batch(BULK) == 1
    assert reason_of(core.arrive("d", interactive(), 1.0)) is Reason.QUEUE_FULL
    assert core.dispatch(59.9) == []
    assert granted(core.release("a", 59.9)) == ["b"]
    assert refused(core.dispatch(60.0)) == {"c": Reason.QUEUE_TIMEOUT}


def test_wider_rules_dispatch_requests_that_fit_now() -> None:
    narrow = class_rules(batch=BatchBounds(least=1, most=1))
    core = core_of(4, rules(narrow, narrow))
    fill(core, interactive(), "a")
    queue(core, interactive(), "b", "c")
    assert granted(core.replace_rules(rules(), 1.0)) == ["b", "c"]


def test_rules_without_interactive_requests_still_serve_those_that_wait() -> None:
    core = core_of(1)
    fill(core, interactive(), "a")
    queue(core, interactive(), "b")
    assert core.replace_rules(bulk_only(), 1.0) == []
    queue(core, bulk(), "c", at=1.0)
    assert granted(core.release("a", 2.0)) == ["b"]
    assert granted(core.release("b", 3.0)) == ["c"]


def test_no_slot_is_free_for_a_request_that_would_wait_behind_a_due_one() -> None:
    core = core_of(4, rules(aging_s=1.0))
    fill(core, interactive(), "i0", "i1")
    assert isinstance(core.arrive("large", bulk(cost=4), 0.0), Queued)
    assert core.status(0.1).interactive.free == 2
    assert core.status(5.0).interactive.free == 0
    assert isinstance(core.arrive("i2", interactive(), 5.0), Queued)
