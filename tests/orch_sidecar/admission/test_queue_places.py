"""Places of queued requests: in the order of dispatch, with the starts that were predicted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.admission import queue_places as places
from orch_sidecar.admission import refusals
from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.queue_places import Place, Places
from orch_sidecar.admission.types import Queued
from tests.orch_sidecar.admission.examples import (
    STEP_TIME,
    bulk,
    class_rules,
    core_of,
    fill,
    granted,
    interactive,
    queue,
    rules,
)


def measured(slots: int) -> AdmissionController:
    """Steps of 10 ms + 1 ms for each sequence, 1000 tokens of prompts per second."""
    of_rules = rules(class_rules(queue_capacity=5000), class_rules(queue_capacity=5000))
    return core_of(slots, of_rules, step_time=STEP_TIME, prefill_tokens_per_s=1000.0)


def test_places_are_in_the_order_of_dispatch_with_the_predicted_starts() -> None:
    """A request of 100 tokens takes 1.1 s."""
    core = measured(1)
    fill(core, interactive(max_tokens=100), "a")
    queue(core, bulk(max_tokens=100), "d")
    queue(core, interactive(max_tokens=100), "b", "c")
    found = Places(core)
    places = [place for name in "bcd" if (place := found.of(name, 0.0)) is not None]
    assert [place.position for place in places] == [0, 1, 2]
    assert [place.starts_at for place in places] == pytest.approx([1.1, 2.2, 3.3])
    assert found.of("a", 0.0) is None
    assert granted(core.release("a", 1.0, 100)) == ["b"]
    place = found.of("c", 1.2)
    assert place is not None
    assert place.position == 0
    assert place.starts_at == pytest.approx(2.1, abs=0.3)


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(1, 3), st.integers(1, 50), st.sampled_from("xyz")),
        min_size=1,
        max_size=20,
    )
)
def test_the_place_of_the_last_one_is_what_it_was_given_when_it_came(
    asks: list[tuple[bool, int, int, str]],
) -> None:
    core, number = measured(3), 0
    fill(core, interactive(max_tokens=50), "0", "1", "2")
    for is_bulk, cost, tokens, key in asks:
        number += 1
        make = bulk if is_bulk else interactive
        request = make(cost, max_tokens=tokens, key=key.encode(), prompt_tokens=tokens)
        outcome = core.arrive(f"q{number}", request, 0.0)
        assert isinstance(outcome, Queued)
        place = Places(core).of(f"q{number}", 0.0)
        assert place is not None
        assert place.position <= outcome.position, "another key that is level may go after it"
        if place.position < outcome.position or outcome.predicted_start_ms is None:
            continue
        assert place.starts_at == pytest.approx(outcome.predicted_start_ms / 1000, abs=0.001)
    found = Places(core)
    queued = [found.of(f"q{each}", 0.0) for each in range(1, number + 1)]
    assert sorted(each.position for each in queued if each) == list(range(number))


def test_one_look_serves_all_requests_of_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    core, looks = measured(1), list[float]()
    fill(core, interactive(), "a")
    queue(core, interactive(), "b")
    found = Places(core)
    look = found._predict

    def counted(now: float) -> dict[str, Place]:
        looks.append(now)
        return look(now)

    monkeypatch.setattr(found, "_predict", counted)
    assert found.of("b", 0.0) == Place(0, None)
    queue(core, interactive(), "c", at=0.01)
    assert found.of("c", 0.01) is None, "it has arrived since"
    assert found.of("c", 0.2) == Place(1, None)
    assert looks == [0.0, 0.2]


def test_starts_are_unknown_while_the_engine_is_away() -> None:
    core = measured(1)
    fill(core, interactive(max_tokens=100), "a")
    queue(core, interactive(max_tokens=100), "b")
    core.engine_unavailable(refusals.RESTARTED, 0.0)
    assert Places(core).of("b", 0.0) == Place(0, None)


def test_requests_far_behind_start_at_the_rate_of_those_before_them() -> None:
    core = measured(1)
    fill(core, interactive(max_tokens=100), "a")
    names = [f"q{number}" for number in range(1500)]
    for name in names:
        core.arrive(name, interactive(max_tokens=100, max_wait_ms=1e7), 0.0)
    found = Places(core)
    starts = [place.starts_at for name in names if (place := found.of(name, 0.0)) is not None]
    assert starts == pytest.approx([1.1 * (number + 1) for number in range(len(starts))], rel=0.01)


def test_a_queue_without_end_is_looked_at_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_MAX_PLACES", 2)
    core = measured(1)
    fill(core, interactive(), "a")
    queue(core, interactive(), "b", "c", "d")
    found = Places(core)
    assert [found.of(name, 0.0) is None for name in "bcd"] == [False, False, True]


def test_without_a_step_time_requests_start_at_the_rate_of_their_class() -> None:
    core = core_of(1)
    found = Places(core)
    fill(core, bulk(max_tokens=100), "b0")
    queue(core, bulk(max_tokens=100), *(f"b{number}" for number in range(1, 6)))
    assert found.of("b1", 0.0) == Place(0, None), "nothing has ended"
    for number in range(3):
        ended_at = 4.0 * (number + 1)
        assert granted(core.release(f"b{number}", ended_at, 100)) == [f"b{number + 1}"]
    assert found.of("b4", 12.0) == Place(0, 16.0)
    assert found.of("b5", 12.0) == Place(1, 20.0)
    queue(core, interactive(max_tokens=100), "i", at=13.0)
    assert found.of("i", 13.0) == Place(0, None), "none of its class has ended"
