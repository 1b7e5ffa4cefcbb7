"""The admission controller by example: full queues and time limits."""

from __future__ import annotations

import pytest

from orch_sidecar.admission import refusals
from orch_sidecar.admission.types import AdmissionRequest, Queued
from orch_sidecar.api.refusal import Reason, Refusal
from tests.orch_sidecar.admission.examples import (
    bulk,
    class_rules,
    core_of,
    fill,
    granted,
    interactive,
    queue,
    refused,
    rules,
)
from vllm_plugin.contracts.profile import AdmissionRules, BatchBounds, FullQueue


def of_capacity(capacity: int, full_queue: FullQueue = FullQueue.REJECT) -> AdmissionRules:
    """The same for both classes."""
    of_class = class_rules(queue_capacity=capacity)
    return rules(of_class, of_class, full_queue=full_queue)


# Full queues


def test_full_queue_refuses_with_a_time_to_come_back() -> None:
    core = core_of(1, of_capacity(1))
    fill(core, interactive(), "a")
    queue(core, interactive(), "b")
    outcome = core.arrive("c", interactive(), 0.0)
    assert isinstance(outcome, Refusal)
    assert outcome.reason is Reason.QUEUE_FULL
    assert outcome.queue_position == 1
    assert outcome.retry_after_ms is not None


def test_request_behind_the_evicted_one_is_dispatched_if_it_fits() -> None:
    core = core_of(4, of_capacity(2, FullQueue.DROP_LRU))
    fill(core, bulk(3), "a")
    queue(core, bulk(4), "large")
    queue(core, bulk(1), "small")
    assert core.arrive("last", bulk(1), 1.0) == Queued(2, None)
    decisions = core.take_displaced()
    assert refused(decisions) == {"large": Reason.QUEUE_FULL_DROP_LRU}
    assert granted(decisions) == ["small"]


# Retry-After


@pytest.mark.parametrize("seed", range(5))
def test_retry_after_counts_the_cost_of_all_queued_requests_and_is_spread(seed: int) -> None:
    core = core_of(4, of_capacity(2))
    core.enqueuer._jitter.seed(seed)
    fill(core, interactive(4), "a")
    core.release("a", 0.0)
    fill(core, interactive(4), "b")
    core.release("b", 4.0)  # 4 slots in 4 s: one per second
    fill(core, interactive(4), "c", at=4.0)
    queue(core, interactive(2), "d", at=4.0)
    queue(core, interactive(3), "e", at=4.0)
    outcome = core.arrive("f", interactive(1), 4.0)
    assert isinstance(outcome, Refusal)
    assert outcome.retry_after_ms is not None
    assert 6000 <= outcome.retry_after_ms <= 7500


# Time limits


@pytest.mark.parametrize(
    ("arriving", "at", "reason"),
    [
        (bulk(max_wait_ms=500.0), 0.5, Reason.QUEUE_TIMEOUT),
        (bulk(deadline_ms=500.0), 0.5, Reason.DEADLINE_MISS),
        (bulk(max_wait_ms=900.0, deadline_ms=500.0), 0.5, Reason.DEADLINE_MISS),
        (bulk(max_wait_ms=500.0, deadline_ms=900.0), 0.5, Reason.QUEUE_TIMEOUT),
        (bulk(max_wait_ms=1e9, deadline_ms=1e9), 60.0, Reason.QUEUE_TIMEOUT),
    ],
)
def test_the_shortest_of_its_time_limits_ends_the_wait(
    arriving: AdmissionRequest, at: float, reason: Reason
) -> None:
    core = core_of(1)
    fill(core, bulk(), "a")
    queue(core, arriving, "b")
    assert core.next_event(0.0) == at
    assert core.dispatch(at - 0.001) == []
    assert refused(core.dispatch(at)) == {"b": reason}


def test_refusal_states_a_time_limit_in_whole_milliseconds() -> None:
    """Of what the client allows, a fraction has passed before it is compared."""
    asked = interactive(max_wait_ms=199.808)
    refusal = refusals.too_long_a_wait(asked, class_rules(), start_ms=3000)
    assert refusal is not None
    assert "would start in 3000 ms, and X-Orch-Max-Wait-Ms allows 200 ms:" in refusal.message
    refusal = refusals.late(interactive(deadline_ms=1499.81), class_rules(), 2.0)
    assert refusal is not None
    assert "the request allows 1500 ms (" in refusal.message


def test_no_request_is_overtaken_while_the_timer_is_late() -> None:
    """What the one at the head waits for is not what the next does."""
    core = core_of(3, rules(class_rules(batch=BatchBounds(least=1, most=2))))
    fill(core, interactive(), "a")
    queue(core, interactive(2, max_wait_ms=1000.0), "late")
    queue(core, interactive(), "next")
    fill(core, bulk(), "b", at=0.5)
    queue(core, bulk(), "b2", at=1.1)
    decisions = core.take_displaced()
    assert refused(decisions) == {"late": Reason.QUEUE_TIMEOUT}
    assert granted(decisions) == ["next"]
