"""The admission controller by example: windows, pauses, budgets, and reloaded rules."""

from __future__ import annotations

import pytest

from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.types import AdmissionRequest, BlockedBy, Decision, Lease, Queued
from orch_sidecar.api.refusal import Reason, Refusal
from tests.orch_sidecar.admission.examples import (
    BULK,
    INTERACTIVE,
    STEP_TIME,
    bulk,
    bulk_only,
    class_rules,
    core_of,
    fill,
    granted,
    interactive,
    kv_of,
    queue,
    reason_of,
    refused,
    report,
    rules,
)
from vllm_plugin.profile import AdmissionRules, BatchBounds, Bounds

ALWAYS_50_MS = Bounds(least=50, most=50)
GATHERING = rules(window_ms=ALWAYS_50_MS)


def idle_after_traffic(of_rules: AdmissionRules = GATHERING, slots: int = 4) -> AdmissionController:
    """At 2 s bulk requests have come and gone 100 times a second, and none is there."""
    core = core_of(slots, of_rules)
    for number in range(1, 201):
        at = number / 100
        outcome = core.arrive(f"past{number}", bulk(max_wait_ms=1.0), at)
        assert isinstance(outcome, Lease), "it may not wait for a window"
        core.release(f"past{number}", at)
    return core


# Windows


def test_bulk_requests_that_come_often_begin_together() -> None:
    core = idle_after_traffic()
    queue(core, bulk(), "a", at=2.0)
    queue(core, bulk(), "b", at=2.03)
    assert core.blocked_by is BlockedBy.WINDOW
    assert core.next_event(2.03) == pytest.approx(2.05)
    assert granted(core.dispatch(2.05)) == ["a", "b"]
    assert core.next_event(2.05) is None


def test_a_full_window_is_closed_at_once() -> None:
    core = idle_after_traffic()
    queue(core, bulk(2), "a", at=2.0)
    assert isinstance(core.arrive("b", bulk(2), 2.01), Lease)
    assert granted(core.take_displaced()) == ["a"]


def test_bulk_requests_that_come_seldom_go_at_once() -> None:
    core = core_of(4, GATHERING)
    for number in range(20):
        assert isinstance(core.arrive(f"b{number}", bulk(), number / 10), Lease)
        core.release(f"b{number}", number / 10)


def test_window_opens_for_bulk_only() -> None:
    core = idle_after_traffic()
    fill(core, interactive(), "i", at=2.0)
    assert core.status(0.0).windows == 0


def test_a_running_engine_gathers_nothing() -> None:
    core = idle_after_traffic()
    fill(core, interactive(), "i", at=2.0)
    fill(core, bulk(), "b", at=2.0)


def test_a_lone_interactive_request_goes_at_once() -> None:
    core = core_of(4, rules(window_ms=ALWAYS_50_MS))
    for number in range(200):
        assert isinstance(core.arrive(f"i{number}", interactive(), number / 100), Lease)
        core.release(f"i{number}", number / 100)


def test_an_interactive_request_ends_the_window() -> None:
    core = idle_after_traffic()
    queue(core, bulk(), "a", "b", at=2.0)
    assert isinstance(core.arrive("i", interactive(), 2.01), Lease)
    assert granted(core.take_displaced()) == ["a", "b"]


@pytest.mark.parametrize(
    "arriving",
    [
        bulk(may_queue=False),
        bulk(max_wait_ms=0.0),
        bulk(max_wait_ms=30.0),
        bulk(deadline_ms=30.0),
    ],
)
def test_a_request_that_may_not_wait_so_long_ends_the_window(arriving: AdmissionRequest) -> None:
    core = idle_after_traffic()
    queue(core, bulk(), "a", at=2.0)
    assert isinstance(core.arrive("b", arriving, 2.01), Lease)
    assert granted(core.take_displaced()) == ["a"]


