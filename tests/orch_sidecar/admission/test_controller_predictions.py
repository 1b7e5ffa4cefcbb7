"""The admission controller by example: predictions, and what is refused for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.prediction.forecast import Forecast
from orch_sidecar.admission.types import Lease, Queued
from orch_sidecar.api.refusal import Reason, Refusal
from tests.orch_sidecar.admission.examples import (
    BULK,
    INTERACTIVE,
    STEP_TIME,
    bulk,
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
from vllm_plugin.contracts.profile import AdmissionRules, BatchBounds


def measured(slots: int, of_rules: AdmissionRules | None = None) -> AdmissionController:
    """Steps of 10 ms + 1 ms for each sequence, 1000 tokens of prompts per second."""
    return core_of(slots, of_rules, step_time=STEP_TIME, prefill_tokens_per_s=1000.0)


# Predictions: 2.1 s for a request of 100 tokens while one or none runs, 1.1 s behind it.


def test_a_request_that_would_start_too_late_is_refused_at_once() -> None:
    core = measured(1, rules(class_rules(max_wait_s=2.0)))
    fill(core, interactive(max_tokens=100), "a")
    request = interactive(max_tokens=100, max_wait_ms=1000.0)
    outcome = core.arrive("b", request, 0.0)
    assert isinstance(outcome, Refusal)
    assert (outcome.reason, outcome.queue_position) == (Reason.QUEUE_TIMEOUT, 0)
    assert outcome.predicted_start_ms == 1100
    queue(core, interactive(max_tokens=100), "c")
    assert reason_of(core.arrive("d", interactive(max_tokens=100), 0.0)) is Reason.QUEUE_TIMEOUT


def test_who_would_start_too_late_is_not_asked_back_before_that_has_passed() -> None:
    core = measured(1, rules(class_rules(max_wait_s=2.0)))
    fill(core, interactive(max_tokens=3000), "a")
    outcome = core.arrive("b", interactive(max_tokens=100), 0.0)
    assert isinstance(outcome, Refusal)
    start_ms = outcome.predicted_start_ms
    assert start_ms is not None
    assert 20_000 < start_ms < 50_000
    assert outcome.retry_after_ms is not None
    assert start_ms - 2000 <= outcome.retry_after_ms <= 1.25 * (start_ms - 2000)


def test_a_first_token_after_the_deadline_is_refused_at_once() -> None:
    core = measured(1)
    request = interactive(prompt_tokens=500, max_tokens=100, deadline_ms=500.0)
    assert reason_of(core.arrive("a", request, 0.0)) is Reason.DEADLINE_MISS
    fill(core, replace(request, deadline_ms=600.0), "b")
    late = replace(request, prompt_tokens=0, deadline_ms=1000.0)
    assert reason_of(core.arrive("c", late, 0.0)) is Reason.DEADLINE_MISS
    queue(core, replace(late, deadline_ms=2000.0), "d")


def test_tokens_that_would_come_too_slowly_are_refused_at_once() -> None:
    """A step takes 11 ms with one sequence, 12 ms with two, 14 ms with four."""
    core = measured(4)
    fill(core, interactive(max_tokens=100, tpot_ms=11.0), "a")
    hasty = interactive(max_tokens=100, tpot_ms=11.0)
    assert reason_of(core.arrive("b", hasty, 0.0)) is Reason.DEADLINE_MISS
    fill(core, replace(hasty, tpot_ms=12.0), "b")
    fill(core, interactive(2, max_tokens=100), "c")
    queue(core, replace(hasty, tpot_ms=14.0), "d")  # in place of another
    outcome = core.arrive("e", replace(hasty, tpot_ms=13.0), 0.0)
    assert isinstance(outcome, Refusal)
    assert outcome.reason is Reason.DEADLINE_MISS
    assert "every 14 ms" in outcome.message
    assert "13 ms" in outcome.message


def test_time_per_token_is_that_of_real_traffic() -> None:
    slow = replace(STEP_TIME, traffic=2.0)
    core = core_of(4, step_time=slow, prefill_tokens_per_s=1000.0)
    assert reason_of(core.arrive("a", interactive(tpot_ms=21.0), 0.0)) is Reason.DEADLINE_MISS
    fill(core, interactive(tpot_ms=22.0), "b")


def test_a_wait_that_misses_the_slo_is_refused_at_once() -> None:
    core = measured(1, rules(class_rules(ttft_p95_ms=2000.0)))
    fill(core, interactive(max_tokens=100), "a")
    queue(core, interactive(max_tokens=100), "b")
    assert reason_of(core.arrive("c", interactive(max_tokens=100), 0.0)) is Reason.SLO_MISS
    queue(core, bulk(max_tokens=100), "d")  # it has no SLO


def test_a_wait_ends_when_the_slo_can_no_longer_be_met() -> None:
    """2 s, less a prompt of 500 ms and a step of 12 ms."""
    core = measured(1, rules(class_rules(ttft_p95_ms=2000.0)))
    fill(core, interactive(max_tokens=100), "a")
    queue(core, interactive(prompt_tokens=500, max_tokens=100), "b")
    assert core.next_event(0.0) == pytest.approx(1.488)
    assert core.dispatch(1.48) == []
    assert refused(core.dispatch(1.49)) == {"b": Reason.SLO_MISS}


def test_a_wait_ends_with_the_slo_itself_while_the_step_time_is_not_known() -> None:
    core = core_of(1, rules(class_rules(ttft_p95_ms=2000.0)))
    fill(core, interactive(), "a")
    queue(core, interactive(prompt_tokens=500), "b")
    assert core.next_event(0.0) == 2.0
    assert refused(core.dispatch(2.0)) == {"b": Reason.SLO_MISS}


def test_nothing_is_refused_on_a_guess() -> None:
    """Without a step time no start is predicted."""
    core = core_of(1, rules(class_rules(ttft_p95_ms=1.0)))
    fill(core, interactive(max_tokens=10**6), "a")
    request = interactive(max_tokens=10**6, deadline_ms=1.0, max_wait_ms=1.0)
    assert queue(core, request, "b") == [Queued(0, None)]


# Free slots that cannot be used


def test_interactive_requests_that_wait_for_each_other_count_only_their_ends() -> None:
    """With six in the engine a step takes 16 ms."""
    core = measured(8, rules(class_rules(batch=BatchBounds(least=1, most=2))))
    fill(core, bulk(4, max_tokens=10), "b")
    fill(core, interactive(2, max_tokens=100), "i")
    assert core.forecast(bulk(max_tokens=100), 0.0) is not None
    request = interactive(max_tokens=100)
    foreseen = core.forecast(request, 0.0)
    assert foreseen is not None
    assert foreseen.start_ms == pytest.approx(1600)
    assert queue(core, request, "i2", "i3", "i4") == [
        Queued(0, 1600), Queued(1, 1600), Queued(2, 3200),
    ]  # fmt: skip
    assert reason(core.blocked_by) == "batch"


def test_bulk_requests_beyond_their_batch_wait_for_an_end_of_either_class() -> None:
    core = measured(8, rules(bulk=class_rules(batch=BatchBounds(least=1, most=4))))
    fill(core, bulk(3, max_tokens=100), "b")
    fill(core, interactive(max_tokens=50), "i")
    assert queue(core, bulk(max_tokens=100), "b2", "b3") == [Queued(0, 700), Queued(1, 1400)]
    assert reason(core.blocked_by) == "batch"
    assert core.forecast(interactive(max_tokens=100), 0.0) == Forecast(0, 15, 1500)


def test_free_slots_are_of_no_use_until_the_cache_has_room() -> None:
    core = core_of(8, step_time=STEP_TIME, kv=kv_of(1000), kv_usage=0.95)
    fill(core, bulk(prompt_tokens=800, max_tokens=100), "a")
    request = bulk(prompt_tokens=300, max_tokens=100)
    assert queue(core, request, "b", "c") == [Queued(0, 1100), Queued(1, 1100)]
    assert reason(core.blocked_by) == "kv"
    assert granted(core.release("a", 1.1, 100)) == ["b", "c"]


@pytest.mark.parametrize("known", [{"slots": 2}, {"slots": 4, "foreign": 2}])
def test_slots_that_are_given_back_to_others_first_are_not_promised(known: dict[str, Any]) -> None:
    """More run than the engine has slots for: the first two ends give none."""
    core = core_of(4, step_time=STEP_TIME)
    for number in range(1, 5):
        fill(core, interactive(max_tokens=100 * number), f"r{number}")
    core.engine_reports(report(**known, step_time=STEP_TIME), 0.0)
    step_ms = 14 + known.get("foreign", 0)
    assert queue(core, interactive(max_tokens=10), "q") == [Queued(0, 300 * step_ms)]
    assert granted(core.release("r1", 1.0) + core.release("r2", 2.0)) == []
    assert granted(core.release("r3", 3.0)) == ["q"]


def test_nobody_knows_when_others_leave_room_in_the_cache() -> None:
    core = core_of(2, foreign=1, kv=kv_of(500), kv_usage=0.5)
    assert queue(core, interactive(prompt_tokens=400), "a") == [Queued(0, None)]
    assert queue(core, interactive(max_tokens=10), "b") == [Queued(1, None)], "it waits behind it"
    shown = core.forecaster.starts(INTERACTIVE, core.blocked_by, 0.0)
    assert [start_s for _, start_s in shown] == [None, None]


def test_request_in_line_for_a_slot_is_told_of_the_cache_that_will_lack_room_then() -> None:
    """A step takes 13 ms, and slots come free after 1.3, 1.3 and 9.1 s. With the last one come the
    blocks that the second in line needs; the third waits behind it."""
    core = core_of(3, step_time=STEP_TIME, kv=kv_of(1000))
    fill(core, interactive(max_tokens=100), "a", "b")
    fill(core, interactive(max_tokens=700), "c")
    small, large = interactive(max_tokens=50), interactive(prompt_tokens=400, max_tokens=50)
    starts = [each.predicted_start_ms for each in queue(core, small, "d")]
    starts += [each.predicted_start_ms for each in queue(core, large, "e")]
    starts += [each.predicted_start_ms for each in queue(core, small, "f")]
    assert reason(core.blocked_by) == "slot"
    assert starts == [1300, 9100, 9100]
    shown = core.forecaster.starts(INTERACTIVE, core.blocked_by, 0.0)
    assert [round(1000 * (start_s or 0)) for _, start_s in shown] == starts


def test_forecast_of_a_free_engine_and_of_a_full_one() -> None:
    core = measured(1)
    request = interactive(prompt_tokens=100, max_tokens=100)
    forecast = core.forecast(request, 0.0)
    assert forecast is not None
    assert (forecast.start_ms, forecast.first_token_ms) == pytest.approx((0, 111))
    assert forecast.end_ms == pytest.approx(1200)
    fill(core, request, "a")
    forecast = core.forecast(request, 0.0)
    assert forecast is not None
    assert forecast.start_ms == pytest.approx(1200)
    assert core_of(1).forecast(request, 0.0) is None
    assert core.forecast(replace(request, cost=2), 0.0) is None


def test_forecasts_follow_what_happens_without_anybody_waiting() -> None:
    core = measured(2)
    request = interactive(max_tokens=100)
    fill(core, request, "a")
    assert core.forecast(replace(request, cost=2), 0.0) is not None
    fill(core, request, "b", at=0.001)
    assert queue(core, request, "c", at=0.002) == [Queued(0, 1198)]
    core.refuse_queued(Refusal(Reason.CANCELLED, ""))
    core.forecast(request, 0.1)
    core.engine_reports(report(3, step_time=STEP_TIME), 0.101)
    assert core.forecast(replace(request, cost=3), 0.102) is not None


def test_forecast_is_behind_a_request_that_waits_for_more_slots_than_are_free() -> None:
    core = measured(2)
    fill(core, interactive(max_tokens=100), "a")
    queue(core, interactive(2, max_tokens=100), "b")
    forecast = core.forecast(interactive(max_tokens=100), 0.0)
    assert forecast is not None
    assert forecast.start_ms > 2000, "a slot is free, and not for it"


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 3), st.integers(1, 500)), max_size=12),
    st.lists(st.tuples(st.integers(2, 500), st.floats(0, 2)), min_size=3, max_size=12),
)
def test_predictions_are_never_negative_and_grow_with_the_position(
    running: list[tuple[bool, int, int]], waiting: list[tuple[int, float]]
) -> None:
    core = measured(3)
    for number, (is_bulk, cost, max_tokens) in enumerate(running):
        kind = bulk if is_bulk else interactive
        core.arrive(f"r{number}", kind(cost, max_tokens=max_tokens), 0.0)
    core.refuse_queued(Refusal(Reason.CANCELLED, ""))
    now, last = 0.0, {INTERACTIVE: 0, BULK: 0}
    for number, (max_tokens, passed_s) in enumerate(waiting):
        request = (interactive, bulk)[number % 2](max_tokens=max_tokens)
        foreseen = core.forecast(request, now)
        outcome = core.arrive(f"w{number}", request, now)
        if isinstance(outcome, Lease):
            continue
        assert isinstance(outcome, Queued)
        assert foreseen is not None
        assert outcome.predicted_start_ms == round(foreseen.start_ms)
        assert outcome.predicted_start_ms >= last[request.service_class]
        assert 0 <= foreseen.start_ms <= foreseen.first_token_ms <= foreseen.end_ms
        last[request.service_class] = max(0, outcome.predicted_start_ms)
        last = dict.fromkeys(last, 0) if passed_s else last
        now += passed_s


# Prompts that the engine has yet to read


def test_a_request_that_can_start_now_is_refused_where_prompts_before_its_own_make_it_late() -> (
    None
):
    core = measured(4, rules(class_rules(ttft_p95_ms=1000.0)))
    fill(core, interactive(prompt_tokens=800), "a")
    outcome = core.arrive("b", interactive(prompt_tokens=300), 0.0)
    assert isinstance(outcome, Refusal)
    assert outcome.reason is Reason.SLO_MISS
    assert outcome.retry_after_ms is not None
    assert outcome.retry_after_ms >= 800, "when these are read"
    fill(core, interactive(prompt_tokens=20), "c")
    fill(core, interactive(prompt_tokens=300), "d", at=2.0)
    fill(core, bulk(prompt_tokens=10_000), "e", at=2.0)


def test_a_request_that_is_late_in_an_idle_engine_too_is_served() -> None:
    core = measured(4, rules(class_rules(ttft_p95_ms=1000.0)))
    fill(core, interactive(prompt_tokens=5000), "a")
    fill(core, interactive(prompt_tokens=5000), "b")


def test_a_request_is_not_dispatched_when_its_first_token_would_be_late_meanwhile() -> None:
    core = measured(2, rules(class_rules(ttft_p95_ms=1000.0)))
    fill(core, interactive(max_tokens=20), "a", "b")
    queue(core, interactive(max_tokens=20, prompt_tokens=100), "c", "d")
    core.service_times.prompts.sent(Lease("other", 1, "e1"), 900, 0.2)  # of a parent, say
    assert refused(core.release("a", 0.2, 20)) == {"c": Reason.SLO_MISS, "d": Reason.SLO_MISS}


def test_a_request_that_has_waited_is_not_refused_for_what_predictions_may_err() -> None:
    """Its first token is expected after 1.05 s; one that arrives is refused for 0.95 s."""
    core = measured(2, rules(class_rules(ttft_p95_ms=1000.0)))
    fill(core, interactive(max_tokens=20), "a", "b")
    queue(core, interactive(max_tokens=20, prompt_tokens=100), "c")
    core.service_times.prompts.sent(Lease("other", 1, "e1"), 750, 0.2)
    assert granted(core.release("a", 0.2, 20)) == ["c"]
    outcome = core.arrive("d", interactive(max_tokens=20, prompt_tokens=100), 0.2)
    assert reason_of(outcome) is Reason.SLO_MISS


def test_refusal_of_one_that_has_waited_says_when_its_first_token_was_expected() -> None:
    core = measured(2, rules(class_rules(ttft_p95_ms=1000.0)))
    fill(core, interactive(max_tokens=20), "a", "b")
    queue(core, interactive(max_tokens=20, prompt_tokens=100), "c")
    core.service_times.prompts.sent(Lease("other", 1, "e1"), 900, 0.2)
    [decision] = core.release("a", 0.2, 20)
    assert isinstance(decision.outcome, Refusal)
    assert decision.outcome.message.startswith(
        "the first token is expected 1195 ms after the arrival of the request, 200 ms ago, and the "
        "SLO of interactive requests is 1000 ms"
    )


def test_unread_prompts_count_in_the_forecast() -> None:
    core = measured(4)
    request = interactive(prompt_tokens=100, max_tokens=100)
    alone = core.forecast(request, 0.0)
    fill(core, interactive(prompt_tokens=500, max_tokens=10), "a")
    behind = core.forecast(request, 0.0)
    assert alone is not None
    assert behind is not None
    assert behind.first_token_ms - alone.first_token_ms == pytest.approx(500, abs=5)
    assert behind.start_ms == 0
