"""While requests wait at other sidecars, one is dispatched under an offer only."""

from __future__ import annotations

import pytest

from orch_sidecar.admission.constraints.constraint import Occupancy
from orch_sidecar.admission.constraints.slot_offers import SlotOffers
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.types import Lease
from tests.orch_sidecar.admission.examples import (
    interactive,
    report,
)

SLOTS = 4


@pytest.fixture
def offers() -> SlotOffers:
    """Another sidecar claims slots."""
    made = SlotOffers(Ledger())
    made.reported(report(SLOTS, sidecars=2, contended=True), 0.0)
    return made


def blocks(offers: SlotOffers, slots: int) -> bool:
    return offers.blocks(interactive(slots), Occupancy(0, 0), 0.0)


def grant(offers: SlotOffers, slots: int) -> bool:
    """Returns whether that was under an offer."""
    lease = Lease("a", slots, "e1")
    if offers.left:
        offers.use(lease)
    return lease.offered


def test_rest_of_an_offer_is_given_back_and_so_are_slots_of_requests_that_are_not_sent(
    offers: SlotOffers,
) -> None:
    offers.offer(3, 1)
    grant(offers, 1)
    offers.settle()
    assert blocks(offers, 1)
    offers.give_back(1)
    assert offers.unused == 3
    assert (offers.take_unused(), offers.unused) == (3, 0)


def test_rejection_lasts_until_a_request_is_dispatched_under_an_offer(offers: SlotOffers) -> None:
    offers.rejected()
    assert offers.was_rejected
    grant(offers, 1)
    assert offers.was_rejected, "there was no offer"
    offers.offer(1, 1)
    grant(offers, 1)
    assert not offers.was_rejected


@pytest.mark.parametrize(
    ("sidecars", "contended", "rejected", "waits"),
    [
        (1, False, False, False),
        (1, False, True, True),
        (2, False, False, False),
        (2, True, False, True),
    ],
)
def test_offer_is_needed_while_requests_wait_elsewhere_or_after_a_rejection(
    sidecars: int, contended: bool, rejected: bool, waits: bool
) -> None:
    offers = SlotOffers(Ledger())
    offers.reported(report(SLOTS, sidecars=sidecars, contended=contended), 0.0)
    if rejected:
        offers.rejected()
    assert blocks(offers, 1) is waits


def test_rest_of_an_offer_is_kept_for_requests_on_their_way_where_nobody_else_waits() -> None:
    """They were sent into the slot that is offered, as soon as it was seen free."""
    offers = SlotOffers(Ledger())
    offers.reported(report(SLOTS, sidecars=2), 0.0)
    offers.offer(3, 1)
    offers.settle()
    assert (offers.left, offers.unused) == (0, 0)


def test_rejection_ends_when_nothing_waits_and_when_the_engine_restarts() -> None:
    offers = SlotOffers(Ledger())
    offers.rejected()
    offers.withdraw()
    assert not offers.was_rejected
    offers.rejected()
    offers.give_back(1)
    offers.begin_epoch()
    assert not offers.was_rejected
    assert (offers.left, offers.taken, offers.unused) == (0, 0, 0), "they ended with the engine"


def test_engine_knows_what_waits_only_where_that_concerns_others() -> None:
    offers = SlotOffers(Ledger())
    assert not offers.shared
    offers.reported(report(SLOTS, sidecars=2), 0.0)
    assert offers.shared
    offers.reported(report(SLOTS, sidecars=0), 0.0)  # its own stream is not counted yet
    assert (offers.sidecars, offers.shared) == (1, False)
    offers.rejected()
    assert offers.shared
