"""A request is dispatched under an offer while others claim slots, or after a rejection."""

from __future__ import annotations

import pytest

from orch_sidecar.admission.constraints.slot_offers import SlotOffers
from orch_sidecar.admission.types import BlockedBy
from tests.orch_sidecar.admission.examples import (
    bulk,
    core_of,
    fill,
    granted,
    interactive,
    queue,
    report,
)
from vllm_plugin.lease_protocol import OFFER_S, Claim

SLOTS = 4


@pytest.fixture
def offers() -> SlotOffers:
    """Another sidecar claims slots."""
    made = SlotOffers()
    made.reported(report(SLOTS, sidecars=2, contended=True))
    return made


def test_offer_is_for_requests_of_its_cost_and_for_its_time(offers: SlotOffers) -> None:
    assert offers.block(1, 10.0)
    offers.offer(2, 1, 10.0)
    assert not offers.block(1, 10.0)
    assert not offers.block(2, 10.0)
    assert offers.block(3, 10.0)
    assert not offers.block(2, 10.0 + OFFER_S * 0.99)
    assert offers.block(2, 10.0 + OFFER_S)


def test_offer_is_used_once(offers: SlotOffers) -> None:
    offers.offer(2, 1, 10.0)
    offers.granted()
    assert offers.block(1, 10.0)


def test_later_offer_replaces_an_earlier_one(offers: SlotOffers) -> None:
    offers.offer(3, 1, 10.0)
    offers.offer(1, 1, 10.05)
    assert offers.block(3, 10.06)
    assert not offers.block(1, 10.06 + OFFER_S / 2)


def test_rejection_ends_the_offer_and_lasts_until_an_offer_is_taken(offers: SlotOffers) -> None:
    offers.offer(1, 1, 10.0)
    offers.reject()
    assert offers.rejected
    assert offers.block(1, 10.0)
    offers.granted()
    assert offers.rejected, "there was no offer"
    offers.offer(1, 1, 10.0)
    offers.granted()
    assert not offers.rejected


def test_rejections_are_counted() -> None:
    offers = SlotOffers()
    for _ in range(3):
        offers.reject()
    offers.begin_epoch()
    offers.settle()
    assert offers.rejections == 3


def test_rejection_is_settled_when_nothing_waits_and_when_the_engine_restarts() -> None:
    offers = SlotOffers()
    offers.reject()
    offers.settle()
    assert not offers.rejected
    offers.reject()
    offers.offer(1, 1, 10.0)
    offers.begin_epoch()
    assert not offers.rejected
    assert offers.block(1, 10.0), "its offers ended with the engine"


def test_engine_knows_what_waits_only_where_that_concerns_others() -> None:
    offers = SlotOffers()
    assert not offers.shared
    offers.reported(report(SLOTS, sidecars=2))
    assert offers.shared
    offers.reported(report(SLOTS, sidecars=0))  # its own stream is not counted yet
    assert (offers.sidecars, offers.shared) == (1, False)
    offers.reject()
    assert offers.shared


# In the admission controller.


def test_alone_and_uncontended_no_offer_is_needed() -> None:
    core = core_of(SLOTS)
    fill(core, interactive(), "a", "b")
    core = core_of(SLOTS, sidecars=3)
    fill(core, interactive(), "a", "b")


def test_request_waits_for_an_offer_although_slots_are_free_while_others_claim_them() -> None:
    core = core_of(SLOTS, sidecars=2, contended=True)
    queue(core, interactive(2), "a", "b")
    assert core.blocked_by is BlockedBy.SLOT
    assert core.order.claim == Claim(2, urgent=True)
    core.constraints.offers.offer(2, 1, 1.0)
    assert granted(core.dispatch(1.0)) == ["a"], "an offer is for one request"
    assert core.order.claim == Claim(2, urgent=True)


def test_offer_that_is_too_small_dispatches_nothing() -> None:
    core = core_of(SLOTS, sidecars=2, contended=True)
    queue(core, interactive(3), "large")
    queue(core, interactive(1), "small", at=0.1)
    core.constraints.offers.offer(1, 1, 1.0)
    assert granted(core.dispatch(1.0)) == [], "none overtakes the head of the queue"


def test_request_waits_no_longer_when_others_claim_nothing() -> None:
    core = core_of(SLOTS, sidecars=2, contended=True)
    queue(core, interactive(), "a", "b")
    assert granted(core.engine_reports(report(SLOTS, sidecars=2), 1.0)) == ["a", "b"]


def test_rejected_request_waits_for_an_offer_before_all_others() -> None:
    core = core_of(SLOTS)
    fill(core, interactive(), "sent")
    queue(core, interactive(SLOTS), "behind", at=0.5)
    core.constraints.offers.reject()
    assert granted(core.release("sent", 1.0, served=False)) == []
    core.requeue("again", interactive(), 0.0, 1.0)
    assert core.dispatch(1.0) == []
    assert core.order.claim == Claim(1, urgent=True)
    core.constraints.offers.offer(1, 1, 1.1)
    assert granted(core.dispatch(1.1)) == ["again"]
    assert granted(core.release("again", 2.0)) == ["behind"], "and then as alone"


@pytest.mark.parametrize("offered", [False, True])
def test_offer_gives_no_slots_beyond_those_of_the_engine(offered: bool) -> None:
    core = core_of(SLOTS, sidecars=2, contended=True, foreign=SLOTS - 1)
    queue(core, interactive(2), "a")
    if offered:
        core.constraints.offers.offer(2, 1, 1.0)
    assert granted(core.dispatch(1.0)) == []


def test_claim_is_for_the_head_of_the_queue_and_urgent_if_it_is_interactive() -> None:
    core = core_of(SLOTS, sidecars=2, foreign=SLOTS)
    queue(core, bulk(3), "bulk", at=1.0)
    core.dispatch(1.0)
    assert core.order.claim == Claim(3, urgent=False)
    queue(core, interactive(2), "interactive", at=1.5)
    core.dispatch(1.5)
    assert core.order.claim == Claim(2, urgent=True)
    assert core.leave("interactive", 2.0) == []
    assert core.order.claim == Claim(3, urgent=False)
    core.leave("bulk", 2.5)
    core.dispatch(2.5)
    assert core.order.claim is None
