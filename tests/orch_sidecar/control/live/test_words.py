"""What is written in words."""

from __future__ import annotations

import pytest

from orch_sidecar.admission.draining import OrderedBy
from orch_sidecar.api.refusal import Reason
from orch_sidecar.control.live.words import advice, end_of
from orch_sidecar.engine_state.states import EngineState
from orch_sidecar.observability.record import Outcome


@pytest.mark.parametrize("outcome", [*Outcome, *Reason], ids=str)
def test_every_end_of_a_request_has_words(outcome: Outcome | Reason) -> None:
    assert bool(end_of(outcome)) is (outcome is not Outcome.OK)


@pytest.mark.parametrize(
    "state", [each for each in EngineState if each not in (EngineState.READY, EngineState.DRAINING)]
)
def test_every_state_in_which_nothing_is_served_shows_what_to_do(state: EngineState) -> None:
    assert advice(state, None, "home").endswith(".")
    assert "{" not in advice(state, None, "home")


def test_engine_that_is_ready_needs_nothing_done() -> None:
    assert advice(EngineState.READY, None, "home") == ""


@pytest.mark.parametrize("ordered_by", OrderedBy)
def test_drain_shows_how_it_ends(ordered_by: OrderedBy) -> None:
    assert advice(EngineState.DRAINING, ordered_by, "home").endswith(".")