@pytest.mark.parametrize("arriving", [bulk(may_queue=False), bulk(max_wait_ms=0.0)])
def test_window_that_is_over_blocks_nothing_even_if_the_timer_is_late(
    arriving: AdmissionRequest,
) -> None:
    core = idle_after_traffic()
    queue(core, bulk(3), "a", at=2.0)
    assert isinstance(core.arrive("b", arriving, 2.051), Lease)
    assert granted(core.take_displaced()) == ["a"]
    assert isinstance(core.arrive("c", arriving, 2.052), Refusal)


def test_a_request_that_may_wait_long_enough_bears_the_window() -> None:
    core = idle_after_traffic()
    queue(core, bulk(), "a", at=2.0)
    queue(core, bulk(max_wait_ms=30.0), "b", at=2.03)
    assert granted(core.dispatch(2.05)) == ["a", "b"]


def test_request_that_opens_a_window_is_not_refused_for_its_time_limits() -> None:
    """It could have begun at once; with no time for the window it does."""
    gathering = rules(bulk=class_rules(ttft_p95_ms=200.0), window_ms=ALWAYS_50_MS)
    for request, waits in (
        (bulk(max_wait_ms=60.0, max_tokens=100), True),
        (bulk(deadline_ms=100.0, max_tokens=100), True),
        (bulk(prompt_tokens=100, max_tokens=100), True),
        (bulk(prompt_tokens=160, max_tokens=100), False),
        (bulk(prompt_tokens=900, max_tokens=100), False),
    ):
        core = idle_after_traffic(gathering, 4)
        core.engine_reports(report(4, step_time=STEP_TIME, prefill_tokens_per_s=1000.0), 2.0)
        outcome = core.arrive("a", request, 2.0)
        if waits:
            assert outcome == Queued(0, 50), "predicted for the end of the window"
            assert granted(core.dispatch(2.05)) == ["a"]
        else:
            assert isinstance(outcome, Lease)


def test_request_without_time_for_an_open_window_ends_it() -> None:
    gathering = rules(bulk=class_rules(ttft_p95_ms=200.0), window_ms=ALWAYS_50_MS)
    core = idle_after_traffic(gathering, 4)
    core.engine_reports(report(4, step_time=STEP_TIME, prefill_tokens_per_s=1000.0), 2.0)
    queue(core, bulk(), "a", at=2.0)
    assert isinstance(core.arrive("late", bulk(prompt_tokens=900), 2.01), Lease)
    assert granted(core.take_displaced()) == ["a"]


def test_no_window_without_queue_capacity() -> None:
    nowhere = rules(bulk=class_rules(queue_capacity=0), window_ms=ALWAYS_50_MS)
    fill(idle_after_traffic(nowhere), bulk(), "a", at=2.0)
    briefly = rules(bulk=class_rules(max_wait_s=0.05), window_ms=ALWAYS_50_MS)
    fill(idle_after_traffic(briefly), bulk(), "a", at=2.0)


def test_forecast_changes_nothing_of_a_window() -> None:
    core = idle_after_traffic()
    queue(core, bulk(), "a", at=2.0)
    core.forecast(bulk(max_tokens=1), 2.06)
    assert core.next_event(2.06) == pytest.approx(2.061)
    assert granted(core.dispatch(2.061)) == ["a"]


# Constraints besides slots


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
    assert core.blocked_by is BlockedBy.RESERVE
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
    assert core.blocked_by is BlockedBy.RESERVE
    fill(core, interactive(), "i", at=30.5)


def test_preemption_blocks_requests_until_the_cache_has_recovered() -> None:
    core = core_of(4, kv=kv_of(1000))
    fill(core, bulk(prompt_tokens=700, max_tokens=100), "a")
    core.engine_reports(report(4, kv=kv_of(1000), kv_usage=0.95, preemptions_total=1), 1.0)
    queue(core, bulk(prompt_tokens=100, max_tokens=50), "b", at=1.0)
    assert core.blocked_by is BlockedBy.KV
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
    assert core.blocked_by is BlockedBy.PREFILL
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
    assert core.constraints.limits.batch(INTERACTIVE) == core.constraints.limits.batch(BULK) == 1
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
