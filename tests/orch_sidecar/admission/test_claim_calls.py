"""When the engine is called about what is claimed of its slots, and with what."""

from __future__ import annotations

import pytest

from orch_sidecar.admission.claims import ClaimCalls, EngineClaims
from orch_sidecar.admission.constraints.constraint import UNLIMITED, Occupancy
from orch_sidecar.admission.controller import AdmissionController
from tests.orch_sidecar.admission.examples import (
    INTERACTIVE,
    bulk,
    class_rules,
    core_of,
    interactive,
    queue,
    report,
    rules,
)
from vllm_plugin.contracts.lease_protocol import Claim, ClaimCall
from vllm_plugin.contracts.profile import BatchBounds

SLOTS = 8


@pytest.fixture
def core() -> AdmissionController:
    """Another sidecar has all slots."""
    return core_of(SLOTS, foreign=SLOTS, sidecars=2)


@pytest.fixture
def calls(core: AdmissionController) -> ClaimCalls:
    return ClaimCalls(EngineClaims(core, "1" * 16))


def claimed(slots: int) -> Claim:
    return Claim(1, urgent=True, more=slots - 1)


def test_calls_are_numbered_and_one_that_suffices_is_not_repeated(
    core: AdmissionController, calls: ClaimCalls
) -> None:
    assert calls.next(again=True) is None
    queue(core, interactive(), "a")
    assert calls.next(again=False) == ClaimCall(claimed(1), number=1)
    assert calls.next(again=False) is None
    assert calls.next(again=True) == ClaimCall(claimed(1), number=2)
    core.leave("a", 0.0)
    assert calls.next(again=False) == ClaimCall(None, number=3)
    assert calls.next(again=True) is None


def test_claim_whose_urgency_the_key_does_not_allow_is_not_called_again_and_again(
    core: AdmissionController, calls: ClaimCalls
) -> None:
    queue(core, interactive(), "a")
    assert calls.next(again=False) == ClaimCall(claimed(1), number=1)
    assert not calls.reported(Claim(1, urgent=False), False, 1)
    assert calls.next(again=False) is None
    assert calls.reported(Claim(1, urgent=False), False, 0), "of no call: it has another reason"


def test_long_queue_is_claimed_again_when_an_equal_share_of_the_slots_is_left_to_offer(
    core: AdmissionController, calls: ClaimCalls
) -> None:
    queue(core, interactive(), *(str(number) for number in range(16)))
    assert calls.next(again=False) == ClaimCall(claimed(16), number=1)
    assert not calls.reported(claimed(15), False, 1)
    assert not calls.reported(claimed(5), False, 1)
    assert calls.next(again=False) is None
    assert calls.reported(claimed(4), False, 1)
    assert calls.next(again=False) == ClaimCall(claimed(16), number=2)


def test_more_is_never_claimed_than_waits(core: AdmissionController, calls: ClaimCalls) -> None:
    """What is offered in vain is missing elsewhere."""
    queue(core, interactive(), *"abcdef")
    calls.next(again=False)
    core.leave("f", 0.0)
    assert calls.next(again=False) == ClaimCall(claimed(5), number=2)


def test_report_of_a_call_before_the_last_one_does_not_count(
    core: AdmissionController, calls: ClaimCalls
) -> None:
    queue(core, interactive(), "a")
    calls.next(again=False)
    queue(core, interactive(), "b")
    calls.next(again=False)
    assert not calls.reported(claimed(1), False, 1)
    assert calls.reported(claimed(1), False, 2)
    assert calls.next(again=False) == ClaimCall(claimed(2), number=3)


def test_stream_that_was_opened_again_knows_no_call(
    core: AdmissionController, calls: ClaimCalls
) -> None:
    queue(core, interactive(), "a")
    calls.next(again=False)
    assert calls.reported(None, False, 0)


def test_call_that_was_not_taken_is_repeated_if_it_is_still_claimed(
    core: AdmissionController, calls: ClaimCalls
) -> None:
    queue(core, interactive(), "a")
    calls.next(again=False)
    calls.failed()
    assert calls.next(again=False) == ClaimCall(claimed(1), number=2)
    calls.failed()
    core.leave("a", 0.0)
    assert calls.next(again=False) is None, "the engine has recorded none"


def test_next_request_needs_no_offer_of_an_engine_that_takes_no_claims(
    core: AdmissionController, calls: ClaimCalls
) -> None:
    """What the engine kept of a rejected request is gone when its offer was not taken in time."""
    queue(core, interactive(), "a")
    offers = core.constraints.offers
    offers.rejected()
    calls.next(again=False)
    assert offers.room(INTERACTIVE, Occupancy(0, 0), 0.0) == 0
    calls.failed()
    assert offers.room(INTERACTIVE, Occupancy(0, 0), 0.0) == UNLIMITED


def test_unused_slots_are_given_back_once(core: AdmissionController, calls: ClaimCalls) -> None:
    offers = core.constraints.offers
    core.engine_reports(report(SLOTS, foreign=SLOTS, sidecars=2, contended=True), 0.0)
    offers.offer(3, 7)
    offers.settle()
    assert calls.next(again=False) == ClaimCall(None, taken=7, unused=3, number=1)
    calls.failed()
    assert calls.next(again=False) is None, "the engine frees them by itself"


def test_rejection_is_over_when_nothing_is_claimed(
    core: AdmissionController, calls: ClaimCalls
) -> None:
    core.constraints.offers.rejected()
    calls.next(again=False)
    assert not core.constraints.offers.was_rejected


def test_engine_knows_that_more_waits_than_is_claimed() -> None:
    """Bulk requests whose batch is full, say: others do not race them for the next free slot."""
    few = rules(bulk=class_rules(batch=BatchBounds(least=1, most=4)))
    core = core_of(SLOTS, few, foreign=4, sidecars=2, contended=True)
    calls = ClaimCalls(EngineClaims(core, "1" * 16))
    queue(core, bulk(), "a", "b")
    assert core.order.claim is None
    assert calls.next(again=False) == ClaimCall(None, number=1, waits=True)
    assert calls.next(again=False) is None
    assert calls.next(again=True) == ClaimCall(None, number=2, waits=True)
    core.engine_reports(report(SLOTS, foreign=3, sidecars=2, contended=True), 1.0)
    claim = Claim(1, urgent=False)
    assert calls.next(again=False) == ClaimCall(claim, number=3, waits=True)
    core.leave("b", 1.0)
    assert calls.next(again=False) == ClaimCall(claim, number=4)
    assert calls.reported(None, True, 4)
