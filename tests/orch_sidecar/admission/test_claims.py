"""What a sidecar claims of an engine that others use, too: what its next request could take."""

from __future__ import annotations

from orch_sidecar.admission.types import BlockedBy, Lease, Queued
from tests.orch_sidecar.admission.examples import (
    bulk,
    class_rules,
    core_of,
    fill,
    granted,
    interactive,
    report,
    rules,
)
from vllm_plugin.lease_protocol import OFFER_S, Claim
from vllm_plugin.profile import BatchBounds

# Bulk requests start while no more than four sequences run.
FEW = rules(bulk=class_rules(batch=BatchBounds(least=1, most=4)))


def test_head_of_the_queue_claims_the_slots_that_it_lacks() -> None:
    core = core_of(8, foreign=8, sidecars=2)
    assert isinstance(core.arrive("a", interactive(3), 0.0), Queued)
    assert core.order.claim == Claim(3, urgent=True)
    core.leave("a", 0.0)
    assert core.order.claim is None


def test_request_is_dispatched_under_an_offer_while_others_claim_slots() -> None:
    core = core_of(8, foreign=6, sidecars=2, contended=True)
    assert isinstance(core.arrive("a", interactive(2), 0.0), Queued)
    assert core.order.claim == Claim(2, urgent=True)
    core.constraints.offers.offer(1, 1, 0.0)
    assert granted(core.dispatch(0.0)) == []
    core.constraints.offers.offer(2, 2, 0.0)
    assert granted(core.dispatch(OFFER_S)) == [], "it has expired"
    core.constraints.offers.offer(2, 3, 1.0)
    assert granted(core.dispatch(1.0)) == ["a"]


def test_request_that_waits_for_something_else_claims_nothing() -> None:
    """Slots would be booked for it in vain, again and again."""
    core = core_of(8, FEW, foreign=8, sidecars=2, contended=True)
    assert isinstance(core.arrive("a", bulk(), 0.0), Queued)
    assert core.order.claim is None
    assert core.order.blocked_by is BlockedBy.BATCH
    assert core.next_event(0.0) is not None, "it looks again, whether anything happens or not"
    core.engine_reports(report(8, foreign=4, sidecars=2, contended=True), 1.0)
    assert core.order.claim is None
    core.engine_reports(report(8, foreign=3, sidecars=2, contended=True), 2.0)
    assert core.order.claim == Claim(1, urgent=False)
    core.constraints.offers.offer(1, 1, 2.0)
    assert granted(core.dispatch(2.0)) == ["a"]


def test_sidecar_that_has_all_slots_claims_the_next_that_comes_free() -> None:
    core = core_of(4, sidecars=2)
    fill(core, interactive(), *"abcd")
    assert isinstance(core.arrive("e", interactive(), 0.0), Queued)
    assert core.order.claim == Claim(1, urgent=True)


def test_sidecar_whose_interactive_requests_reach_their_limit_claims_nothing() -> None:
    core = core_of(8, rules(class_rules(batch=BatchBounds(least=1, most=2))), sidecars=2)
    fill(core, interactive(), "a", "b")
    core.engine_reports(report(8, foreign=6, sidecars=2, contended=True), 0.0)
    assert isinstance(core.arrive("c", interactive(), 0.0), Queued)
    assert core.order.claim is None
    core.release("a", 1.0)
    assert core.order.claim == Claim(1, urgent=True)


def test_request_that_takes_all_slots_claims_them() -> None:
    """Alone in the engine it is limited by nothing else."""
    core = core_of(8, FEW, foreign=8, sidecars=2, contended=True)
    core.arrive("a", bulk(8), 0.0)
    assert core.order.claim == Claim(8, urgent=False)


def test_bulk_request_is_owed_its_share_of_an_engine_that_others_want_for_themselves() -> None:
    """Its own sidecar has no interactive traffic, and others have so much that their claims always
    go before one that is not urgent."""
    core = core_of(8, rules(bulk_share=0.25), foreign=8, sidecars=2, contended=True)
    assert isinstance(core.arrive("a", bulk(), 0.0), Queued)
    assert core.order.claim == Claim(1, urgent=False)
    core.dispatch(10.0)  # it is guaranteed a slot of eight
    assert core.order.claim == Claim(1, urgent=True)


def test_alone_a_sidecar_claims_nothing_and_waits_for_no_offer() -> None:
    core = core_of(8, foreign=8)
    core.arrive("a", interactive(), 0.0)
    assert core.order.claim is None
    assert granted(core.engine_reports(report(8, foreign=7), 1.0)) == ["a"]
    assert isinstance(core.release("a", 2.0), list)
    assert isinstance(core.arrive("b", interactive(), 2.0), Lease)


def test_offer_ends_with_the_claim_that_it_was_for() -> None:
    """It was withdrawn at the engine, which has booked nothing for a later request."""
    core = core_of(8, foreign=6, sidecars=2, contended=True)
    core.arrive("a", interactive(2), 0.0)
    core.constraints.offers.offer(1, 1, 0.0)
    core.leave("a", 0.0)
    core.constraints.offers.settle()
    assert isinstance(core.arrive("b", interactive(), 0.01), Queued)
    assert core.order.claim == Claim(1, urgent=True)
