"""What a sidecar claims of an engine that others use, too: what those that wait could take."""

from __future__ import annotations

import pytest

from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.types import Queued
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
    queue,
    reason,
    report,
    rules,
)
from vllm_plugin.contracts.lease_protocol import Claim
from vllm_plugin.contracts.profile import BatchBounds

# Bulk requests start while no more than four sequences run.
FEW = rules(bulk=class_rules(batch=BatchBounds(least=1, most=4)))


def test_head_of_the_queue_claims_the_slots_that_it_lacks() -> None:
    core = core_of(8, foreign=8, sidecars=2)
    assert isinstance(core.arrive("a", interactive(3), 0.0), Queued)
    assert core.order.claim == Claim(3, urgent=True)
    core.leave("a", 0.0)
    assert core.order.claim is None


def test_request_that_waits_for_something_else_claims_nothing() -> None:
    """Slots would be booked for it in vain, again and again."""
    core = core_of(8, FEW, foreign=8, sidecars=2, contended=True)
    assert isinstance(core.arrive("a", bulk(), 0.0), Queued)
    assert core.order.claim is None
    assert reason(core.order.blocked_by) == "batch"
    assert core.next_event(0.0) is not None, "it looks again, whether anything happens or not"
    core.engine_reports(report(8, foreign=4, sidecars=2, contended=True), 1.0)
    assert core.order.claim is None
    core.engine_reports(report(8, foreign=3, sidecars=2, contended=True), 2.0)
    assert core.order.claim == Claim(1, urgent=False)
    core.constraints.offers.offer(1, 1)
    assert granted(core.dispatch(2.0)) == ["a"]


def test_sidecar_whose_interactive_requests_reach_their_limit_claims_nothing() -> None:
    core = core_of(8, rules(class_rules(batch=BatchBounds(least=1, most=2))), sidecars=2)
    fill(core, interactive(), "a", "b")
    core.engine_reports(report(8, foreign=6, sidecars=2, contended=True), 0.0)
    assert isinstance(core.arrive("c", interactive(), 0.0), Queued)
    assert core.order.claim is None
    core.release("a", 1.0)
    assert core.order.claim == Claim(1, urgent=True)


def test_bulk_request_is_owed_its_share_of_an_engine_that_others_want_for_themselves() -> None:
    """Its own sidecar has no interactive traffic, and others have so much that their claims always
    go before one that is not urgent."""
    core = core_of(8, rules(bulk_share=0.25), foreign=8, sidecars=2, contended=True)
    assert isinstance(core.arrive("a", bulk(), 0.0), Queued)
    assert core.order.claim == Claim(1, urgent=False)
    core.dispatch(10.0)  # it is guaranteed a slot of eight
    assert core.order.claim == Claim(1, urgent=True)


def test_offer_is_not_kept_for_a_later_request() -> None:
    core = core_of(8, foreign=6, sidecars=2, contended=True)
    core.arrive("a", interactive(2), 0.0)
    core.constraints.offers.offer(1, 1)
    core.dispatch(0.0)
    core.constraints.offers.settle()
    core.leave("a", 0.0)
    assert isinstance(core.arrive("b", interactive(), 0.01), Queued)
    assert core.order.claim == Claim(1, urgent=True)
    assert core.constraints.offers.take_unused() == 1


def test_all_that_wait_are_claimed_up_to_twice_the_slots_of_the_engine() -> None:
    core = core_of(8, foreign=8, sidecars=2)
    queue(core, interactive(2), "a")
    queue(core, interactive(1), "b", "c")
    queue(core, bulk(4), "d")
    assert core.order.claim == Claim(2, urgent=True, more=2), "bulk requests are another claim"
    for name in "efghi":
        queue(core, interactive(3), name)
    assert core.order.claim == Claim(2, urgent=True, more=14)


def test_bulk_requests_claim_no_free_slots_that_are_reserved() -> None:
    core = core_of(8, foreign=2, sidecars=2, contended=True)
    for at in range(200):  # three at a time
        core.constraints.reserve.interactive.arrivals.append((at * 1.0, interactive(work=384.0)))
    reserved = core.constraints.reserve.reserved(200.0)
    assert 1 <= reserved <= 5
    queue(core, bulk(), *"abcdefgh", at=200.0)
    claim = core.order.claim
    assert claim is not None
    assert claim.slots == 8 - 2 - reserved


def test_bulk_request_that_is_owed_a_slot_claims_for_itself_alone() -> None:
    core = core_of(8, rules(bulk_share=0.25), foreign=8, sidecars=2, contended=True)
    queue(core, bulk(), "a", "b", "c")
    core.dispatch(10.0)
    assert core.order.claim == Claim(1, urgent=True)


# The batch of interactive requests, of all sidecars together.

BATCH = rules(class_rules(batch=BatchBounds(least=1, most=6)))


def beside(foreign_interactive: int, sidecars: int = 2) -> AdmissionController:
    return core_of(
        16, BATCH, foreign=foreign_interactive, foreign_interactive=foreign_interactive,
        sidecars=sidecars,
    )  # fmt: skip


@pytest.mark.parametrize(("sidecars", "share"), [(2, 3), (3, 2), (8, 1)])
def test_sidecar_may_have_its_share_of_the_batch_whatever_the_others_have(
    sidecars: int, share: int
) -> None:
    core = beside(6, sidecars)
    fill(core, interactive(), *"abc"[:share])
    queue(core, interactive(), "d")
    assert reason(core.blocked_by) == "batch"
    assert core.constraints.free_slots(INTERACTIVE, 0.0) == 0


def test_bulk_requests_yield_to_the_interactive_traffic_of_other_sidecars() -> None:
    tight = rules(class_rules(tpot_p95_ms=30.0), class_rules(tpot_p95_ms=1000.0))
    core = core_of(64, tight, sidecars=2, step_time=STEP_TIME, batch_seen=64)
    limits = core.constraints.batch.limits
    assert limits.mixed < limits.bulk
    taken = limits.mixed
    core.engine_reports(
        report(64, foreign=taken, sidecars=2, step_time=STEP_TIME, batch_seen=64), 1.0
    )
    assert core.constraints.free_slots(BULK, 1.0) > 0
    core.engine_reports(
        report(
            64, foreign=taken, foreign_interactive=1, sidecars=2, step_time=STEP_TIME, batch_seen=64
        ),
        2.0,
    )
    assert core.constraints.free_slots(BULK, 2.0) == 0
