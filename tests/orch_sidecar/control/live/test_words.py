"""What is written in words."""

from __future__ import annotations

import pytest

from orch_sidecar.admission.draining import Drain, OrderedBy
from orch_sidecar.admission.status import AdmissionStatus
from orch_sidecar.api.refusal import Reason
from orch_sidecar.control.live.words import advice, end_of
from orch_sidecar.engine_state.states import PoolState
from orch_sidecar.observability.record import Outcome
from orch_sidecar.pools.status import PoolStatus
from tests.orch_sidecar.admission.examples import STEP_TIME, class_rules, core_of, rules
from tests.orch_sidecar.snapshots import CLOUD

READY = core_of(4).status(0.0)


def pool_of(state: PoolState, admission: AdmissionStatus = READY) -> PoolStatus:
    return PoolStatus("a", CLOUD, admission, state=state)


@pytest.mark.parametrize("outcome", [*Outcome, *Reason], ids=str)
def test_every_end_of_a_request_has_words(outcome: Outcome | Reason) -> None:
    assert bool(end_of(outcome)) is (outcome is not Outcome.OK)


@pytest.mark.parametrize(
    "state", [each for each in PoolState if each not in (PoolState.READY, PoolState.DRAINING)]
)
def test_every_state_in_which_nothing_is_served_shows_what_to_do(state: PoolState) -> None:
    assert advice(pool_of(state)).endswith(".")
    assert "{" not in advice(pool_of(state))


def test_engine_that_is_ready_needs_nothing_done() -> None:
    assert advice(pool_of(PoolState.READY)) == ""


def test_ready_engine_that_can_never_keep_its_slo_shows_what_to_do() -> None:
    misses = class_rules(tpot_p95_ms=STEP_TIME.ms(1) / 2)
    slow = core_of(4, rules(misses), step_time=STEP_TIME).status(0.0)
    assert "tpot_p95_ms" in advice(pool_of(PoolState.READY, slow))


@pytest.mark.parametrize("ordered_by", OrderedBy)
def test_drain_shows_how_it_ends(ordered_by: OrderedBy) -> None:
    drained = READY._replace(draining=Drain(ordered_by, 0.0))
    assert advice(pool_of(PoolState.DRAINING, drained)).endswith(".")
